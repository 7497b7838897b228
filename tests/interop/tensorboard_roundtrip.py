#!/usr/bin/env python3
"""Check, with TensorBoard's own reader, what scripts/to_tensorboard writes.

  tensorboard_roundtrip.py --bin-dir build/default/bin

(a) Runs of train_gpt2, one of them resumed: every scalar, sample and hyperparameter of the log must
be read back. (b) A log that goes back in steps, with half a line at its end, and one of an older
program. (c) --follow while logs grow line by line in pieces, a run goes back and another one appears
late. (d) What is said where tensorboardX is missing.

Run by hand, with a python that has tensorboard and tensorboardX. Exit codes: 0 all passed, 1 a check
failed, 2 wrong use.
"""
import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "to_tensorboard"
TAGS = {"loss/train": ("train", "loss"), "loss/validation": ("val", "loss"),
        "optimizer/lr": ("train", "lr"), "optimizer/grad_norm": ("train", "grad_norm"),
        "speed/tokens_per_second": ("train", "tokens_per_second"),
        "speed/step_ms": ("train", "step_ms"), "speed/mfu": ("train", "mfu"),
        "memory/bytes": ("train", "memory_bytes")}


class Checks:
    def __init__(self):
        self.passed = self.failed = 0

    def same(self, name, got, want):
        ok = got == want
        self.passed += ok
        self.failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'}  {name}: " + (
            "as expected" if ok else f"got {got}, expected {want}"), flush=True)


