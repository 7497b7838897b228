#!/usr/bin/env python3
"""Random config.json files of every family: what transformers makes of them, and what we do.

  config_cases.py --bin-dir build/default/bin [--cases 2000] [--seed 1] [--family llama]... [--keep FOLDER]

Each case is a tiny model of random sizes with random weights, whose config.json has a few random
changes: keys of transformers (tests/interop/config_keys.json) with values that are not their default,
rotary positions and windows as version 4 and 5 of transformers write them, aliases, keys left out or
null, keys that nobody knows. transformers reads the folder and computes logits, and in train mode
gradients (with dropout off, since nobody draws its numbers). `probe` must give the same, or refuse in
one sentence of at most 300 characters that names the file and a key. Every fourth model that is
accepted is written again by `convert`, and transformers must find the same model in it, with the same
dropout.

--store keeps a few of them with what transformers understood (tests/interop/config_cases.json, with --cases 30),
which `models_test "[config_cases]"` holds our reader against without Python.

Prints the counts by family and verdict, the keys that were refused, and every case that differs. Run
by hand, with a python that has torch, transformers and safetensors. Exit codes: 0 no difference, 1 a
difference, 2 wrong use.
"""
import argparse
import collections
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from random_configs import DROPOUTS, FAMILIES, KEYS, random_case

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
LOGITS, GRADIENT = 2e-5, 1e-4  # relative to the largest logit from 1 on; relative l2, of ill-conditioned models
LONGEST_REFUSAL = 300


