#!/usr/bin/env python3
"""Draw what bench_scaling --json wrote: training time and throughput against the number of ranks.

  plot_scaling.py scaling.json                      writes scaling.png beside it
  plot_scaling.py scaling.json --epoch-tokens 338025 --output figure.png

Left the time of an epoch (or, with --epoch-tokens 0, of a step, in which N ranks do N times the
work), right tokens a second of all ranks. Black marks are ideal scaling from one rank; whiskers
span the rounds. Bars are hatched where there were more ranks than cores.
Needs matplotlib. Exit codes: 0 done, 1 a file could not be read or written, 2 wrong use.
"""
import argparse
import json
import math
import sys
from pathlib import Path

from own_files import PICTURE, checked_output, require_own, write_picture

NAMES = {"dp": "data parallel", "no-overlap": "without overlap", "zero1": "ZeRO-1",
         "layer-split": "layer split", "gpipe": "pipeline (GPipe)", "1f1b": "pipeline (1F1B)"}
COLOURS = ["#1f6fb4", "#d9641e", "#2b9348", "#b5308c", "#7a5195", "#8c6d1f"]
ONE = "#555555"


class Failure(Exception):
    pass


def positive(value, what):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Failure(f"{what} is not a number")
    if not (math.isfinite(value) and value > 0):
        raise Failure(f"{what} is {value}: it must be above 0")
    return value


def spread(config, key, what):
    found = config.get(key)
    if not isinstance(found, dict):
        raise Failure(f"{what} has no {key}")
    values = [positive(found.get(name), f"{what}: {key}.{name}")
              for name in ("min", "median", "max")]
    if values != sorted(values):
        raise Failure(f"{what}: the median of {key} is not between its min and max")
    return values


def read(path):
    """The document, and its bars: (ranks, variant, oversubscribed, step_ms, tokens/s)."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise Failure(f"{path} is not JSON (was bench_scaling stopped?)") from None
    try:
        if not isinstance(result, dict) or result.get("program") != "bench_scaling":
            raise Failure("it was not written by bench_scaling --json")
        configs = result.get("configurations")
        if not isinstance(configs, list) or not configs:
            raise Failure("it has no configurations")
        bars = []
        for at, config in enumerate(configs):
            what = f"configuration {at}"
            if not isinstance(config, dict):
                raise Failure(f"{what} is not an object")
            ranks = positive(config.get("ranks"), f"{what}: ranks")
            bars.append((ranks, str(config.get("variant", "")), bool(config.get("oversubscribed")),
                         spread(config, "step_ms", what),
                         spread(config, "tokens_per_second", what)))
        if not any(bar[0] == 1 for bar in bars):
            raise Failure("it has no run of one rank to compare with")
    except Failure as failure:
        raise Failure(f"{path}: {failure}") from None
    return result, bars


def draw_bars(axis, bars, of, ideal, labels):
    """Bars side by side for each number of ranks, with their spread and the ideal's mark."""
    variants = list(dict.fromkeys(bar[1] for bar in bars if bar[0] != 1))
    ranks = sorted({bar[0] for bar in bars})
    ideal_label = "ideal"
    for place, number in enumerate(ranks):
        here = [bar for bar in bars if bar[0] == number]
        width = 0.8 / max(len(here), 2)
        for at, bar in enumerate(here):
            x = place + (at - (len(here) - 1) / 2) * width
            low, middle, high = of(bar)
            colour = ONE if number == 1 else COLOURS[variants.index(bar[1]) % len(COLOURS)]
            name = "one rank" if number == 1 else NAMES.get(bar[1], bar[1])
            axis.bar(x, middle, width * 0.92, color=colour, edgecolor="white", linewidth=0,
                     hatch="//" if bar[2] else None, label=None if name in labels else name)
            labels.add(name)
            axis.errorbar(x, middle, [[middle - low], [high - middle]], color="#222222", capsize=3,
                          linewidth=1)
            axis.annotate(f"{middle:,.0f}" if middle >= 100 else f"{middle:.3g}", (x, high),
                          xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9)
        axis.plot([place - 0.45, place + 0.45], [ideal(number)] * 2, color="black", linewidth=1.6,
                  linestyle=(0, (3, 2)), label=ideal_label, zorder=4)
        ideal_label = None
    axis.set_xticks(range(len(ranks)), [f"{number} rank{'s' if number > 1 else ''}"
                                        for number in ranks])
    axis.grid(True, axis="y", color="#d8dce2", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.margins(y=0.12)
    axis.set_ylim(bottom=0)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def draw(result, bars, epoch_tokens, title, output):
    try:
        import matplotlib
    except ImportError:
        raise Failure("matplotlib is not installed (Debian: apt-get install python3-matplotlib)"
                      ) from None
    matplotlib.use("Agg")  # no window: this also runs where there is no display
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    one = next(bar for bar in bars if bar[0] == 1)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5))
    if epoch_tokens:
        # The fastest round has the shortest epoch.
        draw_bars(left, bars, lambda bar: [epoch_tokens / rate for rate in reversed(bar[4])],
                  lambda ranks: epoch_tokens / (one[4][1] * ranks), set())
        left.set_ylabel("seconds")
        left.set_title(f"time of an epoch of {epoch_tokens:,} tokens", loc="left", fontsize=12)
    else:
        draw_bars(left, bars, lambda bar: bar[3], lambda ranks: one[3][1], set())
        left.set_ylabel("milliseconds")
        left.set_title("time of a step, the same batch for each rank", loc="left", fontsize=12)
    draw_bars(right, bars, lambda bar: bar[4], lambda ranks: one[4][1] * ranks, set())
    right.set_ylabel("tokens a second")
    right.set_title("throughput of all ranks", loc="left", fontsize=12)
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10
                                                   else f"{value:.3g}"))
    right.legend(loc="upper left", framealpha=0.9, edgecolor="#d8dce2", fontsize="small")
    machine = result.get("machine") if isinstance(result.get("machine"), dict) else {}
    flags = result.get("flags") if isinstance(result.get("flags"), list) else []
    model = " ".join(map(str, [result.get("model", ""), *flags]))
    shown = title or (f"{model}, {result.get('batch_per_rank', '?')} x"
                      f" {result.get('seq_len', '?')} tokens for each rank;"
                      f" {machine.get('cpu', 'unknown CPU')}, {machine.get('cores', '?')} cores")
    if any(bar[2] for bar in bars):
        shown += "\nhatched: more ranks than cores, so no speed-up can be expected"
    figure.suptitle(shown.replace("$", r"\$"), x=0.01, ha="left", fontsize=11)
    figure.tight_layout()
    write_picture(figure, output, 130)


def tokens(text):
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be 0 (draw steps) or more")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, metavar="FILE.json")
    parser.add_argument("--output", type=Path, metavar="FILE.png|.svg",
                        help="default: beside the result")
    parser.add_argument("--epoch-tokens", type=tokens, default=1_000_000, metavar="N",
                        help="tokens of an epoch; 0: draw steps; default 1,000,000")
    parser.add_argument("--title", help="default: model, batch and machine")
    options = parser.parse_args()
    output = options.output or options.result.with_suffix(".png")
    if output.suffix.lower() not in (".png", ".svg"):
        parser.error(f"--output {output}: the name must end in .png or .svg")
    require_own("--output", output, PICTURE)
    result, bars = read(options.result)
    draw(result, bars, options.epoch_tokens, options.title, output)
    print(output)


if __name__ == "__main__":
    try:
        with checked_output():
            main()
    except (Failure, OSError) as failure:
        print(f"plot_scaling: error: {failure}", file=sys.stderr)
        sys.exit(1)
