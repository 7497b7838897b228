"""The Python package against Hugging Face's transformers, where it and torch are installed."""
import numpy as np
import pytest
import sluice

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture
def theirs(tmp_path):
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=3, n_head=4, n_embd=64, vocab_size=300, n_positions=48,
                                     attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for weights in model.parameters():  # so that biases and gains matter
            weights += 0.05 * torch.randn_like(weights)
    model.save_pretrained(tmp_path)
    return model


@pytest.fixture
def ours(theirs, tmp_path):
    return sluice.load(tmp_path, device="cpu")


@pytest.fixture
def ids():
    return np.random.default_rng(2).integers(0, 300, (3, 49))


def test_logits_and_loss(theirs, ours, ids):
    with torch.no_grad():
        expected = theirs(torch.tensor(ids[:, :-1])).logits
    np.testing.assert_allclose(ours.logits(ids[:, :-1]), expected.numpy(), atol=2e-5)
    loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), torch.tensor(ids[:, 1:]).flatten())
    assert ours.loss(ids[:, :-1], ids[:, 1:]) == pytest.approx(loss.item(), rel=1e-6)


def test_adamw(theirs, ids, tmp_path):
    # In float64: keys' biases have no gradient but rounding, which AdamW turns into whole steps.
    theirs, ours = theirs.double(), sluice.load(tmp_path, device="cpu", precision="fp64")
    decayed = [p for p in theirs.parameters() if p.ndim > 1]
    others = [p for p in theirs.parameters() if p.ndim == 1]
    reference = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                   {"params": others, "weight_decay": 0}], lr=1e-3, betas=(0.9, 0.95))
    optimizer = sluice.AdamW(ours, weight_decay=0.1, clip=1.0)
    for _ in range(3):
        logits = theirs(torch.tensor(ids[:, :-1])).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(ids[:, 1:]).flatten())
        reference.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        reference.step()
        assert optimizer.train_step(ids[:, :-1], ids[:, 1:], lr=1e-3) == pytest.approx(loss.item(), rel=1e-9)
        assert optimizer.gradient_norm == pytest.approx(norm.item(), rel=1e-8)
    expected = {name.removeprefix("transformer."): p for name, p in theirs.named_parameters()}
    for name, weights in ours.parameters().items():
        np.testing.assert_allclose(weights, expected[name].detach().numpy(), atol=1e-6, err_msg=name)


def test_greedy(theirs, ours, ids):
    prompt = ids[:1, :8]
    expected = theirs.generate(torch.tensor(prompt), max_new_tokens=20, do_sample=False, eos_token_id=None,
                               pad_token_id=0)
    assert ours.generate(prompt[0], 20, temperature=0).tolist() == expected[0, 8:].tolist()


def test_transformers_opens_what_is_saved(ours, ids, tmp_path):
    ours.save(tmp_path / "saved")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    with torch.no_grad():
        logits = again(torch.tensor(ids[:, :-1])).logits
    np.testing.assert_allclose(ours.logits(ids[:, :-1]), logits.numpy(), atol=2e-5)
