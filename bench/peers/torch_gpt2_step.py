#!/usr/bin/env python3
"""Time GPT-2 training steps in PyTorch: forward, backward, AdamW.

The peer of the project's own bench_step: the same model (pre-LayerNorm, learned positions, tanh
GELU, tied head, no dropout), random weights, random tokens, one update a step. The choices are
PyTorch's fastest where the version has them: fused attention, fused AdamW, optionally compiled.
Prints one line a step, then the medians; --json writes the result for compare.py.
Works with PyTorch 1.13 and later.
"""
import argparse
import json
import math
import os
import resource
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
from own_files import FIGURES, checked_output, require_own, write

SIZES = {  # layers, heads, width
    "124M": (12, 12, 768),
    "350M": (24, 16, 1024),
    "774M": (36, 20, 1280),
    "1558M": (48, 25, 1600),
}
NAMES = {"gpt2": "124M", "gpt2-medium": "350M", "gpt2-large": "774M", "gpt2-xl": "1558M"}
HAS_SDPA = hasattr(F, "scaled_dot_product_attention")  # PyTorch 2.0


class Block(nn.Module):
    def __init__(self, width, heads, attention, context):
        super().__init__()
        self.heads, self.sdpa = heads, attention == "sdpa"
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        future = torch.ones(context, context, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def attention(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(c // self.heads))
            y = F.softmax(scores.masked_fill(self.future[:t, :t], float("-inf")), dim=-1) @ v
        return self.proj(y.transpose(1, 2).contiguous().view(b, t, c))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, heads, width, vocab, context, attention):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, attention, context)
                                    for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        # The loss is taken in fp32 in every precision, as a careful trainer does.
        return F.cross_entropy(logits.float().view(-1, logits.size(-1)), targets.view(-1))


def make_adamw(parameters, want_fused):
    """AdamW that decays matrices only, fused where this version can on the device; and its name."""
    groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    options = dict(lr=1e-4, betas=(0.9, 0.95), eps=1e-8)
    if want_fused:
        try:
            return torch.optim.AdamW(groups, fused=True, **options), "adamw fused"
        except (TypeError, RuntimeError):
            pass  # unknown to the version, or known but only for a GPU
    return torch.optim.AdamW(groups, **options), "adamw"


class Trainer:
    """One update a call. In `pure` bf16 the model itself is bf16 and the optimizer works on fp32
    master copies; under autocast the parameters stay fp32 and are cast on every use."""

    def __init__(self, model, args):
        self.pure = args.precision == "bf16" and args.bf16_mode == "pure"
        self.autocast = args.precision == "bf16" and not self.pure
        self.clip, self.device = args.grad_clip, args.device
        self.masters = [p.detach().clone() for p in model.parameters()] if self.pure else None
        self.model = model.to(torch.bfloat16) if self.pure else model
        self.parameters = list(self.model.parameters())
        self.updated = self.masters or self.parameters
        self.optimizer, self.optimizer_name = make_adamw(self.updated, not args.no_fused)
        if args.compile:
            self.model = torch.compile(self.model)

    def forward(self, x, y):
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.autocast):
            return self.model(x, y)

    def backward(self, loss):
        for p in self.parameters:
            p.grad = None
        loss.backward()

    def update(self):
        if self.pure:
            for master, p in zip(self.masters, self.parameters):
                master.grad = p.grad.float()
        if self.clip > 0:
            nn.utils.clip_grad_norm_(self.updated, self.clip)
        self.optimizer.step()
        if self.pure:
            with torch.no_grad():
                for master, p in zip(self.masters, self.parameters):
                    p.copy_(master)
                    master.grad = None


def peak_rss_mib():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024  # bytes there, KiB here


class Marks:
    """The clock at the points of a step. A GPU is waited for at the first and the last only; the
    points between are events, so that the host can run ahead as in a training."""

    def __init__(self, device):
        self.gpu, self.clock, self.events = device == "cuda", [], []

    def set(self, wait=False):
        if self.gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.events.append(event)
            if wait:
                torch.cuda.synchronize()
        self.clock.append(time.perf_counter())

    def milliseconds(self):
        """[whole, first to second, ...]"""
        whole = 1e3 * (self.clock[-1] - self.clock[0])
        if self.gpu:
            return [whole] + [a.elapsed_time(b) for a, b in zip(self.events, self.events[1:])]
        return [whole] + [1e3 * (b - a) for a, b in zip(self.clock, self.clock[1:])]


