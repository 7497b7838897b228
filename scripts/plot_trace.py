#!/usr/bin/env python3
"""Draws what train_gpt2 --trace wrote as bars over time, one row for each rank and lane.

  plot_trace.py trace.json trace.rank-1.json --output trace.png      the ranks of one run
  plot_trace.py on.json off.json --titles "overlap,no overlap"       runs below each other
  ... --skip 3 --steps 1                                             the fourth step alone

A step begins with the first `forward` after an `update`. Needs matplotlib.
Exit codes: 0 done, 1 a file could not be read or written, 2 wrong use.
"""
import argparse
import json
import sys
from pathlib import Path

LANES = ["compute", "host to device", "device to host", "network"]
COLOURS = {"forward": "#1f6fb4", "backward": "#d9641e", "update": "#2b9348", "reduce": "#b5308c",
           "wait": "#333333", "stall": "#333333", "fetch": "#8c6d1f", "drain": "#7a5195"}


class Failure(Exception):
    pass


def spans_of(path):
    try:
        text = Path(path).read_text(encoding="utf-8")
        # The closing bracket may be missing: a run may end at any time.
        events = json.loads(text.rstrip().rstrip(",") + "]")
    except (OSError, ValueError) as error:
        raise Failure(f"{path} cannot be read as a trace: {error}") from error
    spans = [event for event in events if event.get("ph") == "X"]
    if not spans:
        raise Failure(f"{path} has no spans")
    return sorted(spans, key=lambda span: span["ts"])


def steps_of(spans):
    """Lists of spans, one for each step."""
    steps, updated = [[]], False
    for span in spans:
        if span["name"] == "forward" and updated:
            steps.append([])
            updated = False
        updated = updated or span["name"] == "update"
        steps[-1].append(span)
    return steps


def selection(path, options):
    steps = steps_of(spans_of(path))[options.skip:options.skip + options.steps]
    if not steps:
        raise Failure(f"{path} has no step after the first {options.skip}")
    return [span for step in steps for span in step]


def draw(options, pyplot):
    figure, axes = pyplot.subplots(len(options.traces), 1, sharex=True, squeeze=False,
                                   figsize=(11, 1.6 * len(options.traces) + 0.8))
    for row, (path, axis) in enumerate(zip(options.traces, axes[:, 0])):
        spans = selection(path, options)
        start = min(span["ts"] for span in spans)
        lanes = sorted({span["tid"] for span in spans})
        for span in spans:
            axis.barh(lanes.index(span["tid"]), span["dur"] / 1e3, left=(span["ts"] - start) / 1e3,
                      color=COLOURS.get(span["name"], "#999999"), height=0.8, linewidth=0)
        axis.set_yticks(range(len(lanes)), [LANES[lane] for lane in lanes])
        axis.invert_yaxis()
        title = options.titles[row] if row < len(options.titles) else Path(path).name
        axis.set_title(title, fontsize="small", loc="left")
    axes[-1][0].set_xlabel("milliseconds")
    names = sorted({span["name"] for path in options.traces for span in selection(path, options)})
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS.get(name, "#999999")) for name in names]
    figure.legend(handles, names, ncols=len(names), loc="upper right", fontsize="small")
    figure.tight_layout()
    figure.savefig(options.output, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--output", type=Path, default=Path("trace.png"))
    parser.add_argument("--skip", type=int, default=2, help="steps left out at the beginning")
    parser.add_argument("--steps", type=int, default=1, help="steps drawn")
    parser.add_argument("--titles", default="", type=lambda text: text.split(",") if text else [],
                        help="one for each trace, with commas between")
    options = parser.parse_args()
    try:
        import matplotlib
    except ImportError as error:
        raise Failure("matplotlib is needed: apt-get install python3-matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot
    draw(options, pyplot)


if __name__ == "__main__":
    try:
        main()
    except (Failure, OSError) as failure:
        sys.exit(f"plot_trace: error: {failure}")
