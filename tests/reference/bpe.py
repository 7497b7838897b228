"""Byte-level BPE as GPT-2 has it: the split of a text into words, the training of merges, and the encoder."""
import unicodedata
from collections import Counter
from functools import cache

END_OF_TEXT = "<|endoftext|>"
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
# Unicode's White_Space. Python's isspace() also counts U+001C to U+001F.
WHITE_SPACE = {chr(c) for c in (*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028,
                                0x2029, 0x202F, 0x205F, 0x3000)}


def byte_alphabet():
    """The character that stands for each byte: itself where it can be seen, else one from U+0100 on."""
    seen = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte if byte in seen else 256 + hidden.index(byte)) for byte in range(256)}


ALPHABET = byte_alphabet()


@cache
def kind(character):
    if character in WHITE_SPACE:
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(character)[0], "other")


def split(text):
    """'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"""
    kinds = [kind(character) for character in text]

    def end_of_run(start):
        end = start
        while end < len(text) and kinds[end] == kinds[start]:
            end += 1
        return end

    words, at = [], 0
    while at < len(text):
        contraction = text[at] == "'" and next((c for c in CONTRACTIONS if text.startswith(c, at)), None)
        if contraction:
            end = at + len(contraction)
        elif kinds[at] != "space":
            end = end_of_run(at)
        elif text[at] == " " and at + 1 < len(text) and kinds[at + 1] != "space":
            end = end_of_run(at + 1)  # a space belongs to the word after it
        else:
            end = end_of_run(at)
            if end < len(text) and end > at + 1:
                end -= 1  # the last white space is left to what follows
        words.append(text[at:end])
        at = end
    return words


def symbols_of(word):
    return tuple(ALPHABET[byte] for byte in word.encode())


def merged(symbols, pair):
    if pair[0] not in symbols:
        return symbols
    result, at = [], 0
    while at < len(symbols):
        if symbols[at : at + 2] == pair:
            result.append(pair[0] + pair[1])
            at += 2
        else:
            result.append(symbols[at])
            at += 1
    return tuple(result)


def train(text, count):
    """`count` merges, each of the pair that is most frequent; of equals the first in the alphabet."""
    words = Counter(symbols_of(word) for word in split(text))
    merges = []
    for _ in range(count):
        pairs = Counter()
        for symbols, times in words.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = Counter({merged(symbols, best): times for symbols, times in words.items()})
    return merges


def vocabulary_of(merges):
    """Bytes in the order of their characters' visibility, the merges, the end of the text."""
    symbols = sorted(ALPHABET.values()) + [left + right for left, right in merges] + [END_OF_TEXT]
    return {symbol: number for number, symbol in enumerate(symbols)}


class Encoder:
    def __init__(self, vocabulary, merges):
        self.vocabulary = vocabulary
        self.rank = {pair: number for number, pair in enumerate(merges)}
        self.known = {}  # words that were encoded before

    def encode_word(self, word):
        symbols = symbols_of(word)
        while len(symbols) > 1:
            pair = min(zip(symbols, symbols[1:]), key=lambda pair: self.rank.get(pair, len(self.rank)))
            if pair not in self.rank:
                break
            symbols = merged(symbols, pair)
        return [self.vocabulary[symbol] for symbol in symbols]

    def encode(self, text):
        ids = []
        for word in split(text):
            if word not in self.known:
                self.known[word] = self.encode_word(word)
            ids += self.known[word]
        return ids

    def encode_with_special(self, text):
        ids = []
        for number, part in enumerate(text.split(END_OF_TEXT)):
            ids += ([self.vocabulary[END_OF_TEXT]] if number > 0 else []) + self.encode(part)
        return ids
