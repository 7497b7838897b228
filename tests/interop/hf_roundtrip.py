#!/usr/bin/env python3
"""Check, against Hugging Face transformers, that models pass both ways unharmed.

  hf_roundtrip.py --bin-dir build/default/bin [--trained OUTPUT/model] [--keep FOLDER]

(a) transformers writes random models (F32, BF16, sharded); our `probe` must compute its logits,
    loss and gradients, and `evaluate` its loss on many sequences. (b) Our `convert` writes them in
    f32, bf16 and f16; transformers must open the result and find the same weights and logits. (c)
    Our tokenizers give AutoTokenizer's ids. (d) With --trained, transformers opens a
    model that train_gpt2 exported, and its tokenizer. (e) The masked losses of the project's
    fixtures are those of labels of -100.

Run by hand, with a python that has torch, transformers and safetensors. The reference is
transformers in float64. Exit codes: 0 all passed, 1 a check failed, 2 wrong use.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local: never look a name up

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from transformers import (AutoModelForCausalLM, GPT2Config, GPTJConfig, GPTNeoXConfig, LlamaConfig,
                          MistralConfig, Qwen2Config, Qwen3Config)

from checks import Checks, call
from tokenizer_checks import check_bpe_tokenizers, check_small_tokenizers, check_tokenizer

LOGITS, LOSS, GRADIENT = 2e-5, 1e-5, 1e-5  # max abs, abs, relative l2
DTYPES = {  # dtype, its unit roundoff, its smallest step, relative l2 that it may cost the logits
    "f32": (torch.float32, 0.0, 0.0, 0.0),
    "bf16": (torch.bfloat16, 2.0**-8, 0.0, 2e-2),
    "f16": (torch.float16, 2.0**-11, 2.0**-24, 2e-3),
}


def gpt2(layers, heads, width, vocab, context):
    end = vocab - 1
    return GPT2Config(n_layer=layers, n_head=heads, n_embd=width, vocab_size=vocab,
                      n_positions=context, bos_token_id=end, eos_token_id=end,
                      resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def llama(kind, heads, shared, width, inner, **more):
    """A configuration of one of the families that are made like Llama."""
    return kind(num_hidden_layers=2, num_attention_heads=heads, num_key_value_heads=shared,
                hidden_size=width, intermediate_size=inner, vocab_size=509,
                max_position_embeddings=64, bos_token_id=1, eos_token_id=2, **more)


def rope(**parameters):
    """The keys for rotary positions, as this version of transformers has them."""
    if int(transformers.__version__.split(".")[0]) >= 5:
        return {"rope_parameters": parameters}
    return {"rope_theta": parameters.pop("rope_theta"), "rope_scaling": parameters}


def random_model(seed, config):
    """Every parameter is far from its usual start (biases 0, gains 1), so that one which is
    forgotten, swapped or transposed shows."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.normal_(0.0 if name.endswith("bias") else 1.0, 0.1)
            else:  # embeddings are [n, width], Conv1D weights [in, out], Linear's [out, in]
                table = name.endswith(("wte.weight", "wpe.weight", "embed_tokens.weight", "embed_in.weight"))
                inputs = p.shape[0] if config.model_type == "gpt2" else p.shape[1]
                p.normal_(0.0, (1.5 / p.shape[1]**0.5) if table else 0.7 / inputs**0.5)
    return model


def open_model(checks, name, folder):
    """The folder as transformers reads it, widened to float64; None (a failed check) if it cannot
    or if a weight is missing or unknown."""
    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    except Exception as error:  # whatever transformers says about our files is the finding
        checks.result(False, f"{name}: transformers cannot open it: {str(error).splitlines()[0]}")
        return None
    wrong = {key: sorted(map(str, info.get(key) or ())) for key in
             ("missing_keys", "unexpected_keys", "mismatched_keys")}
    if getattr(model.config, "bias", True) is False:  # then they are zeros
        wrong["missing_keys"] = [key for key in wrong["missing_keys"] if not key.endswith(".bias")]
    wrong = {key: names for key, names in wrong.items() if names and names != ["lm_head.weight"]}
    if not checks.same(f"{name}: weights missing or unknown", wrong, {}):
        return None
    return model.double().eval()


