#!/usr/bin/env python3
"""Draw training runs from their log.jsonl: loss, learning rate and throughput against the step.

  plot_run.py runs/first                            writes runs/first/run.png
  plot_run.py runs/a runs/b --output compare.svg    several runs in one figure

A run is a folder that holds log.jsonl, or such a file itself. Needs matplotlib and nothing else.
Exit codes: 0 done, 1 a file could not be read or written, 2 wrong use or nothing to draw.
"""
import argparse
import json
import math
import sys
from pathlib import Path

from own_files import PICTURE, checked_output, require_own, write_picture

COLOURS = ["#1f6fb4", "#d9641e", "#2b9348", "#b5308c", "#7a5195", "#8c6d1f", "#2a9d9d", "#c1272d"]
NAN = float("nan")


class Failure(Exception):
    """What went wrong, as one sentence, and the exit code that says so."""

    def __init__(self, sentence, code):
        super().__init__(sentence)
        self.code = code


def warn(sentence):
    print(f"plot_run: {sentence}", file=sys.stderr)


def number(value):
    """A finite number, or NaN for what the log writes as null (and for anything else)."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return NAN


class Run:
    """One log: `train` and `val` map a step to its line. The later line of a step wins, since a
    resumed run writes again the steps after the checkpoint it started from."""

    def __init__(self, given):
        self.path = Path(given)
        if self.path.is_dir():
            self.path = self.path / "log.jsonl"
        self.folder = self.path.resolve().parent
        self.name = self.folder.name or str(self.path)
        self.train, self.val = {}, {}
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise Failure(f"cannot read {self.path}: {error.strerror}", 1) from None
        last = max((i for i, line in enumerate(lines, 1) if line.strip()), default=0)
        for at, line in enumerate(lines, 1):
            if line.strip():
                self.add(line, at, at == last)
        if not self.train:
            raise Failure(f"{self.path} has no train lines: nothing to draw", 2)
        lost = sum(math.isnan(loss) for loss in self.series("train", "loss")[1])
        if lost:
            warn(f"{self.path}: {lost} of {len(self.train)} steps have no finite loss (gaps)")

    def add(self, line, at, is_last):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            why = "is cut off (was the run killed?)" if is_last else "is not a JSON object"
            warn(f"{self.path}:{at}: this line {why}; it is left out")
            return
        table = {"train": self.train, "val": self.val}.get(str(entry.get("event")))
        if table is None:
            return
        step = entry.get("step")
        if isinstance(step, int) and not isinstance(step, bool):
            table[step] = entry
        else:
            warn(f"{self.path}:{at}: this line has no step; it is left out")

    def series(self, event, key):
        """Steps in order and the values of `key` at them."""
        table = getattr(self, event)
        steps = sorted(table)
        return steps, [number(table[step].get(key)) for step in steps]


def smoothed(values, window):
    """Centred running mean over `window` values, fewer at the ends; NaNs are left out of it."""
    half, out = window // 2, []
    total, count = [0.0], [0]
    for value in values:
        seen = not math.isnan(value)
        total.append(total[-1] + (value if seen else 0.0))
        count.append(count[-1] + seen)
    for i, value in enumerate(values):
        # The same reach on both sides keeps the ends from lagging behind a steep curve.
        reach = min(half, i, len(values) - 1 - i)
        low, high = i - reach, i + reach + 1
        n = count[high] - count[low]
        out.append(NAN if math.isnan(value) or n == 0 else (total[high] - total[low]) / n)
    return out


def name_apart(runs):
    """Legend names: the folder's, with its parent's (and so on) where two would be the same."""
    for depth in range(2, 6):
        names = [run.name for run in runs]
        for run in runs:
            if names.count(run.name) > 1:
                run.name = "/".join(run.folder.parts[-depth:])


def style(axis, label):
    axis.set_ylabel(label)
    axis.grid(True, color="#d8dce2", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.margins(x=0.01)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color("#8a929c")
    axis.tick_params(color="#8a929c")


def draw_line(axis, steps, values, window, colour, label=None):
    """The values as they are, light, under their running mean. A single value gets a dot."""
    dot = "o" if len(values) == 1 else None
    if window > 1 and len(values) > 2:
        axis.plot(steps, values, color=colour, alpha=0.35, linewidth=0.9)
        values = smoothed(values, window)
    axis.plot(steps, values, color=colour, linewidth=1.9, marker=dot, label=label)


def draw(runs, smooth, title, output):
    try:
        import matplotlib
    except ImportError:
        raise Failure("matplotlib is not installed (Debian: apt-get install python3-matplotlib)",
                      1) from None
    matplotlib.use("Agg")  # no window: this also runs where there is no display
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    pyplot.rcParams.update({"font.size": 12, "axes.labelsize": 12, "svg.fonttype": "none"})
    figure, (loss, rate, speed) = pyplot.subplots(
        3, 1, sharex=True, figsize=(12, 9), gridspec_kw={"height_ratios": [3, 1, 1]})
    for i, run in enumerate(runs):
        colour = COLOURS[i % len(COLOURS)]
        window = (smooth or max(1, len(run.train) // 50)) | 1  # odd: as far back as ahead
        # A $ would start a formula and a leading _ would hide the entry.
        name = run.name.replace("$", r"\$").lstrip("_") + ": " if len(runs) > 1 else ""
        mean = f" (mean of {window} steps)" if window > 1 and len(run.train) > 2 else ""
        draw_line(loss, *run.series("train", "loss"), window, colour, f"{name}train{mean}")
        if run.val:
            loss.plot(*run.series("val", "loss"), color=colour, linewidth=1.3, linestyle="--",
                      marker="o", markersize=5, markerfacecolor="white", markeredgewidth=1.5,
                      zorder=4, label=f"{name}validation")
        rate.plot(*run.series("train", "lr"), color=colour, linewidth=1.9,
                  marker="o" if len(run.train) == 1 else None)
        draw_line(speed, *run.series("train", "tokens_per_second"), window, colour)

    style(loss, "loss")
    style(rate, "learning rate")
    style(speed, "tokens/s")
    loss.legend(loc="upper right", framealpha=0.9, edgecolor="#d8dce2")
    for axis in (rate, speed):
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_locator(MaxNLocator(4))
    rate.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    speed.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10
                                                  else f"{value:.3g}"))
    speed.set_xlabel("step")
    speed.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    loss.set_title((title or ", ".join(run.name for run in runs)).replace("$", r"\$"),
                   loc="left", fontsize=14, fontweight="bold")
    figure.align_ylabels()
    figure.tight_layout()
    write_picture(figure, output, 100)


def window_size(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 (off) or more")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="LOG_OR_FOLDER")
    parser.add_argument("--output", type=Path, metavar="FILE.png|.svg",
                        help="default: run.png beside the first log")
    parser.add_argument("--smooth", type=window_size, metavar="N",
                        help="steps in the running mean; 1: none; default: a fiftieth of the run")
    parser.add_argument("--title", metavar="T", help="default: the names of the folders")
    args = parser.parse_args()
    try:
        if args.output and args.output.suffix.lower() not in (".png", ".svg"):
            raise Failure(f"--output {args.output}: the name must end in .png or .svg", 2)
        runs = [Run(given) for given in args.runs]
        name_apart(runs)
        output = args.output or runs[0].path.parent / "run.png"
        require_own("--output", output, PICTURE)
        draw(runs, args.smooth, args.title, output)
    except Failure as failure:
        warn(failure)
        return failure.code
    print(output)
    return 0


if __name__ == "__main__":
    with checked_output():
        sys.exit(main())
