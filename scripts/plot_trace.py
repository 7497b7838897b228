#!/usr/bin/env python3
"""Draws what train_gpt2 --trace wrote as bars over time, one row for each rank and lane.

  plot_trace.py trace.json --output trace.png                        all ranks of a run
  plot_trace.py on.json off.json --titles "overlap,no overlap"       runs below each other
  ... --skip 3 --steps 1                                             the fourth step alone

A step begins with the first `forward` after an `update`; what a pipeline's ranks were predicted to
do is drawn beneath the first of the steps. Needs matplotlib.
Exit codes: 0 done, 1 a file could not be read or written, 2 wrong use.
"""
import argparse
import json
import sys
from pathlib import Path

from own_files import PICTURE, checked_output, require_own, write_picture

LANES = ["compute", "host to device", "device to host", "network"]
COLOURS = {"forward": "#1f6fb4", "backward": "#d9641e", "weight gradient": "#e0a458",
           "update": "#2b9348", "reduce": "#b5308c", "wait": "#333333", "stall": "#333333",
           "fetch": "#8c6d1f", "drain": "#7a5195"}


class Failure(Exception):
    pass


def ranks_of(path):
    """The spans of each rank by its number, in order of time, and the ranks' names."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        # The closing bracket may be missing: a run may end at any time.
        events = json.loads(text.rstrip().rstrip(",") + "]")
    except (OSError, ValueError) as error:
        raise Failure(f"{path} cannot be read as a trace: {error}") from error
    names = {event["pid"]: event["args"]["name"] for event in events
             if event.get("name") == "process_name"}
    ranks = {}
    for event in events:
        if event.get("ph") == "X":
            ranks.setdefault(event["pid"], []).append(event)
    if not ranks:
        raise Failure(f"{path} has no spans")
    return {rank: sorted(spans, key=lambda span: span["ts"])
            for rank, spans in sorted(ranks.items())}, names


def steps_of(spans):
    """Lists of spans, one for each step."""
    steps, updated = [[]], False
    for span in spans:
        # In a pipeline a step may begin with waiting.
        begins = span["name"] == "forward" or (span["name"] == "wait" and "args" in span)
        if begins and updated:
            steps.append([])
            updated = False
        updated = updated or span["name"] == "update"
        steps[-1].append(span)
    return steps


def selection(path, options):
    """Rows of the picture: a name and its spans, from the first rank's row on."""
    ranks, names = ranks_of(path)
    measured, predicted = {}, {}
    for rank, spans in ranks.items():
        if names.get(rank, "").startswith("predicted"):
            predicted[rank] = spans
            continue
        steps = steps_of(spans)[options.skip:options.skip + options.steps]
        if not steps:
            raise Failure(f"{path} has no step after the first {options.skip}")
        measured[rank] = [span for step in steps for span in step]
    if predicted:
        begin = min(span["ts"] for spans in measured.values() for span in spans
                    if span["name"] == "forward")
        shift = begin - min(spans[0]["ts"] for spans in predicted.values())
        for spans in predicted.values():
            for span in spans:
                span["ts"] += shift
    rows = []
    for rank, spans in (measured | predicted).items():
        for lane in sorted({span["tid"] for span in spans}):
            name = names.get(rank, "")
            label = LANES[lane] if len(ranks) == 1 else f"{name}, {LANES[lane]}" if lane else name
            rows.append((label, [span for span in spans if span["tid"] == lane]))
    return rows


def draw(options, pyplot):
    all_rows = [selection(path, options) for path in options.traces]
    lines = sum(len(rows) for rows in all_rows)
    figure, axes = pyplot.subplots(
        len(options.traces), 1, sharex=True, squeeze=False,
        figsize=(11, 0.4 * lines + 0.6 * len(options.traces) + 0.8),
        gridspec_kw={"height_ratios": [len(rows) for rows in all_rows]})
    for trace, (rows, axis) in enumerate(zip(all_rows, axes[:, 0])):
        start = min(span["ts"] for _, spans in rows for span in spans)
        for row, (_, spans) in enumerate(rows):
            for span in spans:
                # Two micro-batches in a row of a pipeline would be one bar.
                edge = "white" if "args" in span and span["name"] != "wait" else None
                axis.barh(row, span["dur"] / 1e3, left=(span["ts"] - start) / 1e3, height=0.8,
                          color=COLOURS.get(span["name"], "#999999"), edgecolor=edge,
                          linewidth=0.4 if edge else 0)
        axis.set_yticks(range(len(rows)), [label for label, _ in rows])
        axis.invert_yaxis()
        title = (options.titles[trace] if trace < len(options.titles)
                 else Path(options.traces[trace]).name)
        axis.set_title(title, fontsize="small", loc="left")
    axes[-1][0].set_xlabel("milliseconds")
    names = sorted({span["name"] for rows in all_rows for _, spans in rows for span in spans})
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS.get(name, "#999999")) for name in names]
    figure.legend(handles, names, ncols=len(names), loc="upper right", fontsize="small")
    figure.tight_layout()
    write_picture(figure, options.output, 130)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--output", type=Path, default=Path("trace.png"))
    parser.add_argument("--skip", type=int, default=2, help="steps left out at the beginning")
    parser.add_argument("--steps", type=int, default=1, help="steps drawn")
    parser.add_argument("--titles", default="", type=lambda text: text.split(",") if text else [],
                        help="one for each trace, with commas between")
    options = parser.parse_args()
    require_own("--output", options.output, PICTURE)
    try:
        import matplotlib
    except ImportError as error:
        raise Failure("matplotlib is needed: apt-get install python3-matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot
    draw(options, pyplot)


if __name__ == "__main__":
    try:
        with checked_output():
            main()
    except (Failure, OSError) as failure:
        sys.exit(f"plot_trace: error: {failure}")