def quantile(values, fraction):
    ordered = sorted(values)
    at = fraction * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--size", choices=SIZES, default="124M")
    p.add_argument("--model", choices=NAMES, help="the size by its Hugging Face name")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--n-layer", type=int, help="with --n-head and --n-embd: a shape of one's own")
    p.add_argument("--n-head", type=int)
    p.add_argument("--n-embd", type=int)
    p.add_argument("--vocab-size", type=int, default=50257,
                   help="default 50257; some trainers pad it to 50304")
    p.add_argument("-b", type=int, default=4, help="batch size")
    p.add_argument("-t", type=int, default=64, help="sequence length")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--skip", type=int, default=2, help="first steps left out of the result")
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--bf16-mode", choices=["autocast", "pure"], default="autocast",
                   help="autocast, or a bf16 model with fp32 master copies")
    p.add_argument("--compile", action="store_true", help="torch.compile (PyTorch 2)")
    p.add_argument("--attention", choices=["eager", "sdpa"],
                   default="sdpa" if HAS_SDPA else "eager", help="default: sdpa where it exists")
    p.add_argument("--no-fused", action="store_true", help="plain AdamW even where fused exists")
    p.add_argument("--grad-clip", type=float, default=0.0, help="global norm; 0: none (default)")
    p.add_argument("--json", metavar="FILE", help="write the result here")
    a = p.parse_args()
    if a.json:
        require_own("--json", a.json, FIGURES)
    shape = (a.n_layer, a.n_head, a.n_embd)
    a.size = NAMES.get(a.model, a.size)
    a.model = a.size
    if any(shape):
        if not all(n and n > 0 for n in shape) or a.n_embd % a.n_head:
            p.error("give --n-layer, --n-head and --n-embd together, n-embd a multiple of n-head")
        a.model = f"L{a.n_layer}-H{a.n_head}-E{a.n_embd}"
    a.shape = shape if any(shape) else SIZES[a.size]
    if min(a.b, a.t, a.threads, a.vocab_size) < 1 or not 0 <= a.skip < a.steps:
        p.error("-b, -t, --threads, --vocab-size must be positive and --skip below --steps")
    if a.attention == "sdpa" and not HAS_SDPA:
        p.error(f"PyTorch {torch.__version__} has no scaled_dot_product_attention: "
                "use --attention eager")
    if a.device == "cuda" and not torch.cuda.is_available():
        p.error("PyTorch sees no GPU: use --device cpu")
    if a.compile and not hasattr(torch, "compile"):
        p.error(f"PyTorch {torch.__version__} has no torch.compile")
    return a


def main():
    a = parse()
    torch.manual_seed(1337)
    torch.set_num_threads(a.threads)
    model = GPT2(*a.shape, a.vocab_size, max(a.t, 1024), a.attention).to(a.device)
    count = sum(q.numel() for q in model.parameters())
    trainer = Trainer(model, a)
    mode = f"bf16 ({a.bf16_mode})" if a.precision == "bf16" else "fp32"
    print(f"torch {torch.__version__} model {a.model} vocab {a.vocab_size} parameters {count} "
          f"b {a.b} t {a.t} threads {torch.get_num_threads()} {mode} attention {a.attention} "
          f"{trainer.optimizer_name}{' compiled' if a.compile else ''}", flush=True)
    rows = []
    for step in range(a.steps):
        tokens = torch.randint(0, a.vocab_size, (a.b, a.t + 1), device=a.device)
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        marks = Marks(a.device)
        marks.set(wait=True)
        loss = trainer.forward(x, y)
        marks.set()
        trainer.backward(loss)
        marks.set()
        trainer.update()
        marks.set(wait=True)
        rows.append(marks.milliseconds())
        print("step %d: loss %.6f  %.2f ms  (forward %.2f backward %.2f update %.2f)"
              % (step + 1, loss.item(), *rows[-1]), flush=True)
    kept = rows[a.skip:]
    medians = [statistics.median(row[i] for row in kept) for i in range(4)]
    result = {
        "program": "torch", "version": torch.__version__, "model": a.model, "batch": a.b,
        "seq": a.t, "threads": torch.get_num_threads(), "precision": a.precision,
        "steps_ms": [row[0] for row in kept],  # without the skipped ones
        "median_ms": medians[0], "p20_ms": quantile([row[0] for row in kept], 0.2),
        "p80_ms": quantile([row[0] for row in kept], 0.8),
        "tokens_per_second": a.b * a.t / medians[0] * 1e3, "device": a.device,
        "peak_rss_mib": peak_rss_mib(),
        "vocab_size": a.vocab_size, "attention": a.attention, "optimizer": trainer.optimizer_name,
        "compiled": a.compile, "forward_ms": medians[1], "backward_ms": medians[2],
        "update_ms": medians[3],
    }
    peak = "%.0f MiB" % result["peak_rss_mib"]
    if a.device == "cuda":
        result["tensor_peak_mib"] = torch.cuda.max_memory_allocated() / (1 << 20)
        peak = "%.0f MiB on the GPU" % result["tensor_peak_mib"]
    if a.precision == "bf16":
        result["bf16_mode"] = a.bf16_mode
    print("median ms: step %.2f forward %.2f backward %.2f update %.2f | %.1f tokens/s | "
          "peak %s" % (*medians, result["tokens_per_second"], peak))
    if a.json:
        write(a.json, json.dumps(result) + "\n")


if __name__ == "__main__":
    with checked_output():
        main()
