"""GPT-2 models on NumPy arrays, computed by Sluice.

    import sluice
    model = sluice.load("path/to/a/hugging-face-folder")
    logits = model.logits([[15496, 995]])
    optimizer = sluice.AdamW(model, weight_decay=0.1)
    loss = optimizer.train_step(tokens, targets, lr=3e-4)

Token ids are integer arrays or nested lists. Arguments that a model cannot take raise ValueError,
arguments of another type TypeError, damaged files and a lack of memory RuntimeError.
"""
import os

import numpy as np

from . import _sluice

__all__ = ["AdamW", "GPT2", "Tokenizer", "load", "load_tokenizer", "set_threads"]


def _ids(values, name, dimensions):
    array = np.asarray(values)
    if array.size > 0 and array.dtype.kind not in "iu":
        raise TypeError(f"{name} has the dtype {array.dtype}; token ids are integers")
    if array.ndim != dimensions:
        raise ValueError(f"{name} has {array.ndim} dimensions; it needs {dimensions}")
    if array.dtype == np.uint64 and array.size > 0 and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} holds {array.max()}, which is no token id")
    return np.ascontiguousarray(array, dtype=np.int64)


def set_threads(count):
    """Sets the number of CPU threads that compute; 0: all cores."""
    _sluice.set_threads(count)


def load(folder, device=None, precision=None):
    """Loads a GPT-2 from a Hugging Face folder, the OUTPUT of train_gpt2, or a checkpoint of it.

    device: "cpu", "cuda" or None (a GPU if there is one). precision: "fp32", "tf32", "bf16", "fp64"
    or None (bf16 on a GPU, fp32 on the CPU).
    """
    return GPT2(_sluice.Model(os.fspath(folder), device, precision))


class GPT2:
    """A GPT-2 with its weights; made by load()."""

    def __init__(self, model):
        self._model = model

    @property
    def config(self):
        """The sizes, by their names in config.json."""
        return self._model.config()

    def logits(self, tokens):
        """Returns the logits, float32 [batch, length, vocab_size], of ids [batch, length]."""
        return self._model.logits(_ids(tokens, "tokens", 2))

    def loss(self, tokens, targets):
        """Returns the mean cross-entropy of predicting `targets` from `tokens`, both [batch, length].

        targets[b, t] is the id that follows tokens[b, t]; nothing is shifted here.
        """
        return self._model.loss(_ids(tokens, "tokens", 2), _ids(targets, "targets", 2))

    def generate(self, tokens, max_new_tokens, temperature=1.0, top_k=0, top_p=1.0, seed=0):
        """Returns the new ids, int32 [max_new_tokens], that continue the ids [length].

        temperature 0 is greedy; top_k 0 and top_p 1 keep all tokens. The same seed gives the same
        ids. Once the context is full, only its later half is kept.
        """
        prompt = _ids(tokens, "tokens", 1).reshape(1, -1)
        return np.array(self._model.generate(prompt, max_new_tokens, temperature, top_k, top_p, seed),
                        dtype=np.int32)

    def parameters(self):
        """Returns copies of all weights, float32, by their names in Hugging Face's files."""
        return self._model.parameters()

    def save(self, folder, tokenizer=None):
        """Writes a folder that load() and Hugging Face open, with the tokenizer of another folder.

        The files replace those of a model that is there, all or none of them.
        """
        self._model.save(os.fspath(folder), None if tokenizer is None else os.fspath(tokenizer))


class AdamW:
    """Trains all weights of a model. Weight decay leaves out biases and LayerNorm's weights.

    clip: limit of the gradients' norm; 0: none.
    """

    def __init__(self, model, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0):
        self._model = model._model
        self._optimizer = _sluice.AdamW(self._model, betas[0], betas[1], eps, weight_decay, clip)

    def train_step(self, tokens, targets, lr):
        """Does one update with learning rate `lr`; returns the loss before it, as GPT2.loss()."""
        return self._optimizer.train_step(self._model, _ids(tokens, "tokens", 2),
                                          _ids(targets, "targets", 2), lr)

    @property
    def gradient_norm(self):
        """The norm of the last step's gradients, before clipping."""
        return self._optimizer.gradient_norm()


def load_tokenizer(folder):
    """Loads the tokenizer of a folder that load() opens."""
    return Tokenizer(_sluice.load_tokenizer(os.fspath(folder)))


class Tokenizer:
    """Turns text into token ids and back; made by load_tokenizer()."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def encode(self, text, special=False):
        """Returns the ids, int32, of a str (as UTF-8) or bytes.

        With `special`, "<|endoftext|>" is the token of that name; otherwise it is ordinary text.
        """
        data = text.encode() if isinstance(text, str) else bytes(text)
        return np.array(self._tokenizer.encode(data, special), dtype=np.int32)

    def decode(self, ids):
        """Returns the str of some ids; bytes that are not UTF-8 become U+FFFD."""
        return self._tokenizer.decode(_ids(ids, "ids", 1)).decode(errors="replace")

    @property
    def vocab_size(self):
        return self._tokenizer.vocab_size()

    @property
    def end_of_text(self):
        """The id that separates documents; None if the vocabulary has none."""
        return self._tokenizer.end_of_text()
