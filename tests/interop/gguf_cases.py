#!/usr/bin/env python3
"""Random GGUF files: what the gguf package and transformers make of them, and what we do.

  gguf_cases.py --bin-dir build/default/bin [--cases 500] [--seed 1] [--keep FOLDER]

Each case is a tiny Llama, Qwen2 or Qwen3 of random sizes, written by the gguf package with a random
type for each matrix and a few random changes: keys of the architecture left out, added, or with other
values (gguf.constants has them all), tensors left out or too many. The reference is transformers with
the sizes and scalings that the keys mean for llama.cpp, and the values that gguf.dequantize gives.
`convert` must make a folder whose logits are those, or refuse in one sentence of at most 300
characters that names the file.

Prints the counts by architecture and verdict and every case that differs. Run by hand, with a python
that has torch, transformers, safetensors and gguf. Exit codes: 0 no difference, 1 a difference.
"""
import argparse
import collections
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
import gguf
import numpy
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
Type = gguf.GGMLQuantizationType
TYPES = (Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1)
LOGITS = 2e-5  # relative to the largest logit from 1 on
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
# Keys that every architecture may have, by the package. Most change what is computed.
ALL_KEYS = sorted({value for group in vars(gguf.Keys).values() if isinstance(group, type)
                   for value in vars(group).values() if isinstance(value, str) and value.startswith("{arch}.")})