def write_tokens(path, vocab, count, seed):
    """`count` random ids as headerless little-endian uint16; returns them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab, (count,), generator=generator)
    path.write_bytes(b"".join(int(i).to_bytes(2, "little") for i in ids))
    return ids


def weights_of(model):
    """Names as in files: those of the hub's gpt2 have no prefix, and GPT-NeoX's head has one of its own. A tied
    head is not named twice."""
    kind = model.config.model_type
    prefix = "transformer." if kind == "gpt2" else ""
    renamed = {"lm_head.weight": "embed_out.weight"} if kind == "gpt_neox" else {}
    return {renamed.get(name, name).removeprefix(prefix): p for name, p in model.named_parameters()}


def reference(model, ids, batch, seq):
    """Logits, loss and gradients in float64. The loss is not the model's own, since transformers
    takes that in float32."""
    model.zero_grad()
    logits = model(ids[:-1].view(batch, seq), use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), ids[1:])
    loss.backward()
    gradients = {name: p.grad for name, p in weights_of(model).items()}
    return logits.detach(), loss.item(), gradients


def relative(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-300)).item()


def max_abs(got, want):
    return (got.double() - want.double()).abs().max().item()


def check_probe(checks, name, programs, folder, model, batch, seq, bound=LOGITS, gradient=GRADIENT):
    """Runs probe on `folder` and compares everything it dumps with `model` in float64."""
    tokens, dump = folder.parent / f"{folder.name}.bin", folder.parent / f"{folder.name}.dump"
    ids = write_tokens(tokens, model.config.vocab_size, batch * seq + 1, seed=7)
    dump.unlink(missing_ok=True)
    if not call(checks, name, programs / "probe", "--model", folder, "--tokens", tokens, "--batch",
                batch, "--seq", seq, "--dump", dump):
        return
    try:
        got = load_file(dump)
    except Exception as error:
        checks.result(False, f"{name}: the dump cannot be read: {error}")
        return
    logits, loss, gradients = reference(model, ids, batch, seq)
    if getattr(model.config, "bias", True) is False:
        gradients = {key: value for key, value in gradients.items() if not key.endswith(".bias")}
    wanted = {"logits", "loss"} | {f"grad.{key}" for key in gradients}
    if not checks.same(f"{name}: tensors missing from the dump", sorted(wanted - set(got)), []):
        return
    checks.same(f"{name}: unknown gradients in the dump",
                sorted(key for key in set(got) - wanted if key.startswith("grad.")), [])
    if checks.same(f"{name}: shape of logits", tuple(got["logits"].shape), tuple(logits.shape)):
        checks.bound(f"{name}: logits, max abs", max_abs(got["logits"], logits), bound)
    checks.bound(f"{name}: loss, abs", abs(got["loss"].double().mean().item() - loss), LOSS)
    errors = {}
    for key, want in gradients.items():
        have = got[f"grad.{key}"]
        if have.shape != want.shape:
            checks.same(f"{name}: shape of grad.{key}", tuple(have.shape), tuple(want.shape))
            return
        errors[key] = relative(have, want)
    at = max(errors, key=lambda key: (math.isnan(errors[key]), errors[key]))
    checks.bound(f"{name}: gradients, worst relative l2 of {len(gradients)} ({at})",
                 errors[at], gradient)


def check_evaluate(checks, name, programs, folder, model):
    """The mean loss over consecutive sequences of the model's context, and a shorter last one."""
    length = model.config.max_position_embeddings
    count = 5 * length + length // 2 + 1
    tokens = folder.parent / f"{name}-evaluate.bin"
    ids = write_tokens(tokens, model.config.vocab_size, count, seed=99)
    total = 0.0
    with torch.no_grad():
        for start in range(0, count - 1, length):
            end = min(start + length, count - 1)
            logits = model(ids[start:end].unsqueeze(0), use_cache=False).logits[0]
            total += F.cross_entropy(logits, ids[start + 1:end + 1], reduction="sum").item()
    command = [programs / "evaluate", "--model", folder, "--data", tokens, "--device", "cpu"]
    if not call(checks, f"{name} evaluate", *command):
        return
    got = json.loads(subprocess.check_output([*command, "--json"], text=True))
    checks.same(f"{name} evaluate: tokens", got["tokens"], count - 1)
    checks.bound(f"{name} evaluate: loss", abs(got["loss"] - total / (count - 1)), LOSS)


