"""Which tests enter the functions that a line of source is compiled into (for scripts/mutate).

Every function of the build calls __fentry__ first (-pg -mfentry). HOOK, which is linked into every
program, marks the call's address in a file of the program's name under the folder $SLUICE_REACHED, if
it is set. Debug information says which lines a function was made of, inlined ones included.
"""
import bisect
import os
import re
import subprocess
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

COMPILE_OPTIONS = "-pg -mfentry -g1 -gno-column-info"
HOOK = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
extern "C" char __executable_start[], etext[], *program_invocation_short_name;
extern "C" {
unsigned char* sluice_reached = nullptr;
unsigned long sluice_reached_bytes = 0;
}
// A function is about to begin: registers hold its arguments. It may be one of a shared library, which has
// no marks.
extern "C" __attribute__((naked)) void __fentry__() {
  asm("pushq %rax\n pushq %rcx\n movq sluice_reached(%rip), %rax\n testq %rax, %rax\n je 1f\n"
      "movq 16(%rsp), %rcx\n leaq __executable_start(%rip), %r11\n subq %r11, %rcx\n"
      "cmpq sluice_reached_bytes(%rip), %rcx\n jae 1f\n"
      "cmpb $0, (%rax,%rcx)\n jne 1f\n movb $1, (%rax,%rcx)\n 1: popq %rcx\n popq %rax\n ret");
}
__attribute__((constructor(101))) static void open_marks() {
  const char* folder = getenv("SLUICE_REACHED");
  if (folder == nullptr) return;
  char path[4096];
  strcat(strcat(strcpy(path, folder), "/"), program_invocation_short_name);
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return;
  const auto size = static_cast<off_t>(etext - __executable_start);
  struct stat status;
  // A test may limit the size of files, here too; then nothing is marked.
  const auto before = signal(SIGXFSZ, SIG_IGN);
  if (fstat(file, &status) == 0 && (status.st_size >= size || ftruncate(file, size) == 0)) {
    void* marks = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (marks != MAP_FAILED) {
      sluice_reached_bytes = static_cast<unsigned long>(size);
      sluice_reached = static_cast<unsigned char*>(marks);
    }
  }
  signal(SIGXFSZ, before);
  close(file);
}
"""


def output(*command):
    return subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, check=True,
                          errors="replace").stdout


def functions_of(program):
    """The functions of a program, in order: (first address, end, name)."""
    found = set()
    for line in output("nm", "--defined-only", "-S", program).splitlines():
        words = line.split(maxsplit=3)
        if len(words) == 4 and words[2] in "tTwWuVi":
            start = int(words[0], 16)
            found.add((start, start + int(words[1], 16), words[3]))
    return sorted(found)


def lines_of(program, functions, wanted):
    """For each function, by its name, the (file, line) that it was made of, where the file is wanted."""
    starts = [start for start, _, _ in functions]
    found = defaultdict(set)
    row = re.compile(r"^(\S+)\s+(\d+)\s+0x([0-9a-f]+)")
    for text in output("objdump", "--dwarf=decodedline", "-w", program).splitlines():
        match = row.match(text)
        if not match or match.group(1) not in wanted:
            continue
        address = int(match.group(3), 16)
        at = bisect.bisect_right(starts, address) - 1
        if at >= 0 and address < functions[at][1]:
            # The part of a function that is rarely run has a symbol of its own, and no call at its start.
            found[functions[at][2].split(".cold")[0]].add((match.group(1), int(match.group(2))))
    return found


class Reached:
    """What each test entered. Files are known by their last name alone, which may be that of several."""

    def __init__(self, programs, wanted):
        self.functions = {path.name: functions_of(path) for path in programs}
        self.lines = {path.name: lines_of(path, self.functions[path.name], wanted) for path in programs}
        self.programs = {}                   # test -> names of the programs that ran
        self.entered = defaultdict(set)      # (program, function) -> tests

    def note(self, test, folder):
        """Takes over the marks in a folder, which one test has left."""
        self.programs[test] = set()
        for path in folder.iterdir():
            functions = self.functions.get(path.name)
            if functions:
                self.programs[test].add(path.name)
                starts = [start for start, _, _ in functions]
                for mark in re.finditer(b"\1", path.read_bytes()):
                    at = bisect.bisect_right(starts, mark.start()) - 1
                    self.entered[path.name, functions[at][2]].add(test)
            path.unlink()

    def tests_by_line(self):
        """(file, line) -> tests that enter a function which has the line."""
        found = defaultdict(set)
        for (program, function), tests in self.entered.items():
            for place in self.lines[program].get(function, ()):
                found[place] |= tests
        return found


def run_tests(build, tests, limit, folder, note):
    """Runs each test by itself and calls note(test, folder). Returns {test: seconds}, the failed tests."""
    locks, noting, failed, seconds = defaultdict(threading.Lock), threading.Lock(), [], {}

    def run(test):
        marks = folder / str(test["number"])
        marks.mkdir(parents=True, exist_ok=True)
        result = subprocess.run(
            ["ctest", "--test-dir", str(build), "-I", f"0,0,0,{test['number']}", "--timeout", str(limit)],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=dict(os.environ, SLUICE_REACHED=str(marks)))
        took = re.search(r"(?:Passed|Skipped)\s+([\d.]+) sec", result.stdout)
        with noting:
            seconds[test["name"]] = float(took.group(1)) if took else 0
            if result.returncode != 0:
                failed.append(test["name"])
            note(test["name"], marks)

    def run_alone(test):
        with locks[test["lock"]]:
            run(test)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda test: run_alone(test) if test["lock"] else run(test), tests))
    return seconds, failed
