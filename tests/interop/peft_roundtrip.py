#!/usr/bin/env python3
"""Check, against Hugging Face's PEFT, that LoRA adapters pass both ways and train alike.

  peft_roundtrip.py --bin-dir build/default/bin

For random models of the families and several targets, with PEFT in float64 as the reference: `probe --adapter` on an
adapter of PEFT must compute its logits, its loss and the gradients of A and B; `train_gpt2 --adapter` must follow its
training over 20 updates; PEFT must open the result with the logits that `probe` computes; `evaluate --adapter` must
compute the loss, and `convert --merge` a model with the logits. The model's own file must stay as it is.

With `--int8-base` PEFT's model gets the values to which this script rounds the blocks' matrices, by the definition of
ggml's Q8_0. The logits must also be near those beside the unrounded matrices.

Run by hand, with a python that has torch, transformers and peft. Exit codes: 0 all passed, 1 a check failed, 2 wrong
use.
"""
import argparse
import copy
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local: never look a name up

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPTJConfig, GPTNeoXConfig, LlamaConfig, Qwen2Config

from checks import Checks, call
from hf_roundtrip import gpt2, llama, random_model

STEPS, ROWS, LENGTH, WARMUP = 20, 2, 24, 5
LR, DECAY, BETAS, EPSILON, CLIP = 1e-2, 0.1, (0.9, 0.95), 1e-8, 1.0
BOUND, MERGED, ROUNDED = 1e-5, 2e-5, 0.03


def configs():
    small = dict(n_layer=2, n_head=4, n_embd=64, vocab_size=199, n_positions=64)
    return {
        "gpt2": (gpt2(2, 4, 64, 199, 64), {"all": ["c_attn", "c_proj", "c_fc"], "attention": ["c_attn"]}),
        "llama": (llama(LlamaConfig, 4, 2, 64, 176),
                  {"all": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
                   "q and v": ["q_proj", "v_proj"], "mlp": ["gate_proj", "up_proj", "down_proj"]}),
        "qwen2": (llama(Qwen2Config, 4, 2, 64, 176), {"k and o": ["k_proj", "o_proj"]}),
        "gptj": (GPTJConfig(rotary_dim=8, bos_token_id=198, eos_token_id=198, resid_pdrop=0.0, embd_pdrop=0.0,
                            attn_pdrop=0.0, **small),
                 {"all": ["q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"]}),
        "gpt_neox": (GPTNeoXConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=64, intermediate_size=160,
                                   vocab_size=199, max_position_embeddings=64, rotary_pct=0.5, bos_token_id=0,
                                   eos_token_id=0),
                     {"all": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]})}


def adapted(base, targets, gpt2_layers):
    """The model with random adapters, both of whose matrices count, in float64."""
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=6, target_modules=targets, lora_dropout=0.0,
                                            fan_in_fan_out=gpt2_layers, task_type="CAUSAL_LM"))
    torch.manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_(0.0, 0.1)
                p.copy_(p.float().double())  # as its file has it
    return model.double()


def in_8_bits(weight):
    """A matrix in blocks of 32 elements of a row, each with its largest magnitude / 127 in float16 as scale."""
    rows = F.pad(weight.float(), (0, -weight.shape[1] % 32)).view(weight.shape[0], -1, 32)
    scale = rows.abs().amax(-1, keepdim=True) / 127
    codes = rows * torch.where(scale > 0, 1 / scale, 0)
    codes = torch.sign(codes) * torch.floor(codes.abs() + 0.5)  # ties away from zero
    return (codes.double() * scale.half().double()).view(weight.shape[0], -1)[:, :weight.shape[1]]