def check_convert(checks, name, programs, source, model, dtype, exact=False):
    """Runs convert on `source`, opens the result and compares it with `model` (the source).
    `exact`: the source's values fit the dtype, so nothing may change."""
    output = source.parent / f"{source.name}-{dtype}"
    if not call(checks, name, programs / "convert", "--input", source, "--output", output,
                "--dtype", dtype):
        return
    stored = {str(t.dtype).removeprefix("torch.") for file in output.glob("*.safetensors")
              for t in load_file(file).values() if t.is_floating_point()}
    kind, unit, step, cost = DTYPES[dtype]
    checks.same(f"{name}: stored dtype", stored, {str(kind).removeprefix("torch.")})
    opened = open_model(checks, name, output)
    if opened is None:
        return
    unit, step, cost = (0.0, 0.0, 0.0) if exact else (unit, step, cost)
    worst, ours = 0.0, weights_of(opened)
    for key, want in weights_of(model).items():
        # In units of the error that rounding to nearest may make; ties may go either way.
        allowed = (want.abs() * unit).clamp_min(step)
        error = (ours[key] - want).abs()
        worst = max(worst, (error / allowed.clamp_min(1e-30)).nan_to_num(1e30).max().item())
    checks.bound(f"{name}: weights, worst error over what {dtype} rounding allows", worst, 1.0)
    ids = write_tokens(source.parent / "convert.bin", model.config.vocab_size, 65, seed=8)[:64]
    with torch.no_grad():
        want, got = (m(ids.view(2, 32), use_cache=False).logits for m in (model, opened))
    checks.bound(f"{name}: logits, relative l2", relative(got, want), cost)


def check_made_models(checks, programs, work):
    shapes = {
        "small": gpt2(2, 3, 48, 512, 64), "odd": gpt2(3, 1, 20, 509, 33),
        "llama": llama(LlamaConfig, 4, 2, 48, 80, tie_word_embeddings=False),
        "llama3": llama(LlamaConfig, 6, 1, 48, 70, head_dim=16, tie_word_embeddings=True,
                        **rope(rope_theta=5e5, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                               high_freq_factor=4.0, original_max_position_embeddings=16)),
        "mistral": llama(MistralConfig, 4, 4, 32, 96, sliding_window=None),
        "qwen2": llama(Qwen2Config, 4, 2, 40, 72, tie_word_embeddings=True),
        "qwen3": llama(Qwen3Config, 4, 2, 40, 72, head_dim=12, tie_word_embeddings=True),
        "gptj": GPTJConfig(n_layer=2, n_head=4, n_embd=48, rotary_dim=8, vocab_size=509, n_positions=64,
                           bos_token_id=1, eos_token_id=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
        "gpt_neox": GPTNeoXConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=64,
                                  intermediate_size=80, vocab_size=509, max_position_embeddings=64,
                                  bos_token_id=1, eos_token_id=2)}
    cases = [  # name, shape, saved as, largest file, batch, seq, dtypes to convert to
        ("f32", "small", torch.float32, "1GB", 2, 16, ("f32", "bf16", "f16")),
        ("f32-full", "small", torch.float32, "1GB", 3, 64, ()),
        ("f32-odd", "odd", torch.float32, "1GB", 3, 17, ()),
        ("bf16", "small", torch.bfloat16, "1GB", 2, 16, ("f32", "bf16")),
        ("sharded", "small", torch.float32, "100KB", 2, 16, ("f32",)),
        ("llama", "llama", torch.float32, "1GB", 2, 16, ("f32", "bf16", "f16")),
        ("llama-sharded", "llama", torch.float32, "100KB", 2, 64, ("f32",)),
        ("llama3", "llama3", torch.float32, "1GB", 2, 64, ("f32",)),
        ("llama3-bf16", "llama3", torch.bfloat16, "1GB", 2, 16, ("f32", "bf16")),
        ("llama3-f16", "llama3", torch.float16, "1GB", 2, 16, ("f32",)),
        ("mistral", "mistral", torch.float32, "1GB", 3, 17, ("f32",)),
        ("qwen2", "qwen2", torch.float32, "1GB", 3, 33, ("f32",)),
        ("qwen3", "qwen3", torch.float32, "1GB", 2, 64, ("f32", "bf16")),
        ("qwen3-sharded", "qwen3", torch.bfloat16, "50KB", 2, 16, ("f32",)),
        ("gptj", "gptj", torch.float32, "1GB", 2, 64, ("f32", "bf16", "f16")),
        ("gptj-f16", "gptj", torch.float16, "1GB", 3, 17, ("f32",)),
        ("gpt_neox", "gpt_neox", torch.float32, "1GB", 2, 64, ("f32", "bf16")),
        ("gpt_neox-sharded", "gpt_neox", torch.float32, "100KB", 3, 17, ("f32",)),
    ]
    for number, (name, shape, dtype, shard, batch, seq, targets) in enumerate(cases):
        folder = work / name
        random_model(number, shapes[shape]).to(dtype).save_pretrained(folder,
                                                                       max_shard_size=shard)
        sharded = (folder / "model.safetensors.index.json").exists()
        if not checks.same(f"{name}: transformers wrote shards", sharded, shard != "1GB"):
            continue
        model = open_model(checks, name, folder)
        if model is None:
            continue
        check_probe(checks, f"{name} probe", programs, folder, model, batch, seq)
        check_evaluate(checks, name, programs, folder, model)
        for target in targets:
            check_convert(checks, f"{name} to {target}", programs, folder, model, target,
                          exact=target == "f32" or dtype == torch.bfloat16)