def script(*arguments, python=(), **options):
    return subprocess.run([sys.executable, *python, str(SCRIPT), *map(str, arguments)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def train(binaries, output, *flags):
    subprocess.run([binaries / "train_gpt2", "--n-layer", "1", "--n-head", "2", "--n-embd", "16",
                    "--context", "32", "--batch-size", "2", "--threads", "1", "--val-every", "5",
                    "--val-steps", "1", "--sample-every", "5", "--sample-tokens", "12", "--quiet",
                    "--output", output, *flags], check=True, stdout=subprocess.DEVNULL)


def read(folder):
    board = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    board.Reload()
    return board


def scalars(board, tag):
    return {event.step: event.value for event in board.Scalars(tag)}


def near(got, want):
    """Equal steps, and values as a float32 has them."""
    return got.keys() == want.keys() and all(
        math.isclose(got[step], want[step], rel_tol=1e-6) for step in want)


def logged(log):
    return [json.loads(line) for line in log.read_bytes().splitlines()]


def check_run(checks, name, run, folder):
    """Everything of a log that can be drawn is in its event file, later lines in place of earlier."""
    events, board = logged(run / "log.jsonl"), read(folder)
    for tag, (event, field) in TAGS.items():
        want = {e["step"]: e[field] for e in events if e["event"] == event}
        checks.same(f"{name}: {tag}, {len(want)} steps", near(scalars(board, tag), want), True)
    want = {e["step"]: e["text"] for e in events if e["event"] == "sample"}
    got = {e.step: e.tensor_proto.string_val[0].decode()
           for e in board.Tensors("sample/text_summary")}
    shown = {step: "\n".join("    " + line for line in text.split("\n"))
             for step, text in want.items()}
    checks.same(f"{name}: samples", got, shown)
    times = {e.step: e.wall_time for e in board.Scalars("loss/train")}
    checks.same(f"{name}: times are those of the log", all(
        abs(times[e["step"]] - seconds(e["time"])) < 1e-3 for e in events if e["event"] == "train"
        and e is last_of(events, e["step"])), True)
    start = next(e for e in events if e["event"] == "start")
    table = board.Tensors("hyperparameters/text_summary")[0].tensor_proto.string_val[0].decode()
    checks.same(f"{name}: hyperparameters as text", f"| lr | {start['options']['lr']} |" in table
                and f"| n_embd | {start['model']['n_embd']} |" in table, True)
    content = board.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    checks.same(f"{name}: hyperparameters of the plugin",
                (values["lr"].number_value, values["data_order"].string_value,
                 values["overlap"].bool_value), (start["options"]["lr"], "shuffled", True))


def seconds(text):
    from datetime import datetime
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def last_of(events, step):
    return [e for e in events if e["event"] == "train" and e["step"] == step][-1]


def line(event, **fields):
    return json.dumps({"event": event, **fields}) + "\n"


def check_real_runs(checks, binaries, work):
    train(binaries, work / "runs/a", "--steps", "12")
    train(binaries, work / "runs/b", "--steps", "10", "--save-every", "4", "--keep", "5")
    for newest in sorted((work / "runs/b/checkpoints").iterdir())[1:]:
        subprocess.run(["rm", "-r", newest], check=True)
    train(binaries, work / "runs/b", "--steps", "14", "--lr", "0.0005")  # from step 4, other losses
    done = script(work / "runs/a", work / "runs/b/log.jsonl", "--output", work / "boards")
    checks.same("two runs: exit code", (done.returncode, done.stderr), (0, ""))
    check_run(checks, "a run", work / "runs/a", work / "boards/a")
    check_run(checks, "a resumed run", work / "runs/b", work / "boards/b")
    script(work / "runs/a", work / "runs/b", "--output", work / "boards")
    checks.same("a second call replaces the files of the first",
                len(list((work / "boards/a").iterdir())), 1)
    script(work / "runs/a")
    checks.same("without --output: in the run's own folder",
                len(read(work / "runs/a/tensorboard").Scalars("loss/train")), 12)


def check_odd_logs(checks, work):
    (work / "old").mkdir()
    (work / "old/log.jsonl").write_text(
        line("start", version=1, step=0, steps=4, run={"batch_size": 4}) +
        line("train", step=1, loss=5.0) + line("train", step=2, loss=None) +
        "no json\n" + line("train", step=3, loss=4.0) + line("train", step=2, loss=4.5) +
        '{"event":"train","st')
    done = script(work / "old")
    checks.same("an older log: exit code and the line that is left out",
                (done.returncode, "log.jsonl:4: " in done.stderr), (0, True))
    checks.same("an older log that goes back without a start line",
                scalars(read(work / "old/tensorboard"), "loss/train"), {1: 5.0, 2: 4.5})
    (work / "empty").mkdir()
    (work / "empty/log.jsonl").write_text('{"event"')
    checks.same("a log without a whole line", script(work / "empty").returncode, 2)
    checks.same("no log", script(work / "nowhere").returncode, 1)
    checks.same("a run given twice", script(work / "old", work / "old/log.jsonl").returncode, 2)


def check_follow(checks, work):
    first, second = work / "live/first", work / "live/second"
    first.mkdir(parents=True)
    follower = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(first), str(second), "--output", str(work / "watch"),
         "--follow", "--interval", "0.05"], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE)

    def until(folder, want):
        """Reads what is there until it is as wanted; half a minute at most."""
        got = None
        for _ in range(300):
            if (work / "watch" / folder).exists():
                board = read(work / "watch" / folder)
                got = scalars(board, "loss/train") if "loss/train" in board.Tags()["scalars"] else None
            if got == want:
                break
            time.sleep(0.1)
        return got

    with (first / "log.jsonl").open("a", buffering=1) as log:
        log.write(line("start", step=0, steps=5, options={"lr": 0.1}))
        log.write(line("train", step=1, loss=3.0) + '{"event":"train","step":2,')
        log.flush()
        checks.same("half a line is waited for", until("first", {1: 3.0}), {1: 3.0})
        log.write('"loss":2.5}\n' + line("train", step=3, loss=2.25) + '{"event":"tr')
        log.flush()
        checks.same("and read once it is whole", until("first", {1: 3.0, 2: 2.5, 3: 2.25}),
                    {1: 3.0, 2: 2.5, 3: 2.25})
    # The next run cuts the half line off and goes on from step 1.
    whole = (first / "log.jsonl").read_bytes()
    with (first / "log.jsonl").open("r+b") as log:
        log.truncate(whole.rfind(b"\n") + 1)
    with (first / "log.jsonl").open("a", buffering=1) as log:
        log.write(line("start", step=1, steps=5, options={"lr": 0.1}))
        log.write(line("train", step=2, loss=2.0))
        log.flush()
        checks.same("a resumed run goes back", until("first", {1: 3.0, 2: 2.0}), {1: 3.0, 2: 2.0})
        log.write(line("end", step=2, stopped_by="SIGINT"))
        log.flush()
        second.mkdir()
        (second / "log.jsonl").write_text(
            line("start", step=0, steps=1) + line("train", step=1, loss=1.0) +
            line("end", step=1, stopped_by=None))
        checks.same("a run that appears late", until("second", {1: 1.0}), {1: 1.0})
        checks.same("a run that was stopped is waited for", follower.poll(), None)
        log.write(line("start", step=2, steps=3) + line("train", step=3, loss=1.5) +
                  line("end", step=3, stopped_by=None))
    out, err = follower.communicate(timeout=30)
    checks.same("it ends when all runs are done", follower.returncode, 0)
    checks.same("what it said", ("waiting for" in err, "first: to step 3" in out), (True, True))
    checks.same("all steps, each once", scalars(read(work / "watch/first"), "loss/train"),
                {1: 3.0, 2: 2.0, 3: 1.5})


def check_missing(checks, work):
    # Without site-packages there is no tensorboardX.
    done = script(work / "runs/a", python=("-S", "-I"))
    checks.same("a missing library is named with its command",
                (done.returncode, "python3 -m pip install tensorboardX" in done.stderr), (1, True))
    checks.same("--help needs none", script("--help", python=("-S", "-I")).returncode, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", type=Path, required=True)
    binaries = parser.parse_args().bin_dir.resolve()
    if not (binaries / "train_gpt2").exists():
        print(f"tensorboard_roundtrip: there is no {binaries}/train_gpt2", file=sys.stderr)
        return 2
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        check_real_runs(checks, binaries, work)
        check_odd_logs(checks, work)
        check_follow(checks, work)
        check_missing(checks, work)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
