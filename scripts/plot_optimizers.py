#!/usr/bin/env python3
"""Draw the validation losses that scripts/compare_optimizers has written.

  plot_optimizers.py shakespeare.json own.json --output figure.png

One column for each file: thin lines are seeds, thick ones their means, and the dashed line is the loss to reach. Needs
matplotlib.
"""
import argparse
import json
from pathlib import Path

from own_files import PICTURE, checked_output, require_own, write_picture

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"adamw": "#1f6fb4", "muon": "#d9641e"}
TITLES = {"adamw": "AdamW", "muon": "Muon"}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--output", required=True)
    o = parser.parse_args()
    require_own("--output", o.output, PICTURE)
    figure, columns = plt.subplots(1, len(o.files), figsize=(5 * len(o.files), 4), squeeze=False)
    for axes, file in zip(columns[0], o.files):
        result = json.loads(file.read_text())
        for name, run in result["optimizers"].items():
            curves = [curve[1:] for curve in run["curves"]]  # the first loss is that of random weights
            steps = [step for step, _ in curves[0]]
            for curve in curves:
                axes.plot(steps, [loss for _, loss in curve], color=COLOURS[name], alpha=0.35, linewidth=1)
            mean = [sum(curve[i][1] for curve in curves) / len(curves) for i in range(len(steps))]
            axes.plot(steps, mean, color=COLOURS[name], linewidth=2,
                      label=f"{TITLES[name]}, rate {run['rate']:g}")
        axes.axhline(result["loss"], color="grey", linestyle="--", linewidth=1)
        axes.set_title(result["data"])
        axes.set_xlabel("updates")
        axes.set_ylabel("validation loss, nats a character")
        axes.legend()
    figure.tight_layout()
    write_picture(figure, o.output, 120)


with checked_output():
    main()
