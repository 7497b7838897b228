"""Check that tokenizers give the ids of Hugging Face's, both ways (hf_roundtrip.py)."""
import random

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        trainers)
from transformers import AutoTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast

from checks import call

TEXT = ("To be, or not to be: that's the question.\n\n  Twice  two spaces, 1234 digits, don't "
        "can't we'll;\ttab, caf\u00e9, na\u00efve, \u4f60\u597d, \U0001f642 end")


def made_tokenizers():
    """Byte-level BPEs that split text as SmolLM2, Llama 3, Qwen and GPT-NeoX do, trained on mixed text."""
    words = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")

    def split(digits):
        return pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(words.replace("DIGITS", digits)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def byte_level():
        return pre_tokenizers.ByteLevel(add_prefix_space=False)

    kinds = {"smollm2": (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                        byte_level()]), []),
             "llama3": (None, split(r"\p{N}{1,3}"), []),
             "qwen": (normalizers.NFC(), split(r"\p{N}"), [AddedToken("<think>", normalized=False)]),
             "neox": (normalizers.NFC(), byte_level(), [AddedToken("  ", normalized=True)])}
    for kind, (normalizer, pre_tokenizer, more) in kinds.items():
        made = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
        if normalizer is not None:
            made.normalizer = normalizer
        made.pre_tokenizer, made.decoder = pre_tokenizer, decoders.ByteLevel()
        made.train_from_iterator(mixed_lines(500, seed=1), trainers.BpeTrainer(
            vocab_size=700, special_tokens=["<|endoftext|>", "<|im_end|>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        made.add_tokens(more)
        yield kind, made


def mixed_lines(count, seed):
    alphabets = ("abcdefghijklm nopqrstuvwxyz", "ABC' DEF", "0123456789 .,-+()",
                 "\u00e4\u00f6\u00fc\u00df \u03b1\u03b2 ",
                 "\u4e2d\u6587\u65e5 \ud55c", "\u00a0\u2003\u3000\u180e\u0085\t  \r", "e\u0301a\u030a\u0338>\u212b",
                 "\U0001f642\u200d\U0001f680 ", "{}[]()<>=!&|*;:#@/ \t", "\u0663\u00bd\u2167 ")
    pick = random.Random(seed)
    fixed = ["it's we'll I'M", "<think>", "def f(x):\n    return x", "a   b", "!\n\n"]
    return ["".join(pick.choice(fixed) if pick.random() < 0.1 else
                    "".join(pick.choices(pick.choice(alphabets), k=pick.randint(1, 12)))
                    for _ in range(pick.randint(1, 8))) + "\n" for _ in range(count)]


def check_bpe_tokenizers(checks, programs, work):
    program = programs / "prepare_data"
    if not program.exists():
        print("skip  byte-level BPE tokenizers: prepare_data is not in --bin-dir")
        return
    text = "".join(mixed_lines(2000, seed=2))
    (work / "mixed.txt").write_bytes(text.encode())
    for kind, made in made_tokenizers():
        folder, output = work / kind, work / f"{kind}.bin"
        output.unlink(missing_ok=True)  # of another tokenizer of that kind
        PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>").save_pretrained(folder)
        if not call(checks, kind, program, "--input", work / "mixed.txt", "--tokenizer-dir", folder,
                    "--encode-only", output):
            continue
        raw = output.read_bytes()
        ours = [int.from_bytes(raw[i:i + 2], "little") for i in range(0, len(raw), 2)]
        theirs = AutoTokenizer.from_pretrained(str(folder))(text, add_special_tokens=False)["input_ids"]
        checks.result(ours == theirs, f"{kind}: {len(ours)} ids of AutoTokenizer on 2,000 lines")


def check_small_tokenizers(checks, programs, work):
    """Of a text with line breaks, spaces in a row, accents and characters beyond 16 bits."""
    program = programs / "prepare_data"
    if not program.exists():
        print("skip  tokenizers of characters and bytes: prepare_data is not in --bin-dir")
        return
    text = work / "small.txt"
    text.write_bytes(TEXT.encode())
    for kind in ("chars", "bytes"):
        folder = work / kind
        if not call(checks, kind, program, "--input", text, "--tokenizer", kind, "--output",
                    folder, "--val-fraction", "0"):
            continue
        raw = (folder / "train.bin").read_bytes()
        ours = [int.from_bytes(raw[i:i + 2], "little") for i in range(0, len(raw), 2)]
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder))
            ids = tokenizer(TEXT)["input_ids"]
            back = tokenizer.decode(ours)
        except Exception as error:
            checks.result(False, f"{kind}: AutoTokenizer cannot use it: "
                          f"{str(error).splitlines()[0]}")
            continue
        checks.same(f"{kind}: ids of AutoTokenizer", ids, ours)
        checks.same(f"{kind}: text of AutoTokenizer", back, TEXT)
        checks.same(f"{kind}: size of the vocabulary", len(tokenizer),
                    256 if kind == "bytes" else len(set(TEXT)))
        try:
            found = tokenizer("a\u2603")["input_ids"]
        except Exception:  # it has no name of its own
            found = "an error"
        checks.same(f"{kind}: a character that the text lacks", found,
                    "an error" if kind == "chars" else list("a\u2603".encode()))


def check_tokenizer(checks, programs, folder, vocab_size, work):
    try:
        tokenizer = GPT2Tokenizer.from_pretrained(str(folder))
        ids = tokenizer(TEXT)["input_ids"]
        back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    except Exception as error:
        checks.result(False, f"tokenizer: transformers cannot use it: {str(error).splitlines()[0]}")
        return
    checks.same("tokenizer: text after encode and decode", back, TEXT)
    checks.result(0 <= min(ids) and max(ids) < vocab_size,
                  f"tokenizer: ids up to {max(ids)} (vocabulary of the model: {vocab_size})")
    program = programs / "prepare_data"
    if not program.exists():
        print("skip  tokenizer against prepare_data: it is not in --bin-dir")
        return
    text, output = work / "text.txt", work / "text.bin"
    text.write_bytes(TEXT.encode())
    if call(checks, "tokenizer against prepare_data", program, "--input", text, "--tokenizer",
            "gpt2", "--tokenizer-dir", folder, "--encode-only", output):
        raw = output.read_bytes()
        ours = [int.from_bytes(raw[i:i + 2], "little") for i in range(0, len(raw), 2)]
        checks.same("tokenizer: ids of prepare_data", ours, ids)