def round_blocks(model):
    """Rounds the matrices of the blocks, but not the embeddings and the head."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2 and any(part.isdigit() for part in name.split(".")) and "lora_" not in name:
                p.copy_(in_8_bits(p))
    return model


def loss_of(model, piece):
    logits = model(piece[:-1].view(ROWS, LENGTH)).logits
    return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), piece[1:])


def batch(tokens, step):
    return tokens[step * ROWS * LENGTH:(step + 1) * ROWS * LENGTH + 1]


def train(model, tokens):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LR, betas=BETAS, eps=EPSILON, weight_decay=DECAY)
    losses = []
    for step in range(STEPS):
        _, loss = loss_of(model, batch(tokens, step))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1, (step + 1) / WARMUP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def distance(ours, theirs):
    return (ours.double() - theirs.double()).abs().max().item()


def check(checks, binaries, folder, name, config, targets, int8=False):
    base = random_model(7, config)
    flags = ["--int8-base"] if int8 else []
    path, adapter = folder / f"{name} base", folder / f"{name} adapter"
    base.save_pretrained(path)
    before = (path / "model.safetensors").read_bytes()
    model = adapted(base.double(), targets, config.model_type == "gpt2")
    model.float().save_pretrained(adapter)
    model.double()
    if int8:
        unrounded = copy.deepcopy(model)
        round_blocks(model)
    tokens = torch.randint(0, config.vocab_size, (STEPS * ROWS * LENGTH + 1,), generator=torch.manual_seed(3))
    data, dump = folder / f"{name}.bin", folder / f"{name}.safetensors"
    data.write_bytes(tokens.numpy().astype("<u2").tobytes())

    def probe(adapter):
        shape = "--batch", ROWS, "--seq", LENGTH
        call(checks, name, binaries / "probe", "--model", path, "--adapter", adapter, "--tokens", data, *shape,
             "--dump", dump, *flags)
        return load_file(dump)

    ours = probe(adapter)
    logits, loss = loss_of(model, batch(tokens, 0))
    loss.backward()
    checks.bound(f"{name}: logits", distance(ours["logits"], logits.view_as(ours["logits"])), BOUND)
    checks.bound(f"{name}: loss", distance(ours["loss"], loss), BOUND)
    if int8:
        plain, _ = loss_of(unrounded, batch(tokens, 0))
        checks.bound(f"{name}: relative change of the logits by 8 bits",
                     ((plain - logits).norm() / plain.norm()).item(), ROUNDED)
    gradients = {n.replace(".default", ""): p.grad for n, p in model.named_parameters() if p.grad is not None}
    names = {n for n in ours if n.startswith("grad.")}
    checks.same(f"{name}: trained tensors", names, {"grad." + n for n in gradients})
    checks.bound(f"{name}: gradients", max(
        ((ours["grad." + n].double() - g).norm() / g.norm()).item() for n, g in gradients.items()), BOUND)

    output = folder / f"{name} run"
    call(checks, name, binaries / "train_gpt2", "--model", path, "--adapter", adapter, "--data", data, "--data-order",
         "sequential", "--batch-size", ROWS, "--micro-batch", 1, "--seq-len", LENGTH, "--steps", STEPS, "--lr", LR,
         "--lr-schedule", "constant", "--warmup-steps", WARMUP, "--weight-decay", DECAY, "--grad-clip", CLIP,
         "--val-data", data, "--val-every", 0, "--val-steps", 1, "--sample-tokens", 0, "--precision", "fp32",
         "--output", output, *flags)
    events = map(json.loads, (output / "log.jsonl").read_text().splitlines())
    losses = [event["loss"] for event in events if event["event"] == "train"]
    theirs = train(model, tokens)
    checks.bound(f"{name}: losses of {len(losses)} updates", max(abs(a - b) for a, b in zip(losses, theirs, strict=True)),
                 BOUND)
    checks.same(f"{name}: the model's file", (path / "model.safetensors").read_bytes() == before, True)

    trained = probe(output / "model")
    opened = AutoModelForCausalLM.from_pretrained(path).double()
    opened = PeftModel.from_pretrained(round_blocks(opened) if int8 else opened, output / "model").double()
    with torch.no_grad():
        logits, loss = loss_of(opened, batch(tokens, 0))
    checks.bound(f"{name}: logits of our adapter in PEFT", distance(trained["logits"],
                                                                    logits.view_as(trained["logits"])), BOUND)
    if int8:
        return  # the merged model is one of unrounded matrices
    merged = folder / f"{name} merged"
    if call(checks, name, binaries / "convert", "--input", path, "--merge", output / "model", "--output", merged):
        plain = AutoModelForCausalLM.from_pretrained(merged).double()
        with torch.no_grad():
            checks.bound(f"{name}: logits of the merged model", distance(loss_of(plain, batch(tokens, 0))[0], logits),
                         MERGED)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--bin-dir", required=True, type=Path)
    binaries = parser.parse_args().bin_dir.resolve()
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        for family, (config, choices) in configs().items():
            for name, targets in choices.items():
                check(checks, binaries, Path(folder), f"{family} {name}", config, targets)
            name, targets = next(iter(choices.items()))
            check(checks, binaries, Path(folder), f"{family} {name} beside 8 bits", config, targets, int8=True)
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(1 if checks.failed else 0)


main()
