#!/usr/bin/env python3
"""Run our benchmark and its peers in turn and compare their training speed.

  compare.py --ours 'build/default/bin/bench_step --size 124M --json {json}' \\
             --peer 'python3 bench/peers/torch_gpt2_step.py --size 124M --json {json}' \\
             --rounds 5 --json result.json

Commands are run by the shell in the order ours, peer, ours, peer, ..., so that the noise of a
shared machine falls on all of them; a ratio is always taken within one round. Each command writes
its result (median_ms, tokens_per_second, ...) to the file that stands for {json}.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
from own_files import FIGURES, checked_output, require_own, write

SAME = ("model", "batch", "seq", "threads", "precision")  # what makes a comparison fair
NEEDED = ("median_ms", "tokens_per_second")


def run_once(command, folder):
    """One result; ends the program with the command's last lines when it has none."""
    path = os.path.join(folder, "result.json")
    if os.path.exists(path):
        os.remove(path)
    done = subprocess.run(command.replace("{json}", shlex.quote(path)), shell=True, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, errors="replace")
    tail = "\n".join(done.stdout.splitlines()[-8:])
    if done.returncode:
        sys.exit(f"exit code {done.returncode}: {command}\n{tail}")
    try:
        with open(path) as f:
            result = json.load(f)
        if not all(isinstance(result[key], (int, float)) and result[key] > 0 for key in NEEDED):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        sys.exit(f"no usable result ({' and '.join(NEEDED)}) in {{json}}: {command}\n{tail}")
    return result


def label_of(result, role, taken):
    """`program version`, told apart from the others by its role and a number."""
    name = f"{result.get('program', role)} {result.get('version', '')}".strip()
    label, n = name, 2
    while label in taken:
        label, n = f"{name} ({n})", n + 1
    return label


def warn_if_unlike(ours, other, label):
    """Says what the two did differently. Names of models may differ, so that is only a hint."""
    for key in SAME:
        a, b = ours.get(key), other.get(key)
        if a is not None and b is not None and a != b:
            print(f"warning: {key} differs: ours {a}, {label} {b}", file=sys.stderr)


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def print_table(entries):
    width = max(len(e["label"]) for e in entries)
    print(f"\n{'':{width}}  {'ms a step (min .. max)':>32}  {'tokens/s (min .. max)':>34}  "
          f"{'peak MiB':>9}")
    for e in entries:
        ms, speed = e["median_ms"], e["tokens_per_second"]
        peaks = [r["peak_rss_mib"] for r in e["runs"] if r.get("peak_rss_mib")]
        left = f"{ms['median']:.2f} ({ms['min']:.2f} .. {ms['max']:.2f})"
        right = f"{speed['median']:.1f} ({speed['min']:.1f} .. {speed['max']:.1f})"
        peak = f"{max(peaks):.0f}" if peaks else "-"
        print(f"{e['label']:{width}}  {left:>32}  {right:>34}  {peak:>9}")
    print()
    for e in entries[1:]:
        r = e["ours_over_this"]
        print(f"tokens/s, ours / {e['label']}: median {r['median']:.3f}  min {r['min']:.3f}  "
              f"max {r['max']:.3f}  over {len(e['runs'])} rounds")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--ours", required=True, metavar="COMMAND")
    p.add_argument("--peer", required=True, action="append", metavar="COMMAND",
                   help="may be given several times")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--json", required=True, metavar="OUT")
    a = p.parse_args()
    commands = [a.ours, *a.peer]
    if a.rounds < 1:
        p.error("--rounds must be 1 or more")
    for command in commands:
        if "{json}" not in command:
            p.error(f"no {{json}} in the command: {command}")
    require_own("--json", a.json, FIGURES)
    try:
        open(a.json, "a").close()  # better now than after an hour of rounds
    except OSError as error:
        p.error(f"cannot write {a.json}: {error.strerror}")

    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, a.rounds + 1):
            for at, command in enumerate(commands):
                result = run_once(command, folder)
                if number == 1:
                    role = "peer" if at else "ours"
                    label = label_of(result, role, [e["label"] for e in entries])
                    entries.append({"role": role, "label": label, "command": command, "runs": []})
                    if at:
                        warn_if_unlike(entries[0]["runs"][0], result, label)
                entries[at]["runs"].append(result)
                print(f"round {number}  {entries[at]['label']}: {result['median_ms']:.2f} ms, "
                      f"{result['tokens_per_second']:.1f} tokens/s", flush=True)

    for e in entries:
        for key in NEEDED:
            e[key] = spread([r[key] for r in e["runs"]])
    for e in entries[1:]:
        e["ours_over_this"] = spread([ours["tokens_per_second"] / theirs["tokens_per_second"]
                                      for ours, theirs in zip(entries[0]["runs"], e["runs"])])
    print_table(entries)
    write(a.json, json.dumps({"program": "compare", "rounds": a.rounds, "commands": entries}, indent=1) + "\n")


if __name__ == "__main__":
    with checked_output():
        main()
