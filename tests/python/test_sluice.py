"""The Python package against tests/data, whose values NumPy computed in float64 (tests/reference)."""
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import sluice

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"


def tensors(file):
    """The tensors of a safetensors file."""
    data = file.read_bytes()
    size, = struct.unpack_from("<Q", data)
    found = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in entry["data_offsets"])
            dtype = {"F32": "<f4", "I32": "<i4"}[entry["dtype"]]
            found[name] = np.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
    return found


class Case:
    def __init__(self, name):
        self.folder = FIXTURES / name
        self.values = json.loads((self.folder / "ref" / "ref.json").read_text())
        self.tensors = tensors(self.folder / "ref" / "ref.safetensors")
        self.tokens = np.fromfile(self.folder / "tokens.bin", "<u2")
        self.tokens_in, self.targets = self.tensors["input_ids"], self.tensors["targets"]

    def batch(self, step):
        h = self.values["hyper"]
        count = h["batch"] * h["seq"]
        piece = self.tokens[step * count:(step + 1) * count + 1]
        return piece[:-1].reshape(h["batch"], -1), piece[1:].reshape(h["batch"], -1)


@pytest.fixture(params=["tiny", "odd"])
def case(request):
    return Case(request.param)


@pytest.fixture
def tiny():
    return sluice.load(FIXTURES / "tiny", device="cpu")


def test_logits(case):
    model = sluice.load(case.folder, device="cpu")
    logits = model.logits(case.tokens_in)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, case.tensors["logits"], atol=2e-5, rtol=2e-5)


def test_fp64_is_nearer_to_the_reference(case):
    loss = sluice.load(case.folder, device="cpu", precision="fp64").loss(case.tokens_in, case.targets)
    assert loss == pytest.approx(case.values["loss"], rel=1e-12)


def test_loss(case):
    model = sluice.load(case.folder, device="cpu")
    assert model.loss(case.tokens_in, case.targets) == pytest.approx(case.values["loss"], rel=1e-6)


def test_train_steps_follow_the_reference(case):
    h = case.values["hyper"]
    model = sluice.load(case.folder, device="cpu", precision="fp64")
    optimizer = sluice.AdamW(model, betas=(h["beta1"], h["beta2"]), eps=h["eps"],
                             weight_decay=h["weight_decay"], clip=h["clip"])
    for step, expected in enumerate(case.values["trajectory"]):
        loss = optimizer.train_step(*case.batch(step), lr=expected["lr"])
        assert loss == pytest.approx(expected["loss"], rel=1e-9)
        assert optimizer.gradient_norm == pytest.approx(expected["grad_norm"], rel=1e-8)
    for name, weights in model.parameters().items():
        expected = case.values["final_params"][name]
        for at, value in expected["samples"]:
            assert weights.reshape(-1)[at] == pytest.approx(value, rel=1e-6, abs=1e-7)


def test_greedy_continuation(case):
    greedy = case.values["greedy"]
    model = sluice.load(case.folder, device="cpu")
    ids = model.generate(greedy["prompt"], len(greedy["ids"]), temperature=0)
    assert ids.tolist() == greedy["ids"]


def test_a_seed_repeats_and_another_does_not(tiny):
    first = tiny.generate([1, 2], 20, seed=3).tolist()
    assert tiny.generate([1, 2], 20, seed=3).tolist() == first
    assert tiny.generate([1, 2], 20, seed=4).tolist() != first
    assert tiny.generate(list(range(100)), 2).shape == (2,)  # longer than the context


def test_config_and_parameters(tiny):
    assert tiny.config["n_layer"] == 2 and tiny.config["vocab_size"] == 256
    stored = tensors(FIXTURES / "tiny" / "model.safetensors")
    found = tiny.parameters()
    assert found.keys() == stored.keys()
    for name, weights in found.items():
        np.testing.assert_array_equal(weights, stored[name])


def test_what_is_saved_loads_again(tiny, tmp_path):
    optimizer = sluice.AdamW(tiny)
    case = Case("tiny")
    optimizer.train_step(*case.batch(0), lr=1e-2)
    tiny.save(tmp_path / "model")
    again = sluice.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(again.logits(case.tokens_in), tiny.logits(case.tokens_in))


def test_an_optimizer_keeps_its_model_alive():
    optimizer = sluice.AdamW(sluice.load(FIXTURES / "tiny", device="cpu"))
    case = Case("tiny")
    assert optimizer.train_step(*case.batch(0), lr=0) == pytest.approx(case.values["loss"], rel=1e-6)


def test_bytes_and_text(tmp_path):
    (tmp_path / "config.json").write_bytes((FIXTURES / "tiny" / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((FIXTURES / "tiny" / "model.safetensors").read_bytes())
    (tmp_path / "bytes.json").write_text('{"tokenizer": "bytes", "vocab_size": 256}')
    tokenizer = sluice.load_tokenizer(tmp_path)
    assert tokenizer.encode("aé").tolist() == [97, 195, 169]
    assert tokenizer.encode(b"\xff").tolist() == [255]
    assert tokenizer.decode([97, 195, 169]) == "aé"
    with pytest.raises(ValueError, match=r"ids\[1\] is 4294967296"):
        tokenizer.decode([97, 1 << 32])


@pytest.mark.parametrize("tokens, error, words", [
    ([[256]], ValueError, r"tokens\[0, 0\] is 256; ids are 0 to 255"),
    ([[1, -1]], ValueError, r"tokens\[0, 1\] is -1"),
    ([[1 << 32]], ValueError, "4294967296"),
    (np.array([[2**63]], dtype=np.uint64), ValueError, "no token id"),
    ([[0] * 33], ValueError, "33 ids; the model's context is 32"),
    ([[]], ValueError, "at least one id"),
    ([1, 2], ValueError, "1 dimensions; it needs 2"),
    ([[1.5]], TypeError, "float64"),
    ([["a"]], TypeError, "integers"),
])
def test_arguments_that_cannot_be(tiny, tokens, error, words):
    with pytest.raises(error, match=words):
        tiny.logits(tokens)


def test_errors_say_what_is_wrong(tiny, tmp_path):
    with pytest.raises(ValueError, match="same shape"):
        tiny.loss([[1, 2]], [[1]])
    with pytest.raises(ValueError, match="nowhere"):
        sluice.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="there are cpu, cuda"):
        sluice.load(FIXTURES / "tiny", device="tpu")
    with pytest.raises(ValueError, match="loss scaling|fp16"):
        sluice.load(FIXTURES / "tiny", device="cpu", precision="fp16")