def check_trained(checks, programs, trained, work):
    # A link keeps the files that the checks write out of the folder of the run.
    folder = work / "trained"
    folder.symlink_to(trained.resolve(), target_is_directory=True)
    model = open_model(checks, "trained", folder)
    if model is None:
        return
    context, vocab = model.config.max_position_embeddings, model.config.vocab_size
    seq = min(64, context)
    ids = write_tokens(work / "scale.bin", vocab, seq, seed=7)
    with torch.no_grad():
        scale = model(ids.view(1, seq), use_cache=False).logits.abs().max().item()
    # Trained logits can be in the tens, where one float32 step is already near the bound, and so are the
    # gradients behind them.
    check_probe(checks, "trained probe", programs, folder, model, 1, seq,
                bound=LOGITS * max(1.0, scale), gradient=GRADIENT * max(1.0, scale / 8))
    if (folder / "vocab.json").exists():
        check_tokenizer(checks, programs, folder, vocab, work)
    else:
        print("skip  tokenizer: no vocab.json in the folder")


def check_masked_losses(checks):
    """Losses and gradients of the project's fixtures, where labels of -100 do not count. Transformers computes this
    loss in float32."""
    for folder in sorted((Path(__file__).resolve().parents[1] / "data/fixtures").iterdir()):
        ref = folder / "ref/ref.json"
        cases = json.loads(ref.read_text()).get("masked", []) if ref.exists() else []
        if not cases:
            continue
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        tensors = load_file(folder / "ref/ref.safetensors")
        ids, targets = tensors["input_ids"].long(), tensors["targets"].long()
        loss_apart = norm_apart = 0.0
        for case in cases:
            counts = torch.tensor([mark == "1" for mark in case["mask"]]).view_as(targets)
            model.zero_grad()
            logits = model(ids, use_cache=False).logits
            loss = model.loss_function(logits=logits, labels=None, vocab_size=logits.size(-1),
                                       shift_labels=targets.masked_fill(~counts, -100))
            loss.backward()
            norm = sum(p.grad.square().sum().item() for p in model.parameters()) ** 0.5
            loss_apart = max(loss_apart, abs(loss.item() - case["loss"]))
            norm_apart = max(norm_apart, abs(norm / case["grad_norm"] - 1))
        checks.bound(f"{folder.name} masked: loss with {len(cases)} masks", loss_apart, 1e-6)
        checks.bound(f"{folder.name} masked: norm of the gradients", norm_apart, GRADIENT)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--bin-dir", type=Path, default=Path("build/default/bin"))
    p.add_argument("--trained", type=Path, metavar="DIR", help="an OUTPUT/model folder")
    p.add_argument("--keep", type=Path, metavar="DIR", help="a new folder for the files, kept")
    a = p.parse_args()
    for name in ("probe", "convert", "evaluate"):
        if not (a.bin_dir / name).exists():
            p.error(f"no {name} in {a.bin_dir}: build the project or give --bin-dir")
    if a.trained and not (a.trained / "config.json").exists():
        p.error(f"no config.json in {a.trained}")
    if a.keep:
        try:
            a.keep.mkdir(parents=True)
        except OSError as error:
            p.error(f"cannot make --keep {a.keep}: {error.strerror}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    checks, programs = Checks(), a.bin_dir.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        work = (a.keep or Path(scratch)).resolve()
        check_made_models(checks, programs, work)
        check_small_tokenizers(checks, programs, work)
        check_bpe_tokenizers(checks, programs, work)
        check_masked_losses(checks)
        if a.trained:
            check_trained(checks, programs, a.trained, work)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
