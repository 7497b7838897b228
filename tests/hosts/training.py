"""The training that all jobs here do, and its losses."""
import json
import subprocess

# Seconds that ranks wait for each other before they give up.
COLLECTIVE_TIMEOUT = 5
TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 1500


def flags(data, output, steps=5, mesh=()):
    """Two micro-batches of two sequences, however many ranks compute them."""
    return ["--data", data, "--output", output, "--steps", steps,
            "--n-layer", 2, "--n-head", 2, "--n-embd", 32, "--context", 32,
            "--batch-size", 4, "--micro-batch", 2, "--val-steps", 2, "--sample-tokens", 0,
            "--threads", 1, "--peak-tflops", 1, "--collective-timeout", COLLECTIVE_TIMEOUT, *mesh]


def events(output):
    """What a run's log has so far."""
    log = output / "log.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def losses(output):
    """The losses of all steps and validations, of as many digits as they have."""
    return [event["loss"] for event in events(output) if event["event"] in ("train", "val")]


def is_done(output):
    """Whether a run has trained and saved all that it was to."""
    return any(event["event"] == "end" for event in events(output))


def losses_of_one_process(bin_folder, folder):
    """Trains without MPI's launcher and returns the losses."""
    folder.mkdir()
    data = folder / "text.txt"
    data.write_text(TEXT)
    command = [bin_folder / "train_gpt2", *flags(data, folder / "run")]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return losses(folder / "run")


def apart(some, others):
    """The largest relative difference of two lists of losses; infinite if one is shorter."""
    if not some or len(some) != len(others):
        return float("inf")
    return max(abs(one - other) / abs(other) for one, other in zip(some, others))
