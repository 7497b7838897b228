#!/usr/bin/env python3
"""The table of tricks: what each way to save memory takes and gives, for one model, side by side.

  plot_memory.py --model gpt2                       memory, from the plan alone
  plot_memory.py --model gpt2 --measure 6 --data tinyshakespeare.txt --tokenizer-dir gpt2/
                                                    and sequences a second, from 6 steps of each
  plot_memory.py --n-layer 4 --vocab-size 256 ...   any flags of train_gpt2 come behind
  plot_memory.py --guide                            the comparison of Hugging Face's guide

Memory is what `plan --json` counts, exactly what a run takes; speed is that of the device at hand.
Writes OUTPUT.json, OUTPUT.md and, with matplotlib, OUTPUT.png.
Exit codes: 0 done, 1 a program failed or a file could not be written, 2 wrong use.
"""
import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from own_files import PICTURE, checked_output, require_own, write, write_picture

VANILLA = "--micro-batch {batch} --precision fp32 --placement resident:none --state-layout fp32"
BF16 = "--precision bf16 --gradients fp32"
TRICKS = [
    ("vanilla fp32", VANILLA),
    ("accumulation", "--micro-batch 1 --precision fp32 --placement resident:none --state-layout fp32"),
    ("recompute gelu+ln", "--micro-batch {batch} --precision fp32 --placement resident:gelu+ln"
                          " --state-layout fp32"),
    ("recompute block", "--micro-batch {batch} --precision fp32 --placement resident:block"
                        " --state-layout fp32"),
    ("Adafactor", "--micro-batch {batch} --precision fp32 --placement resident:none"
                  " --optimizer adafactor"),
    ("8-bit Adam", "--micro-batch {batch} --precision fp32 --placement resident:none --state-layout int8"),
    ("bf16", f"--micro-batch {{batch}} --placement resident:none --state-layout fp32 {BF16}"),
    ("bf16, split master", f"--micro-batch {{batch}} --placement resident:none --state-layout split {BF16}"),
    ("bf16, bf16 m", f"--micro-batch {{batch}} --placement resident:none --state-layout bf16m {BF16}"),
    ("bf16, bf16 m and v", f"--micro-batch {{batch}} --placement resident:none --state-layout bf16mv {BF16}"),
    ("bf16, 8-bit Adam", f"--micro-batch {{batch}} --placement resident:none --state-layout int8 {BF16}"),
    ("bf16, Adafactor", f"--micro-batch {{batch}} --placement resident:none --optimizer adafactor {BF16}"),
    ("bf16, 8-bit, accumulation, gelu+ln",
     f"--micro-batch 1 --placement resident:gelu+ln --state-layout int8 {BF16}"),
    ("all of it", "--micro-batch 1 --placement resident:block --state-layout int8 --precision bf16"
                  " --gradients bf16"),
]
# "Efficient Training on a Single GPU" of Hugging Face's transformers 4.21 trains BERT-large on 512 sequences of 512
# tokens, 4 at a time, on a V100, and gives what nvidia-smi says, in MiB, of which the context takes 1343. This is the
# shape of that model as a GPT-2.
GUIDE_SHAPE = ("--n-layer 24 --n-head 16 --n-embd 1024 --vocab-size 30522 --context 512 --device-profile a100")
GUIDE_CONTEXT = 1343
ALL = "--micro-batch 1 --placement resident:block"
FP16 = "--precision fp16 --gradients fp32"
GUIDE = [
    ("vanilla fp32", VANILLA, 14949),
    ("accumulation", "--micro-batch 1 --precision fp32 --placement resident:none --state-layout fp32", 8681),
    ("accumulation, checkpointing", f"{ALL} --precision fp32 --state-layout fp32", 6775),
    ("fp16", f"--micro-batch {{batch}} --placement resident:none --state-layout fp32 {FP16}", 13939),
    ("bf16", f"--micro-batch {{batch}} --placement resident:none --state-layout fp32 {BF16}", None),
    ("fp16, accumulation, checkpointing", f"{ALL} --state-layout fp32 {FP16}", 7275),
    ("bf16, accumulation, checkpointing", f"{ALL} --state-layout split {BF16}", None),
    ("Adafactor", "--micro-batch {batch} --precision fp32 --placement resident:none --optimizer adafactor", 12295),
    ("fp16, accumulation, checkpointing, Adafactor", f"{ALL} --optimizer adafactor {FP16}", 4847),
    ("8-bit Adam", "--micro-batch {batch} --precision fp32 --placement resident:none --state-layout int8", 13085),
    ("fp16, accumulation, checkpointing, 8-bit Adam", f"{ALL} --state-layout int8 {FP16}", 5363),
    ("the same with bf16 gradients", f"{ALL} --state-layout int8 --precision bf16 --gradients bf16", None),
]
USES = ["weights", "gradients", "state", "staging", "activations", "head", "workspace"]
# How the files begin, by which this script knows its own.
TRIED = '[\n {\n  "name": '
COLUMNS = "| | memory MiB | of vanilla |"
COLOURS = ["#1f6fb4", "#d9641e", "#2b9348", "#b5308c", "#8c6d1f", "#7a5195", "#999999"]


class Failure(Exception):
    pass


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise Failure(f"{shlex.join(map(str, command))}: {lines[-1]}")
    return done.stdout


def plan(options, flags):
    without_samples = ["--json", "--sample-tokens", "0"]  # as it is measured
    chosen = json.loads(run([options.bin / "plan", *without_samples, *flags]))["chosen"]
    return {"bytes": chosen["device_bytes"], "host_bytes": chosen["host_bytes"],
            "by_use": chosen["device_peak_by_use"]}