def gguf_name(name):
    name = name.replace("model.embed_tokens", "token_embd").replace("model.norm", "output_norm").replace(
        "lm_head", "output").replace("model.layers.", "blk.")
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def interleaved(weights, heads):
    """Rows of q or k as llama.cpp has them for a Llama."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def in_order(weights, heads):
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


class Case:
    """A file's keys and what they mean to transformers."""

    def __init__(self, architecture, seed):
        pick = self.pick = random.Random(f"{architecture} {seed}")
        self.seed, self.architecture = seed, architecture
        heads = pick.choice((1, 2, 4))
        head = pick.choice((8, 16, 32))
        width = 32 * pick.choice((1, 2))
        shared = pick.choice([n for n in (1, 2, 4) if heads % n == 0])
        self.config = {"model_type": architecture, "hidden_size": width, "num_hidden_layers": pick.randint(1, 2),
                       "num_attention_heads": heads, "num_key_value_heads": shared, "head_dim": head,
                       "intermediate_size": 32 * pick.randint(1, 2), "vocab_size": pick.randint(40, 70),
                       "max_position_embeddings": pick.choice((16, 32)), "rms_norm_eps": 1e-5,
                       "rope_theta": pick.choice((10000.0, 500000.0)),
                       "tie_word_embeddings": pick.random() < 0.5, "bos_token_id": 1, "eos_token_id": 2}
        self.keys = {"block_count": self.config["num_hidden_layers"], "context_length": self.config["max_position_embeddings"],
                     "embedding_length": width, "feed_forward_length": self.config["intermediate_size"],
                     "attention.head_count": heads, "attention.head_count_kv": shared, "attention.key_length": head,
                     "attention.value_length": head, "attention.layer_norm_rms_epsilon": 1e-5,
                     "rope.freq_base": self.config["rope_theta"], "rope.dimension_count": head,
                     "vocab_size": self.config["vocab_size"]}
        self.extra, self.missing = [], []
        self.refusable = False  # a change after which only a refusal is right, or this meaning
        for _ in range(pick.choice((0, 0, 1, 1, 2))):
            pick.choice((self.scale, self.leave_out, self.add_key, self.add_key, self.tensors, self.window))()

    def scale(self):
        factor = self.pick.choice((1.0, 2.0, 4.0))
        kind = self.pick.choice(("linear", "linear", "none", "yarn", None))
        if kind:
            self.keys["rope.scaling.type"] = kind
        self.keys[self.pick.choice(("rope.scaling.factor", "rope.scale_linear"))] = factor
        self.config.pop("rope_scaling", None)
        # As in llama.cpp: the new name counts where both are, and a factor without a type is linear.
        if self.keys.get("rope.scaling.type", "linear") == "linear":
            factor = self.keys.get("rope.scaling.factor", self.keys.get("rope.scale_linear"))
            self.config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
        self.refusable |= kind == "yarn"

    def window(self):
        self.keys["attention.sliding_window"] = self.pick.choice((4, 8, 64))

    def leave_out(self):
        key = self.pick.choice(list(self.keys))
        del self.keys[key]
        if key == "rope.freq_base":
            self.config["rope_theta"] = 10000.0
        elif key == "attention.head_count_kv":
            self.config["num_key_value_heads"] = self.config["num_attention_heads"]
        elif key == "attention.key_length":
            self.config["head_dim"] = self.config["hidden_size"] // self.config["num_attention_heads"]
        elif key not in ("vocab_size", "rope.dimension_count", "attention.value_length", "rope.scaling.type",
                         "rope.scaling.factor", "rope.scale_linear", "attention.sliding_window"):
            self.refusable = True

    def add_key(self):
        key = self.pick.choice(ALL_KEYS).removeprefix("{arch}.")
        if key not in self.keys and not key.startswith("rope.scaling.") and key != "attention.sliding_window":
            self.keys[key] = self.pick.choice((0, 1, 2, 0.5, 1.0, True, False))
            self.refusable = True

    def tensors(self):
        if self.pick.random() < 0.5:
            self.extra.append(self.pick.choice(("rope_freqs.weight", "blk.0.attn_q.bias", "blk.9.attn_q.weight", "odd.weight")))
        else:
            self.missing.append(self.pick.choice(("output.weight", "blk.0.attn_q.weight", "output_norm.weight")))
            if self.missing[-1] == "output.weight":
                self.config["tie_word_embeddings"] = True
        self.refusable = True

    def write(self, path):
        """Writes the file and returns the model that transformers has of it."""
        torch.manual_seed(self.seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**self.config), dtype=torch.float32)
        writer = gguf.GGUFWriter(str(path), self.architecture)
        for key, value in self.keys.items():
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
                   str: writer.add_string}[type(value)]
            add(f"{self.architecture}.{key}", value)
        writer.add_uint32("tokenizer.ggml.bos_token_id", 1)
        writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
        for name in self.extra:
            writer.add_tensor(name, numpy.ones(32, dtype=numpy.float32))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                values = torch.randn(parameter.shape) * (0.2 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5)
                if name.endswith("norm.weight"):
                    values += 1
                kind = Type.F32 if parameter.dim() == 1 else self.pick.choice(TYPES if parameter.shape[-1] % 32 == 0 else TYPES[:3])
                heads = 0
                if self.architecture == "llama" and parameter.dim() == 2:
                    heads = {"q_proj": self.config["num_attention_heads"], "k_proj": self.config["num_key_value_heads"]}.get(
                        name.split(".")[-2], 0)
                values = values.numpy()
                stored = interleaved(values, heads) if heads else values
                packed = gguf.quantize(numpy.ascontiguousarray(stored), kind)
                read = gguf.dequantize(packed, kind).reshape(stored.shape)
                parameter.copy_(torch.from_numpy(numpy.ascontiguousarray(in_order(read, heads) if heads else read)))
                if gguf_name(name) not in self.missing:
                    writer.add_tensor(gguf_name(name), packed, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return model


def call(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=120)


def verdict(case, programs, folder):
    """The verdict on a case, and what differs."""
    path, out, tokens, dump = folder / "m.gguf", folder / "out", folder / "tokens.bin", folder / "dump.st"
    try:
        model = case.write(path).double().eval()
    except ValueError:  # sizes that make no model
        return "no model", ""
    shutil.rmtree(out, ignore_errors=True)
    done = call(programs / "convert", "--input", path, "--output", out)
    if done.returncode == 2:
        line = done.stderr.strip().splitlines()[-1]
        said = re.sub(r"\S*/m\.gguf", "m.gguf", line)
        if "m.gguf" not in said or len(said) > 300:
            return "different", f"a refusal that is none: {line}"
        return ("refused" if case.refusable else "refused, though it means something"), said
    if done.returncode != 0:
        return "different", f"exit code {done.returncode}: {done.stderr.strip()}"
    window = case.keys.get("attention.sliding_window", 64)
    length = case.pick.randint(2, min(case.config["max_position_embeddings"], window))
    ids = torch.randint(0, case.config["vocab_size"], (length + 1,), generator=torch.Generator().manual_seed(case.seed))
    tokens.write_bytes(b"".join(int(i).to_bytes(2, "little") for i in ids))
    ours = call(programs / "probe", "--model", out, "--tokens", tokens, "--seq", length, "--threads", 1, "--dump", dump)
    if ours.returncode != 0:
        return "different", f"probe ended with {ours.returncode}: {ours.stderr.strip()}"
    with torch.no_grad():
        logits = model(ids[None, :-1]).logits[0]
    far = (load_file(dump)["logits"][0].double() - logits).abs().max().item()
    if not far <= LOGITS * max(1.0, logits.abs().max().item()):
        return "different", f"logits differ by {far:.3g}"
    return "equal", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin-dir", required=True, type=Path)
    parser.add_argument("--cases", type=int, default=500, help="for each architecture")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        for architecture in ("llama", "qwen2", "qwen3"):
            counts, needless = collections.Counter(), collections.Counter()
            for seed in range(options.seed, options.seed + options.cases):
                case = Case(architecture, seed)
                found, text = verdict(case, options.bin_dir, folder)
                counts[found] += 1
                if found == "different":
                    wrong += 1
                    print(f"{architecture} {seed}: {text}\n    {case.keys} {case.extra} {case.missing}", flush=True)
                if found.startswith("refused, though"):
                    needless[re.sub(r"\d+(\.\d+)?", "N", text)] += 1
            print(f"{architecture:6}", dict(counts), flush=True)
            for text, count in needless.most_common(5):
                print(f"        {count} x {text}")
    print(f"{wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
