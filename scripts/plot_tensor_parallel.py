#!/usr/bin/env python3
"""Draw learning curves of one training by different numbers of ranks, and how far apart they are.

  plot_tensor_parallel.py runs/one runs/two runs/four --output figure.png
  plot_tensor_parallel.py mlp/1 mlp/2 --column gpt2/1 gpt2/2 --output figure.png

A run is a folder with log.jsonl (of train_mlp or train_gpt2), or such a file itself. Above the loss
of every step; below how far each run's is from that of the first one, on a logarithmic scale, which
has no place for equal ones: those are counted. Runs after --column have a column of their own.
Prints the largest distances.
Needs matplotlib. Exit codes: 0 done, 1 a file could not be read or written, 2 wrong use.
"""
import argparse
import json
import sys
from pathlib import Path

from own_files import PICTURE, checked_output, require_own, write_picture

COLOURS = ["#1f6fb4", "#d9641e", "#2b9348", "#b5308c", "#7a5195", "#8c6d1f"]


class Failure(Exception):
    """What went wrong, as one sentence, and the exit code that says so."""

    def __init__(self, sentence, code=1):
        super().__init__(sentence)
        self.code = code


class Run:
    """One log: the loss of every step, and how many ranks there were."""

    def __init__(self, given):
        self.path = Path(given)
        if self.path.is_dir():
            self.path = self.path / "log.jsonl"
        self.ranks, self.losses = None, {}
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise Failure(f"cannot read {self.path}: {error.strerror}") from None
        for at, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                if entry["event"] == "start":
                    self.ranks = int(entry["ranks"])
                elif entry["event"] == "train":
                    self.losses[int(entry["step"])] = float(entry["loss"])
            except (ValueError, KeyError, TypeError):
                raise Failure(f"{self.path}:{at} is not a line of a whole log") from None
        if not self.losses:
            raise Failure(f"{self.path} has no train lines: nothing to draw", 2)
        if self.ranks is None:
            raise Failure(f"{self.path} does not say how many ranks there were")

    @property
    def name(self):
        return "1 process" if self.ranks == 1 else f"{self.ranks} ranks"


def distances(run, first):
    """Of the steps that both have."""
    steps = sorted(run.losses.keys() & first.losses.keys())
    if not steps:
        raise Failure(f"{run.path} and {first.path} have no step in common", 2)
    return steps, [abs(run.losses[step] - first.losses[step]) for step in steps]


def style(axis, label):
    axis.set_ylabel(label)
    axis.grid(True, color="#d8dce2", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.margins(x=0.01)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def draw_column(loss, apart, runs, title):
    """The first curve is broad and light, so that others on top of it can be seen."""
    for i, run in enumerate(runs):
        colour = COLOURS[i % len(COLOURS)]
        steps = sorted(run.losses)
        loss.plot(steps, [run.losses[step] for step in steps], color=colour, label=run.name,
                  linewidth=6 if i == 0 else 1.6, alpha=0.4 if i == 0 else 1,
                  linestyle="-" if i == 0 else (4 * (i - 1), (4, 4 * max(1, len(runs) - 2))))
        if i == 0:
            continue
        steps, values = distances(run, runs[0])
        most = max(values)
        points = [(step, value) for step, value in zip(steps, values) if value > 0]
        apart.semilogy([step for step, _ in points], [value for _, value in points], ".",
                       color=colour, markersize=4,
                       label=f"{run.name}: {most:.1e} at most, equal in "
                             f"{len(steps) - len(points)} of {len(steps)} steps")
        print(f"{run.path}: at most {most:.3g} from {runs[0].path}, "
              f"at step {steps[values.index(most)]} of {steps[-1]}")
    style(loss, "loss")
    style(apart, f"distance from {runs[0].name}")
    loss.set_title(title.replace("$", r"\$"), loc="left", fontsize=12)
    apart.set_xlabel("step")
    for axis in (loss, apart):
        axis.legend(loc="upper right", framealpha=0.9, edgecolor="#d8dce2", fontsize="small")


def draw(columns, titles, output):
    try:
        import matplotlib
    except ImportError:
        raise Failure("matplotlib is not installed (Debian: apt-get install python3-matplotlib)"
                      ) from None
    matplotlib.use("Agg")  # no window: this also runs where there is no display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(columns), figsize=(6 * len(columns), 7), sharex="col",
                                   squeeze=False, gridspec_kw={"height_ratios": [3, 2]})
    for at, runs in enumerate(columns):
        draw_column(axes[0][at], axes[1][at], runs, titles[at] if at < len(titles) else "")
    low = min(axis.get_ylim()[0] for axis in axes[1])
    high = max(axis.get_ylim()[1] for axis in axes[1])
    for axis in axes[1]:  # the same scale, with room for the legend
        axis.set_ylim(low, high * 20)
    figure.align_ylabels()
    figure.tight_layout()
    write_picture(figure, output, 110)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="LOG_OR_FOLDER",
                        help="the others are compared with the first one")
    parser.add_argument("--column", nargs="+", action="append", default=[], metavar="LOG_OR_FOLDER",
                        help="runs of a further column")
    parser.add_argument("--title", action="append", default=[], metavar="T",
                        help="of the columns, in order")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.png|.svg")
    options = parser.parse_args()
    if options.output.suffix.lower() not in (".png", ".svg"):
        parser.error(f"--output {options.output}: the name must end in .png or .svg")
    require_own("--output", options.output, PICTURE)
    columns = [[Run(given) for given in runs] for runs in [options.runs, *options.column]]
    if any(len(runs) < 2 for runs in columns):
        parser.error("a column needs two runs or more to compare")
    draw(columns, options.title, options.output)
    print(options.output)


if __name__ == "__main__":
    try:
        with checked_output():
            main()
    except Failure as failure:
        print(f"plot_tensor_parallel: error: {failure}", file=sys.stderr)
        sys.exit(failure.code)