def measure(options, flags):
    """Median milliseconds of a step, without the first."""
    with tempfile.TemporaryDirectory() as folder:
        run([options.bin / "train_gpt2", *flags, "--steps", str(options.measure + 1),
             "--val-every", "0", "--val-steps", "1", "--sample-tokens", "0", "--lr", "1e-5",
             "--output", f"{folder}/run"])
        log = Path(folder, "run", "log.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [line for line in map(json.loads, log) if line["event"] == "train"]
    return statistics.median(step["step_ms"] for step in steps[1:])


def table(rows):
    text = COLUMNS + " weights | gradients | state | activations, head |"
    text += " sequences/s |\n|---|---|---|---|---|---|---|---|\n"
    first = rows[0]["bytes"]
    for row in rows:
        uses = row["by_use"]
        mib = [uses["weights"], uses["gradients"], uses["state"],
               uses["activations"] + uses["head"]]
        speed = f"{row['sequences_per_second']:.3g}" if "sequences_per_second" in row else "-"
        text += f"| {row['name']} | {row['bytes'] / 2**20:.0f} | {row['bytes'] / first:.2f} | "
        text += " | ".join(f"{part / 2**20:.0f}" for part in mib) + f" | {speed} |\n"
    return text


def draw(rows, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = all("sequences_per_second" in row for row in rows)
    figure, axes = pyplot.subplots(1, 2 if measured else 1, sharey=True, squeeze=False,
                                   figsize=(12 if measured else 8, 0.42 * len(rows) + 1.4))
    places = range(len(rows))[::-1]
    left = [0.0] * len(rows)
    for use, colour in zip(USES, COLOURS):
        widths = [row["by_use"][use] / 2**20 for row in rows]
        if any(widths):
            axes[0][0].barh(places, widths, left=left, color=colour, label=use)
            left = [a + b for a, b in zip(left, widths)]
    axes[0][0].set_yticks(list(places), [row["name"] for row in rows])
    axes[0][0].set_xlabel("memory, MiB")
    axes[0][0].legend(fontsize="small")
    if measured:
        axes[0][1].barh(places, [row["sequences_per_second"] for row in rows], color="#555555")
        axes[0][1].set_xlabel("sequences a second")
    figure.tight_layout()
    write_picture(figure, path, 130)


def guide(options):
    """Prints the guide's methods, and what 16 bits save of each batch."""
    shape = shlex.split(GUIDE_SHAPE)
    print("| | planned MiB | of vanilla | guide, MiB | of vanilla |\n|---|---|---|---|---|")
    vanilla = None
    for name, text, published in GUIDE:
        flags = [*shape, "--batch-size", "4", *shlex.split(text.format(batch=4))]
        mib = plan(options, flags)["bytes"] / 2**20
        vanilla = vanilla or (mib, published - GUIDE_CONTEXT)
        theirs = "| | |" if published is None else (
            f"| {published - GUIDE_CONTEXT} | {(published - GUIDE_CONTEXT) / vanilla[1]:.2f} |")
        print(f"| {name} | {mib:.0f} | {mib / vanilla[0]:.2f} {theirs}")
    print("\n| batch | fp32, MiB | fp16, MiB | of fp32 |\n|---|---|---|---|")
    for batch in (1, 2, 4, 8, 16, 32, 64):
        sizes = []
        for precision in ("--precision fp32", FP16):
            text = f"--batch-size {batch} --micro-batch {batch} --placement resident:none --state-layout fp32 {precision}"
            sizes.append(plan(options, [*shape, *shlex.split(text)])["bytes"] / 2**20)
        print(f"| {batch} | {sizes[0]:.0f} | {sizes[1]:.0f} | {sizes[1] / sizes[0]:.2f} |")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, default=Path("build/default/bin"),
                        help="folder of the programs")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--guide", action="store_true", help="the comparison of Hugging Face's guide")
    parser.add_argument("--measure", type=int, default=0, help="steps to time; 0: memory alone")
    parser.add_argument("--output", type=Path, default=Path("memory"), help="without extension")
    options, flags = parser.parse_known_args()
    return options, [*flags, "--batch-size", str(options.batch_size)]


def main():
    options, common = parse()
    if options.guide:
        guide(options)
        return
    for end, mark in (("json", TRIED), ("md", COLUMNS), ("png", PICTURE)):
        require_own("--output", f"{options.output}.{end}", mark)
    rows = []
    data = {"--data", "--val-data"}
    without_data = [word for at, word in enumerate(common)
                    if word not in data and (at == 0 or common[at - 1] not in data)]
    for name, text in TRICKS:
        flags = shlex.split(text.format(batch=options.batch_size))
        row = {"name": name, "flags": " ".join(flags), **plan(options, without_data + flags)}
        if options.measure > 0:
            milliseconds = measure(options, common + flags)
            row["step_ms"] = milliseconds
            row["sequences_per_second"] = options.batch_size / milliseconds * 1e3
        rows.append(row)
        print(f"{name}: {row['bytes'] / 2**20:.0f} MiB", file=sys.stderr)
    write(f"{options.output}.json", json.dumps(rows, indent=1) + "\n")
    write(f"{options.output}.md", table(rows))
    print(table(rows), end="")
    try:
        draw(rows, f"{options.output}.png")
    except ImportError:
        print("plot_memory: no picture: matplotlib is not installed", file=sys.stderr)


if __name__ == "__main__":
    try:
        with checked_output():
            main()
    except (Failure, OSError, ValueError) as failure:
        sys.exit(f"plot_memory: error: {failure}")
