#!/usr/bin/env python3
"""Check, against Hugging Face's PEFT, that no key of an adapter is ignored in silence.

  adapter_configs.py --bin-dir build/default/bin [--cases 500] [--seed 1]

For random adapters of tiny models: PEFT makes some by a random LoraConfig, and then some keys of adapter_config.json
and some tensors are changed. PEFT in float64 opens what came out; `probe --adapter` and `convert --merge` must compute
its logits or refuse the adapter in one sentence. Where PEFT itself refuses, there is nothing to compare with.

Prints the verdicts and the refusals by key. Run by hand, with a python that has torch, transformers and peft. Exit
codes: 0 no difference, 1 a difference or a refusal that is no sentence, 2 wrong use.
"""
import argparse
import collections
import copy
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local: never look a name up

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPTJConfig, GPTNeoXConfig, LlamaConfig, Qwen2Config

from hf_roundtrip import gpt2, llama, random_model

LENGTH, BOUND = 12, 2e-4
small = dict(n_layer=2, n_head=2, n_embd=16, vocab_size=61, n_positions=32)
FAMILIES = {
    "gpt2": (gpt2(2, 2, 16, 61, 32), "transformer.h", ["c_attn", "c_proj", "c_fc"], "lm_head", "wte"),
    "llama": (llama(LlamaConfig, 2, 1, 16, 24), "model.layers",
              ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], "lm_head", "embed_tokens"),
    "qwen2": (llama(Qwen2Config, 2, 1, 16, 24), "model.layers", ["q_proj", "v_proj", "down_proj"], "lm_head",
              "embed_tokens"),
    "gptj": (GPTJConfig(rotary_dim=4, bos_token_id=60, eos_token_id=60, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, **small), "transformer.h",
             ["q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"], "lm_head", "wte"),
    "gpt_neox": (GPTNeoXConfig(num_hidden_layers=2, num_attention_heads=2, hidden_size=16, intermediate_size=24,
                               vocab_size=61, max_position_embeddings=32, rotary_pct=0.5, bos_token_id=0,
                               eos_token_id=0), "gpt_neox.layers",
                 ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"], "embed_out", "embed_in")}


# Keys of which most values are used or change nothing; most cases have no others.
SUPPORTED = {"use_rslora", "lora_alpha", "lora_dropout", "fan_in_fan_out", "target_modules", "exclude_modules",
             "layers_to_transform", "layers_pattern", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
             "inference_mode", "revision", "auto_mapping", "megatron_core", "qalora_group_size", "ensure_weight_tying",
             "peft_version", "regex", "init_lora_weights"}


def made_with(r, blocks, layers, head, table):
    """Random arguments of a LoraConfig that get_peft_model is likely to take."""
    targets = r.sample(layers, r.randint(1, len(layers)))
    config = dict(r=r.randint(1, 4), lora_alpha=r.choice([1, 3, 8.5, 16]), target_modules=targets,
                  task_type=r.choice(["CAUSAL_LM", "CAUSAL_LM", None]))
    some = {
        "use_rslora": lambda: True, "use_dora": lambda: True, "lora_bias": lambda: True, "bias": lambda: "all",
        "modules_to_save": lambda: [head], "lora_dropout": lambda: 0.3,
        "rank_pattern": lambda: {targets[0]: 2}, "alpha_pattern": lambda: {targets[0]: 5},
        "layers_to_transform": lambda: r.choice([0, [1], [0, 1]]), "exclude_modules": lambda: [r.choice(targets)],
        "trainable_token_indices": lambda: [3, 5], "init_lora_weights": lambda: r.choice(
            [False, "gaussian", "orthogonal"]), "other start": lambda: r.choice(
                ["pissa", "pissa_niter_2", "olora", "mica"]),
        "head": lambda: None, "table": lambda: None, "regex": lambda: None}
    known = SUPPORTED if r.random() < 0.8 else some
    for key in r.sample([key for key in some if key in known], r.choice([0, 0, 1, 1, 2])):
        if key in ("head", "table"):
            config["target_modules"] = targets + [head if key == "head" else table]
        elif key == "other start":
            config["init_lora_weights"] = some[key]()
        elif key == "regex":
            config["target_modules"] = rf".*\.({'|'.join(targets)})"
        else:
            config[key] = some[key]()
    if isinstance(config["target_modules"], str):
        config.pop("layers_to_transform", None)
    return config


def changes(r, config, blocks, layers, head):
    """Random other values of keys of adapter_config.json."""
    targets = config["target_modules"]
    names = targets if isinstance(targets, list) else layers
    values = {
        "use_rslora": [True, False, None], "lora_alpha": [0, -2, 2.5, 32, None, "8"], "r": [1, 3, 0, 2.0, None],
        "lora_dropout": [0.0, 0.9, 1.0], "fan_in_fan_out": [True, False], "bias": ["none", "all", "lora_only", None],
        "lora_bias": [True], "use_dora": [True], "modules_to_save": [[head], [], None],
        "target_modules": [names[:1], names[1:], layers, r".*", rf".*\.{names[0]}", "all-linear", "ALL-Linear",
                           f".*{names[0]}", [f"{blocks}.0.{n}" for n in names], None, [], rf"{blocks}\.0\..*"],
        "exclude_modules": [names[:1], ["nothing"], r".*\.1\..*", "nothing", []],
        "layers_to_transform": [0, 1, [0], [1], [0, 1], [], 7], "layers_pattern": ["h", "layers", ["layers", "h"], "x"],
        "rank_pattern": [{names[0]: 1}, {"nothing": 3}], "alpha_pattern": [{names[0]: 1}, {"nothing": 3}],
        "init_lora_weights": [False, None, True, "gaussian", "Gaussian", "orthogonal", "eva", "pissa", "pissa_niter_4",
                              "olora", "corda", "loftq", "lora_ga", "mica", "unknown"],
        "loftq_config": [{"loftq_bits": 4, "loftq_iter": 1}], "eva_config": [{"rho": 1.0}],
        "corda_config": [{"corda_method": "ipm"}], "lora_ga_config": [{"scale": "unit"}],
        "trainable_token_indices": [[1]], "layer_replication": [[[0, 2], [1, 2]]],
        "target_parameters": [["mlp.weight"], []], "task_type": ["CAUSAL_LM", None, "SEQ_CLS", "FEATURE_EXTRACTION"],
        "peft_type": ["LORA", "IA3", "ADALORA"], "inference_mode": [True, False], "revision": ["main"],
        "auto_mapping": [{"base_model_class": "X"}], "megatron_config": [{"a": 1}], "megatron_core": ["x"],
        "use_qalora": [True], "qalora_group_size": [8], "velora_config": [{}], "monteclora_config": [{}],
        "kasa_config": [{}], "use_bdlora": [{"nblocks": 2, "match_strict": False}], "arrow_config": [{"top_k": 1}],
        "alora_invocation_tokens": [[1, 2]], "ensure_weight_tying": [True], "peft_version": ["99.0"],
        "a_key_of_tomorrow": [True, 3, None]}
    known = SUPPORTED if r.random() < 0.8 else values
    chosen = {key: r.choice(values[key])
              for key in r.sample([key for key in values if key in known], r.choice([0, 1, 1, 1, 2, 3]))}
    if r.random() < 0.05:
        chosen[r.choice(["r", "lora_alpha", "task_type", "bias", "init_lora_weights", "target_modules"])] = ...
    return chosen


def logits_of_peft(base, folder, ids):
    model = PeftModel.from_pretrained(copy.deepcopy(base), folder).double().eval()
    with torch.no_grad():
        return model(ids).logits[0]


def key_of(said):
    """What a refusal is about: a key of adapter_config.json, or a kind of tensor."""
    for pattern in (r"adapter_config\.json: (\S+) is ", r"is of a layer that (\S+) of", r'tensor "[^"]*" is (an? [^;,]*)',
                    r"it (changes) ", r"tensor \S+ (has shape|is missing)", r"has (shapes) "):
        if found := re.search(pattern, said):
            return found[1]
    return said.strip()[-60:]


class Run:
    def __init__(self, binaries, folder):
        self.binaries, self.folder = binaries, folder
        self.verdicts, self.keys, self.bad = collections.Counter(), collections.Counter(), []

    def ours(self, *command):
        """The logits, or what was refused."""
        dump = self.folder / "dump"
        dump.unlink(missing_ok=True)
        for program, *flags in command:
            flags = [dump if flag is ... else flag for flag in flags]
            done = subprocess.run([self.binaries / program, *map(str, flags)], text=True, capture_output=True,
                                  stdin=subprocess.DEVNULL)
            if done.returncode:
                if done.returncode not in (1, 2, 3) or done.stderr.count("\n") != 1 or len(done.stderr) > 400:
                    self.bad.append(f"no sentence ({done.returncode}): {done.stderr}")
                return done.stderr
        return load_file(dump)["logits"][0].double()

    def case(self, number, seed, models):
        r = random.Random(f"{seed} {number}")
        torch.manual_seed(r.randrange(1 << 30))
        family = r.choice(list(models))
        base, path = models[family]
        _, blocks, layers, head, table = FAMILIES[family]
        arguments = made_with(r, blocks, layers, head, table)
        adapter, merged = self.folder / "adapter", self.folder / "merged"
        try:
            model = get_peft_model(copy.deepcopy(base), LoraConfig(**arguments))
            with torch.no_grad():
                for name, p in model.named_parameters():
                    if "lora_" in name:
                        p.normal_(0.0, 0.3)
            model.save_pretrained(adapter)
        except Exception:
            self.verdicts["PEFT makes none"] += 1
            return
        config = json.loads((adapter / "adapter_config.json").read_text())
        other = changes(r, config, blocks, layers, head)
        for key, value in other.items():
            if value is ...:
                config.pop(key, None)
            else:
                config[key] = value
        (adapter / "adapter_config.json").write_text(json.dumps(config))
        if r.random() < 0.1:  # a layer less
            tensors = load_file(adapter / "adapter_model.safetensors")
            layer = r.choice(sorted(tensors)).partition(".lora_")[0]
            save_file({n: t for n, t in tensors.items() if not n.startswith(layer + ".")},
                      adapter / "adapter_model.safetensors")
            other["without"] = layer
        ids = torch.randint(0, 61, (1, LENGTH))
        data = self.folder / "ids.bin"
        data.write_bytes(torch.cat([ids[0], ids[0, :1]]).numpy().astype("<u2").tobytes())
        try:
            theirs = logits_of_peft(base, adapter, ids)
        except Exception as error:
            theirs = error
        shape = "--tokens", data, "--seq", LENGTH, "--threads", 1, "--dump", ...
        answers = {"probe": self.ours(("probe", "--model", path, "--adapter", adapter, *shape)),
                   "merge": self.ours(("convert", "--input", path, "--merge", adapter, "--output", merged),
                                      ("probe", "--model", merged, *shape))}
        what = f"case {number}, {family}: {arguments} {other}"
        for way, answer in answers.items():
            if isinstance(answer, str):
                self.verdicts[f"{way}: refused" + (", as by PEFT" if isinstance(theirs, Exception) else "")] += 1
                self.keys[key_of(answer)] += 1
            elif isinstance(theirs, Exception):
                self.verdicts[f"{way}: accepted, and PEFT refuses"] += 1
                print(f"note  {what}: PEFT says {str(theirs)[:150]!r}")
            elif (answer - theirs).abs().max() <= BOUND:
                self.verdicts[f"{way}: equal"] += 1
            else:
                self.verdicts[f"{way}: DIFFERENT"] += 1
                self.bad.append(f"{what}: {way} differs by {(answer - theirs).abs().max():.2g}")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--bin-dir", required=True, type=Path)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder, models = Path(name), {}
        for family, (config, *_) in FAMILIES.items():
            base = random_model(7, config).double()
            path = folder / family
            base.float().save_pretrained(path)
            models[family] = base.double().eval(), path
        run = Run(options.bin_dir.resolve(), folder)
        for number in range(options.first, options.first + options.cases):
            run.case(number, options.seed, models)
    for title, counts in (("verdicts", run.verdicts), ("refusals by key", run.keys)):
        print(f"{title}:")
        for key, count in counts.most_common():
            print(f"  {count:6}  {key}")
    for bad in run.bad:
        print("FAIL ", bad)
    sys.exit(1 if run.bad else 0)


main()
