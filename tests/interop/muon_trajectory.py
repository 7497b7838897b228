#!/usr/bin/env python3
"""Check, against an implementation in PyTorch, that `train_gpt2 --optimizer muon` trains as Muon does.

  muon_trajectory.py --bin-dir build/default/bin

Trains random GPT-2 and Llama models of Hugging Face transformers, in float64, for 30 updates by the algorithm of
https://kellerjordan.github.io/posts/muon and by Moonlight's scale (arXiv 2502.16982), written here from these texts.
The losses of train_gpt2 on the same batches must agree.

Run by hand, with a python that has torch and transformers. Exit codes: 0 all passed, 1 a check failed, 2 wrong use.
"""
import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local: never look a name up

import torch
import torch.nn.functional as F

from checks import Checks, call
from hf_roundtrip import gpt2, llama, random_model
from transformers import LlamaConfig

STEPS, ROWS, LENGTH, WARMUP = 30, 2, 24, 5
LR, DECAY, BETAS, EPSILON, CLIP = 1e-3, 0.1, (0.9, 0.95), 1e-8, 1.0
BOUND = 1e-4


def orthogonalized(matrix):
    x = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if matrix.size(0) > matrix.size(1) else x


class Muon(torch.optim.Optimizer):
    """`factor`: gives what a direction of a matrix [outputs, inputs] is multiplied by."""

    def __init__(self, matrices, rate, momentum, factor, transposed):
        super().__init__(matrices, {"lr": rate})
        self.momentum, self.factor, self.transposed = momentum, factor, transposed

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - self.momentum)
                direction = orthogonalized(p.grad.lerp(buffer, self.momentum))
                outputs, inputs = reversed(p.shape) if self.transposed else p.shape
                p.mul_(1 - group["lr"] * DECAY)
                p.add_(direction, alpha=-group["lr"] * self.factor(outputs, inputs))


def reference(model, tokens, rate, momentum, factor):
    """The losses of training the model, which it changes."""
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and (".h." in name or ".layers." in name)]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    adamw = torch.optim.AdamW([{"params": [p for p in others if p.dim() >= 2], "weight_decay": DECAY},
                               {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0}],
                              lr=LR, betas=BETAS, eps=EPSILON)
    muon = Muon(matrices, rate, momentum, factor, transposed=model.config.model_type == "gpt2")
    losses = []
    for step in range(STEPS):
        piece = tokens[step * ROWS * LENGTH:(step + 1) * ROWS * LENGTH + 1]
        logits = model(piece[:-1].view(ROWS, LENGTH)).logits
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), piece[1:])
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        part = min(1, (step + 1) / WARMUP)
        for optimizer, full in ((adamw, LR), (muon, rate)):
            for group in optimizer.param_groups:
                group["lr"] = full * part
            optimizer.step()
        losses.append(loss.item())
    return losses


def check(checks, binaries, folder, name, config, flags, rate, momentum, factor):
    model = random_model(7, config).double()
    model.float().save_pretrained(folder / name)
    model.double()
    tokens = torch.randint(0, config.vocab_size, (STEPS * ROWS * LENGTH + 1,), generator=torch.manual_seed(3))
    data = folder / f"{name}.bin"
    data.write_bytes(tokens.numpy().astype("<u2").tobytes())
    output = folder / f"{name} run"
    if not call(checks, name, binaries / "train_gpt2", "--model", folder / name, "--data", data,
                "--data-order", "sequential", "--batch-size", ROWS, "--seq-len", LENGTH, "--steps", STEPS, "--lr", LR,
                "--lr-schedule", "constant", "--warmup-steps", WARMUP, "--weight-decay", DECAY, "--grad-clip", CLIP,
                "--muon-momentum", momentum, "--val-data", data, "--val-every", 0, "--val-steps", 1, "--sample-tokens",
                0, "--precision", "fp32", "--save", "never", "--output", output, *flags):
        return
    events = map(json.loads, (output / "log.jsonl").read_text().splitlines())
    ours = [event["loss"] for event in events if event["event"] == "train"]
    theirs = reference(model, tokens, rate, momentum, factor)
    checks.same(f"{name}: updates", len(ours), STEPS)
    checks.bound(f"{name}: losses", max(abs(a - b) for a, b in zip(ours, theirs)), BOUND)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--bin-dir", required=True, type=Path)
    binaries = parser.parse_args().bin_dir.resolve()
    checks = Checks()
    shape = ["--optimizer", "muon", "--muon-lr", "0.02"], 0.02, 0.95, lambda out, of: max(1, out / of) ** 0.5
    rms = ["--optimizer", "muon-rms"], LR, 0.9, lambda out, of: 0.2 * max(out, of) ** 0.5
    configs = {"gpt2": gpt2(2, 4, 64, 199, 64), "llama": llama(LlamaConfig, 4, 2, 64, 176)}
    with tempfile.TemporaryDirectory() as folder:
        for name, config in configs.items():
            for scale, how in (("shape", shape), ("rms", rms)):
                check(checks, binaries, Path(folder), f"{name} {scale}", config, *how)
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(1 if checks.failed else 0)


main()
