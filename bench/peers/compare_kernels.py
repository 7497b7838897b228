#!/usr/bin/env python3
"""Print the kernels of two JSON files side by side: bench_kernels' and torch_kernels.py's.

  compare_kernels.py ours.json torch.json [--json both.json]

Rows are matched by op, variant, shape, size and dtype. Of several backends of the peer each is
shown, and the ratio is that of times: above 1 ours is faster.
"""
import argparse
import json
import math
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
from own_files import FIGURES, checked_output, require_own, write

KEY = ("op", "variant", "shape", "dimensions", "dtype")


def load(path):
    try:
        with open(path) as f:
            data = json.load(f)
        for row in data["rows"]:
            if not all(key in row for key in KEY) or not row["median_ms"] > 0:
                raise ValueError
        return data
    except OSError as error:
        sys.exit(f"cannot read {path}: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        sys.exit(f"{path} has no rows as bench_kernels or torch_kernels.py write them")


def name_of(data):
    return f"{data.get('program', '?')} {data.get('version', data.get('commit', ''))}".strip()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("ours")
    p.add_argument("peer")
    p.add_argument("--json", metavar="OUT", help="write the pairs here")
    a = p.parse_args()
    if a.json:
        require_own("--json", a.json, FIGURES)
    ours, peer = load(a.ours), load(a.peer)
    for key in ("device", "threads"):
        if ours.get(key) != peer.get(key):
            print(f"warning: {key} differs: {ours.get(key)} and {peer.get(key)}", file=sys.stderr)
    theirs = {}
    for row in peer["rows"]:
        theirs.setdefault(tuple(row[key] for key in KEY), []).append(row)

    pairs = []
    print(f"ours {name_of(ours)}, peer {name_of(peer)}\n")
    print(f"{'op':<18} {'variant':<16} {'shape':<5} {'size':<18} {'dtype':<5} {'ours ms':>10} "
          f"{'peer ms':>10} {'peer / ours':>11}  backend")
    for row in ours["rows"]:
        for other in theirs.get(tuple(row[key] for key in KEY), []):
            if row.get("mode") != other.get("mode"):
                print(f"warning: {row['op']} {row['variant']}: ours {row.get('mode')}, peer "
                      f"{other.get('mode')}", file=sys.stderr)
            ratio = other["median_ms"] / row["median_ms"]
            pairs.append({**{key: row[key] for key in KEY}, "backend": other.get("backend", ""),
                          "ours_ms": row["median_ms"], "peer_ms": other["median_ms"],
                          "peer_over_ours": ratio})
            print(f"{row['op']:<18} {row['variant']:<16} {row['shape']:<5} {row['dimensions']:<18} "
                  f"{row['dtype']:<5} {row['median_ms']:>10.4f} {other['median_ms']:>10.4f} "
                  f"{ratio:>10.2f}x  {other.get('backend', '')}")
    if not pairs:
        sys.exit("the files have no case in common")
    mean = math.exp(sum(math.log(pair["peer_over_ours"]) for pair in pairs) / len(pairs))
    print(f"\n{len(pairs)} pairs, geometric mean {mean:.2f}x (above 1: ours is faster)")
    if a.json:
        both = {"program": "compare_kernels", "ours": name_of(ours), "peer": name_of(peer), "pairs": pairs}
        write(a.json, json.dumps(both, indent=1) + "\n")


if __name__ == "__main__":
    with checked_output():
        main()
