#!/usr/bin/env python3
"""coverage_table.py BUILD SOURCE...

Prints how many lines and branches of each source file (paths from the root of the tree) were
reached by the programs of a build with -DSLUICE_COVERAGE=ON, and which were not. A branch is one
way out of a decision that the source makes. gcov also counts those that the compiler adds: whether a
call ends in an exception, and what destructors do then. They are left out: the former are marked,
the latter stand on lines that decide nothing.
"""

import json
import pathlib
import re
import subprocess
import sys

from own_files import checked_output

DECIDES = re.compile(r"\b(if|for|while|switch|case)\b|\?|&&|\|\|")


def decisions(branches):
    """The branches that are not one of a call's two ends."""
    kept = []
    for branch in branches:
        if not branch["throw"]:
            kept.append(branch["count"])
        elif kept:
            kept.pop()  # the call's other end, which gcov lists before it
    return kept


def measured(build, source):
    """{line: times it ran}, {(line, place of the branch): times it was taken}."""
    objects = list(pathlib.Path(build).rglob("*/" + source.split("/", 1)[1] + ".gcda"))
    objects = [path for path in objects if source.split("/")[0] in path.parts]
    text_of = pathlib.Path(source).read_text().splitlines()
    lines, branches = {}, {}
    for data in objects:
        text = subprocess.run(["gcov", "--json-format", "--stdout", "--branch-probabilities",
                               data.resolve()], capture_output=True, check=True).stdout
        for file in json.loads(text)["files"]:
            if not file["file"].endswith(source):
                continue
            for line in file["lines"]:  # several times where it is in a template
                number = line["line_number"]
                lines[number] = lines.get(number, 0) + line["count"]
                if not DECIDES.search(text_of[number - 1]):
                    continue
                for place, count in enumerate(decisions(line["branches"])):
                    branches[number, place] = branches.get((number, place), 0) + count
    return lines, branches


def spans(numbers):
    """[3, 4, 5, 9] as "3-5 9"."""
    runs = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def share(counts):
    return 100 * sum(count > 0 for count in counts) / len(counts) if counts else 100


def main():
    build, sources = sys.argv[1], sys.argv[2:]
    all_lines, all_branches, missing = [], [], []
    print(f"{'file':44}{'lines':>14}{'branches':>16}")
    for source in sources:
        lines, branches = measured(build, source)
        if not lines:
            missing.append(source)
            continue
        print(f"{source:44}{share(lines.values()):8.1f} %{len(lines):4}"
              f"{share(branches.values()):10.1f} %{len(branches):4}")
        left = spans(n for n, count in lines.items() if count == 0)
        halves = spans(n for (n, _), count in branches.items() if count == 0 and lines[n] > 0)
        if left:
            print(f"    lines not run:      {left}")
        if halves:
            print(f"    decided one way:    {halves}")
        all_lines += lines.values()
        all_branches += branches.values()
    print(f"{'together':44}{share(all_lines):8.1f} %{len(all_lines):4}"
          f"{share(all_branches):10.1f} %{len(all_branches):4}")
    if missing:
        print("coverage: error: nothing was counted of", *missing, file=sys.stderr)
        sys.exit(1)


with checked_output():
    main()
