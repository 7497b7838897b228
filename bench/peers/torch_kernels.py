#!/usr/bin/env python3
"""Time PyTorch's kernels at the shapes of bench_kernels and write rows of the same JSON.

  torch_kernels.py --device cuda --dtype bf16 --json torch.json
  compare_kernels.py ours.json torch.json

An op is what PyTorch offers for the work of one of our kernels: F.layer_norm, tanh GELU,
cross_entropy, fused AdamW, scaled_dot_product_attention, matmul. Where there are several ways (the
flash and cuDNN attention, eager and compiled) each is a row with its `backend`. Backward passes are
timed alone, on a graph that is kept. Works with PyTorch 1.13 on the CPU and later.
"""
import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

from torch_ops import FAMILIES, Extent, Row, normal

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
from own_files import FIGURES, checked_output, require_own, write

MODELS = {  # width, heads, parameters, tokens on a GPU
    "124M": (768, 12, 124439808, 16384),
    "355M": (1024, 16, 354823168, 8192),
    "774M": (1280, 20, 774030080, 4096),
    "1558M": (1600, 25, 1557611200, 4096),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
COLD_BYTES = 256 << 20


# --- timing ---

def quantile(values, fraction):
    ordered = sorted(values)
    at = fraction * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


class Timer:
    """Events on a GPU, the clock on the CPU; as bench_kernels' Timer, cold by copies of the
    operands."""

    def __init__(self, device, warmup, rep, cold):
        self.gpu = device == "cuda"
        self.warmup, self.rep, self.cold = warmup, rep, cold
        self.filler = torch.empty(COLD_BYTES, dtype=torch.int8, device=device) if self.gpu else None

    def batch(self, launches, count):
        if not self.gpu:
            times = []
            for i in range(count):
                start = time.perf_counter()
                launches[i % len(launches)]()
                times.append(1e3 * (time.perf_counter() - start))
            return times
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for _ in range(10 + 20 * (count > 8)):  # so that the host runs ahead of the GPU
            self.filler.zero_()
        launches[-1]()
        for i, (start, end) in enumerate(marks):
            start.record()
            launches[i % len(launches)]()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in marks]

    def time(self, row):
        with row.around():
            copies = min(64, max(1, -(-COLD_BYTES // int(row.bytes)))) if self.cold else 1
            launches = [row.make() for _ in range(copies)]
            self.batch(launches, 1)
            estimate = max(statistics.median(self.batch(launches, 3)), 1e-4)

            def run(milliseconds, least):
                left = int(min(max(milliseconds / estimate, least), 2000))
                times = []
                while left > 0:
                    times += self.batch(launches, min(left, 64))
                    left -= 64
                return times
            run(self.warmup, 0)
            times = run(self.rep, 5)
        return {"median_ms": quantile(times, 0.5), "p20_ms": quantile(times, 0.2),
                "p80_ms": quantile(times, 0.8), "repetitions": len(times)}


def calibrate(timer, device, dtypes):
    size = (1 << 30) if device == "cuda" else (256 << 20)

    def copy():
        a = normal(device, torch.float32, size // 4)
        b = torch.empty_like(a)
        return lambda: b.copy_(a)

    ms = timer.time(Row("", "", "", copy, 2 * size))["median_ms"]
    result = {"copy_gb_per_s": 2e-6 * size / ms, "gemm_tflop_per_s": {}}
    for name in dtypes:
        n = 1536 if device == "cpu" else 4096 if name == "fp32" else 8192

        def gemm(n=n, name=name):
            a, b = (normal(device, DTYPES[name], n, n) for _ in range(2))
            return lambda: a @ b
        ms = timer.time(Row("", "", "", gemm, 6 * n * n))["median_ms"]
        result["gemm_tflop_per_s"][name] = 2e-9 * n ** 3 / ms
    return result


# --- program ---

def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--device", choices=["cpu", "cuda"],
                   default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--op", default="", help="ops, separated by commas; gemm: all gemm_*")
    p.add_argument("--variant", default="", help="variants, likewise")
    p.add_argument("--shape", default="", help="124M, 355M, 774M, 1558M, separated by commas")
    p.add_argument("--dtype", choices=list(DTYPES), help="default: bf16 on a GPU, else fp32")
    p.add_argument("--tokens", type=int, default=0, help="rows; as bench_kernels has it")
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--parameters", type=int, default=0)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--warmup", type=float, default=25, help="milliseconds")
    p.add_argument("--rep", type=float, default=100, help="milliseconds")
    p.add_argument("--hot", action="store_true", help="on a GPU operands are cold otherwise")
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args()
    gpu = a.device == "cuda"
    if gpu and not torch.cuda.is_available():
        p.error("PyTorch sees no GPU")
    a.dtype = a.dtype or ("bf16" if gpu else "fp32")
    a.cold = gpu and not a.hot
    a.shape = a.shape.split(",") if a.shape else (list(MODELS) if gpu else ["124M"])
    for name in a.shape:
        if name not in MODELS:
            p.error("--shape: %s is not one of %s" % (name, ", ".join(MODELS)))
    if a.json:
        require_own("--json", a.json, FIGURES)
        try:
            open(a.json, "a").close()
        except OSError as error:
            p.error("cannot write %s: %s" % (a.json, error.strerror))
    return a


def wanted(row, a):
    ops, variants = a.op.split(","), a.variant.split(",")
    return ((not a.op or row.op in ops or (row.op.startswith("gemm_") and "gemm" in ops))
            and (not a.variant or row.variant in variants))


def name_of_device(device):
    """As bench_kernels has it."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":", 1)[1].strip() for line in f if "model name" in line)
    except (OSError, StopIteration):
        return "CPU"


def main():
    a = parse()
    torch.manual_seed(1337)
    torch.set_num_threads(a.threads)
    timer = Timer(a.device, a.warmup, a.rep, a.cold)
    name = name_of_device(a.device)
    result = {"program": "torch", "version": torch.__version__, "device": name,
              "driver": torch.version.cuda or "", "threads": torch.get_num_threads(),
              "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "calibration": calibrate(timer, a.device, [a.dtype]), "rows": []}
    ceilings = {"copy": 1e9 * result["calibration"]["copy_gb_per_s"],
                "gemm": 1e12 * result["calibration"]["gemm_tflop_per_s"][a.dtype]}
    print("%s, torch %s: copy %.4g GB/s, gemm %.4g TFLOP/s"
          % (name, torch.__version__, ceilings["copy"] / 1e9, ceilings["gemm"] / 1e12), flush=True)
    dtype = DTYPES[a.dtype]
    size = torch.tensor([], dtype=dtype).element_size()
    for family in FAMILIES:
        for label in a.shape:
            width, heads, parameters, tokens = MODELS[label]
            tokens = a.tokens or (tokens if a.device == "cuda" else 256)
            e = Extent(width, heads, a.parameters or parameters, tokens, a.seq)
            for row in family(e, a.device, dtype, size):
                if not wanted(row, a):
                    continue
                try:
                    timing = timer.time(row)
                except RuntimeError as error:  # out of memory, or a backend without this shape
                    print("%s %s %s %s: %s" % (row.op, row.variant, label, row.backend,
                                               str(error).splitlines()[0]), flush=True)
                    continue
                seconds = timing["median_ms"] / 1e3
                amount = row.bytes if row.ceiling == "copy" else row.flops
                line = {"op": row.op, "variant": row.variant, "shape": label,
                        "dimensions": row.size, "dtype": row.dtype or a.dtype,
                        "backend": row.backend, "mode": "cold" if a.cold else "hot", **timing,
                        "bytes": row.bytes,
                        "flops": row.flops, "gb_per_s": row.bytes / seconds / 1e9,
                        "tflop_per_s": row.flops / seconds / 1e12, "ceiling": row.ceiling,
                        "percent_of_ceiling": 100 * amount / seconds / ceilings[row.ceiling]}
                result["rows"].append(line)
                print("%-18s %-9s %-5s %-18s %s %-9s %10.4f ms (%.4f .. %.4f)  %9.2f %s  %5.1f%%"
                      % (row.op, row.variant, label, row.size, line["dtype"], row.backend,
                         line["median_ms"], line["p20_ms"], line["p80_ms"],
                         *((line["gb_per_s"], "GB/s") if row.ceiling == "copy"
                           else (line["tflop_per_s"], "TFLOP/s")),
                         line["percent_of_ceiling"]), flush=True)
    if a.json:
        write(a.json, json.dumps(result, indent=1) + "\n")
    if not result["rows"]:
        sys.exit("nothing was measured: see --op, --variant and --dtype")


if __name__ == "__main__":
    with checked_output():
        main()
