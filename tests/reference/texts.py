"""The small tokenizer of tests/data/tokenizer, trained on the project's own words, and what it makes of texts."""
import hashlib
import json

import bpe
from files import token_bytes, write_json

MERGES = 500
# Encoders work in pieces of a megabyte: this many copies of the text are more than one.
COPIES = 20

ODD_TEXTS = {
    "empty": [""],
    "words": ["Hello world", " Hello world", "hello", "HELLO", "train_gpt2: error: --batch-size 3", "the the the"],
    "contractions": [
        "don't we'll I'm they've he'd it's you're", "DON'T WE'LL", "'s'S't'T'", "''s", "a 's b", "'re're",
        "can't've", "rock 'n' roll", "'l 'll 'v 've 'r", "\u2019s isn\u2019t"],
    "numbers": [
        "0 1 12 123 1234567", "3.14159e-10", "\u00bd \u00b2 \u2167 \u0663", "x2y3", "1,000,000", "-5 +7 =2"],
    "white space": [
        " ", "  ", "   x", "x   ", "a  b   c    d", "\t\ttabs\t", "a \t b", "\n", "\n\n\n", "a\n\nb", "a \n b",
        "  \n  \n  x", "\u00a0\u00a0x", "x\u3000\u3000y", "\u2003a\u2003 b", "a\u0085b\u0085\u0085c",
        "\u001c\u001f x", "\u200b\u200bx", "\ufeffx", "\x0b\x0c v", " " * 100 + "x", "x" + "\n" * 65],
    "line ends": ["a\r\nb\r\n", "\r\n\r\n", "a\rb\r", "a \r\n b"],
    "punctuation": [
        "!?", "...and", "(a)[b]{c}", "a-b_c/d\\e", "#include <stdio.h>", "$$$ 5", "\"quoted\"", "--flag=x"],
    "letters": [
        "caf\u00e9 na\u00efve", "cafe\u0301", "\u00c5ngstr\u00f6m \u00df \u1e9e",
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u4f60\u597d\u4e16\u754c",
        "\u3053\u3093\u306b\u3061\u306f", "\ud55c\uad6d\uc5b4", "\u0645\u0631\u062d\u0628\u0627",
        "\u05e9\u05dc\u05d5\u05dd", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e44\u0e17\u0e22",
        "\U00010400\U00010428"],
    "emoji": [
        "\U0001f642", " \U0001f642\U0001f642", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "x\U0001f600y", "\U0001f44d\U0001f3fd"],
    "control": ["\0", "a\0b", "\x01\x02\x7f", "\x1b[31mred\x1b[0m"],
    "planes": ["\ufffd", "\ue000", "\U000f0000", "\U0010ffff", "\u0300", "\u00ad"],
    "special": [
        "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", " <|endoftext|> ", "<|endoftext|",
        "<<|endoftext|>>", "\n<|endoftext|>\n"],
    "long": ["ab" * 300, "training " * 50, "z" * 257, "!" * 100, "7" * 100],
}


def vector(number, category, text, encoder):
    row = {"id": number, "cat": category, "text": text, "hex": text.encode().hex(), "ids": encoder.encode(text)}
    special = encoder.encode_with_special(text)
    return row | ({"ids_special": special} if special != row["ids"] else {})


def write_tokenizer(folder, text):
    """`text` is frozen: the documents that it was taken from go on changing."""
    folder.mkdir(parents=True)
    assert text.isascii() and text.endswith("\n") and text[0].isalnum()
    merges = bpe.train(text, MERGES)
    vocabulary = bpe.vocabulary_of(merges)
    encoder = bpe.Encoder(vocabulary, merges)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_bytes(("\n".join(lines) + "\n").encode())
    (folder / "text.txt").write_bytes(text.encode())

    lines = [(category, odd) for category, texts in ODD_TEXTS.items() for odd in texts]
    lines += [("own words", line) for line in text.split("\n")[:400:8] if line]
    rows = [vector(number, category, odd, encoder) for number, (category, odd) in enumerate(lines)]
    (folder / "tokenizer_vectors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    copies = text * COPIES
    cut = len(copies) * 9 // 10
    ids = encoder.encode(copies)
    digest = hashlib.sha256(token_bytes(ids)).hexdigest()
    write_json(folder / "expected.json", {
        "vectors": len(rows), "vocabulary": len(vocabulary), "end_of_text": vocabulary[bpe.END_OF_TEXT],
        "characters": len(set(text)), "copies": COPIES, "tokens": len(ids), "sha256": digest,
        "train_tokens": len(encoder.encode(copies[:cut])), "val_tokens": len(encoder.encode(copies[cut:]))})
