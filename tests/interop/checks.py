"""Results of checks against another program, and calls of our own."""
import subprocess
from pathlib import Path


class Checks:
    def __init__(self):
        self.passed = self.failed = 0

    def result(self, ok, text):
        self.passed += ok
        self.failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'}  {text}", flush=True)
        return ok

    def bound(self, name, figure, bound):
        return self.result(figure <= bound, f"{name}: {figure:.3e} (bound {bound:.1e})")

    def same(self, name, got, want):
        return self.result(got == want, f"{name}: " + (
            "as expected" if got == want else f"got {got}, expected {want}"))


def call(checks, name, *command):
    """Runs one of our programs. A failure is a failed check that shows the last thing it said."""
    done = subprocess.run([str(part) for part in command], text=True, errors="replace",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if done.returncode:
        said = " | ".join(done.stdout.splitlines()[-3:])
        checks.result(False, f"{name}: {Path(command[0]).name} ended with "
                      f"{done.returncode}: {said}")
    return done.returncode == 0