def filled(config, seed):
    """The model that transformers makes, with random weights that tell every mistake."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.normal_(0.0 if name.endswith("bias") else 1.0, 0.2)
            else:
                p.normal_(0.0, 1.0 / min(p.shape) ** 0.5)
    return model


def window_of(config):
    """Tokens that attention sees in the layers that have a window; 0 if none has."""
    window = getattr(config, "sliding_window", None) or 0
    types = getattr(config, "layer_types", None)
    slides = "sliding_attention" in types if types else True
    return window if slides else 0


def effective(model):
    """What a configuration decides, as transformers understood it."""
    config, family = model.config, model.config.model_type
    found = {"layers": config.num_hidden_layers, "heads": config.num_attention_heads, "width": config.hidden_size,
             "context": config.max_position_embeddings, "tied": bool(config.tie_word_embeddings),
             "window": window_of(config), "padding": model.get_input_embeddings().padding_idx}
    if family in ("gpt2", "gptj"):
        found["dropout"] = [config.embd_pdrop, config.attn_pdrop, config.resid_pdrop]
    else:
        hidden = getattr(config, "hidden_dropout", 0.0) if family == "gpt_neox" else 0.0
        found["dropout"] = [hidden, config.attention_dropout, hidden]
        base = model.gpt_neox if family == "gpt_neox" else model.model
        found["frequencies"] = base.rotary_emb.inv_freq.tolist()
    return found


def file_name(name, family):  # of a parameter
    return name.replace("lm_head", "embed_out") if family == "gpt_neox" else name


def save(model, folder, family):
    save_file({file_name(name, family): p.detach().clone().contiguous() for name, p in model.named_parameters()},
              folder / "model.safetensors", metadata={"format": "pt"})


def reference(model, ids, dtype=torch.float64):
    """Logits in eval mode, gradients in train mode with dropout off."""
    model.to(dtype).eval()
    with torch.no_grad():
        logits = model(ids[None, :-1]).logits[0]
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    model.zero_grad()
    F.cross_entropy(model(ids[None, :-1], use_cache=False).logits[0], ids[1:]).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()  # or a later conversion of the model would convert these
    return logits, gradients


def rounded_references(model, ids):
    """What float32 rounding moves: the computation in float32, and in float64 with each weight moved by up
    to half the last bit that float32 has. Deep models of width 4 move their gradients by 1e-3 so."""
    state = {name: value.double() for name, value in model.state_dict().items()}
    found = [reference(model, ids, torch.float32)]
    for seed in range(4):
        numbers = torch.Generator().manual_seed(seed)
        model.double().load_state_dict(state)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + (2 * torch.rand(p.shape, generator=numbers, dtype=torch.float64) - 1) * 2.0**-24)
        found.append(reference(model, ids))
    return found


def difference(dump, logits, gradients, family, rounded):
    """What differs, in words; empty if nothing does. `rounded()` gives rounded_references: where these are
    far from the reference, so may ours be."""
    ours = load_file(dump)
    far = (ours["logits"][0].double() - logits).abs().max().item()
    if not far <= LOGITS * max(1.0, logits.abs().max().item()) and not (
            far <= 4 * max((moved.double() - logits).abs().max().item() for moved, _ in rounded())):
        return f"logits differ by {far:.3g}"
    largest = max(gradient.norm() for gradient in gradients.values())
    for real, gradient in gradients.items():
        name = file_name(real, family)
        names = [n for n in (f"grad.{name}", f"grad.{name.removeprefix('transformer.')}",
                             f"grad.{name.removeprefix('gpt_neox.')}") if n in ours]
        if not names:
            return f"no gradient of {name}"
        size = max(gradient.norm(), 1e-3 * largest)
        far = (ours[names[0]].double() - gradient).norm() / size
        if not far.item() <= GRADIENT and not (
                far <= 4 * max((moved[real].double() - gradient).norm() / size for _, moved in rounded())):
            return f"the gradient of {name} differs by {far.item():.3g}"
    return ""


def call(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=120)


class Runner:
    def __init__(self, programs, folder):
        self.programs, self.folder = Path(programs), Path(folder)
        self.verdicts = collections.defaultdict(collections.Counter)
        self.refused = collections.Counter()
        self.faults = []
        self.stored = []

    def fault(self, family, seed, config, text):
        self.verdicts[family]["different"] += 1
        self.faults.append(f"{family} {seed}: {text}\n    {json.dumps(config)}")
        print(self.faults[-1], flush=True)

    def case(self, family, seed):
        config, pick = random_case(family, seed)
        model_folder = self.folder / "model"
        shutil.rmtree(model_folder, ignore_errors=True)
        model_folder.mkdir()
        (model_folder / "config.json").write_text(json.dumps(config))
        try:
            made = AutoConfig.from_pretrained(model_folder)
            if made.vocab_size * made.hidden_size * made.num_hidden_layers > 1e5:
                raise ValueError("a size was left out, and the default is that of a large model")
            model = filled(made, seed)
            save(model, model_folder, family)
            length = pick.randint(2, min(made.max_position_embeddings, 64))  # a context left out may be 131,072
            if (window := window_of(made)) and pick.random() < 0.8:  # longer ones are refused
                length = min(length, window)
            ids = torch.randint(0, made.vocab_size, (length + 1,), generator=torch.Generator().manual_seed(seed))
            logits, gradients = reference(model, ids)
        except Exception:  # not a model of transformers
            model = None
            save_file({"none": torch.zeros(1)}, model_folder / "model.safetensors")
            ids, length = torch.arange(3), 2
        tokens, dump = self.folder / "tokens.bin", self.folder / "dump.st"
        tokens.write_bytes(b"".join(int(i).to_bytes(2, "little") for i in ids))
        dump.unlink(missing_ok=True)
        ours = call(self.programs / "probe", "--model", model_folder, "--tokens", tokens, "--seq", length,
                    "--threads", 1, "--dump", dump)
        if ours.returncode == 2:
            return self.refusal(family, seed, config, ours.stderr, model is not None)
        if ours.returncode != 0:
            return self.fault(family, seed, config, f"exit code {ours.returncode}: {ours.stderr.strip()}")
        if model is None:
            self.verdicts[family]["accepted here alone"] += 1
            return None
        if text := difference(dump, logits, gradients, family, functools.cache(lambda: rounded_references(model, ids))):
            return self.fault(family, seed, config, text)
        self.verdicts[family]["equal"] += 1
        self.stored.append({"config": config, "is": effective(model)})
        if seed % 4 == 0:
            self.export(family, seed, config, made, model_folder, ids, logits)
        return None

    def refusal(self, family, seed, config, text, known):
        line = text.strip().splitlines()[-1] if text.strip() else ""
        said = re.sub(r"\S*/model/", "model/", line)
        if len(said) > LONGEST_REFUSAL or not line.startswith("probe: error: "):
            return self.fault(family, seed, config, f"a refusal that is none: {text.strip()}")
        key = (re.findall(r'"(\w+)"', said) or ["(sizes)"])[0]
        self.verdicts[family]["refused" if known else "refused by both"] += 1
        if known:
            self.refused[key] += 1
            if key != "(sizes)":
                self.stored.append({"config": config, "refused": key})
        return None

    def export(self, family, seed, config, made, folder, ids, logits):
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        done = call(self.programs / "convert", "--input", folder, "--output", out)
        if done.returncode != 0:
            return self.fault(family, seed, config, f"convert: {done.stderr.strip()}")
        again = AutoConfig.from_pretrained(out)
        for key in DROPOUTS + ("sliding_window", "layer_types", "pad_token_id", "max_position_embeddings"):
            before, after = getattr(made, key, None), getattr(again, key, None)
            if key == "pad_token_id" and None not in (before, after):
                before, after = before % made.vocab_size, after % made.vocab_size  # PyTorch counts from the end
            if key == "layer_types" and after is None and set(before or ()) <= {"full_attention"}:
                before = None  # what a family without windows has anyway
            if key in KEYS[family] and before != after:
                return self.fault(family, seed, config, f"the export has {key} {after}")
        try:
            AutoModelForCausalLM.from_pretrained(folder)
        except Exception:  # settings of generation that transformers refuses when it opens a folder
            return None
        model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float64).eval()
        with torch.no_grad():
            far = (model(ids[None, :-1]).logits[0] - logits).abs().max().item()
        if not far <= LOGITS * max(1.0, logits.abs().max().item()):
            return self.fault(family, seed, config, f"logits of the export differ by {far:.3g}")
        self.verdicts[family]["exports equal"] += 1
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin-dir", required=True, type=Path)
    parser.add_argument("--cases", type=int, default=2000, help="for each family")
    parser.add_argument("--seed", type=int, default=1, help="number of the first case")
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--store", type=Path, help="write the cases and what transformers made of them to this file")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave the last case there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        runner = Runner(options.bin_dir, folder)
        for family in options.family or FAMILIES:
            for seed in range(options.seed, options.seed + options.cases):
                runner.case(family, seed)
            print(f"{family:10}", dict(runner.verdicts[family]), flush=True)
    if options.store:
        lines = ",\n".join(json.dumps(case) for case in runner.stored)
        options.store.write_text(f"[\n{lines}\n]\n")
    print("refused keys:", dict(runner.refused.most_common()))
    print(f"{len(runner.faults)} differences")
    return 1 if runner.faults else 0


if __name__ == "__main__":
    sys.exit(main())
