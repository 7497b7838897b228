#!/usr/bin/env python3
"""missing_test.py: what scripts/install_deps and CMake say where something is missing or too old, with stand-ins
for compilers, CMake, nvcc and Debian's tools."""
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
INSTALL = SOURCE / "scripts/install_deps"
SYSTEMS = ["bookworm", "trixie", "forky", "jammy", "noble"]
GROUPS = ["build", "test", "check", "runtime", "cuda", "cuda-runtime"]
GCC = 'echo "#define __GNUC__ {}"; echo "#define __GNUC_MINOR__ 4"; echo "#define __GNUC_PATCHLEVEL__ 0"'
CLANG = ('echo "#define __clang__ 1"; echo "#define __clang_major__ {}"; echo "#define __clang_minor__ 0"; '
         'echo "#define __clang_patchlevel__ 1"')
ALL_THERE = {
    "c++": GCC.format(14), "cmake": "echo cmake version 3.31.6", "g++-12": "exit 127",
    "sudo": '[ "$1" = -n ] && shift; exec "$@"',
    "nvcc": 'echo "nvcc: NVIDIA (R) Cuda compiler driver"; echo "Cuda compilation tools, release 12.4, V12.4.131"',
    "dpkg-query": "echo installed", "apt-get": "exit 0", "apt-cache": "echo Package: x",
}
OLD_NVCC = {"nvcc": "echo Cuda compilation tools, release 11.8, V11.8.89"}
MISSING_CATCH = {"dpkg-query": 'case "$*" in *catch2*) exit 1 ;; esac; echo installed'}
MISSING_CUDA = {"dpkg-query": 'case "$*" in *cuda*) exit 1 ;; esac; echo installed', "apt-cache": "exit 100"}
# system, group, stand-ins, variables, the line, without "install_deps: "
CASES = [
    ("trixie", "test", {}, {}, "all "),
    ("jammy", "build", {"cmake": "echo cmake version 3.22.1"}, {},
     "error: CMake is 3.22.1: 3.25 or newer is needed; on Ubuntu 22.04 (untried): apt-get install cmake, from the "
     "repository of CMake's makers (https://apt.kitware.com)"),
    ("bookworm", "build", {"cmake": "exit 127"}, {},
     "error: CMake is missing: 3.25 or newer is needed; on Debian 12: apt-get install cmake"),
    ("jammy", "build", {"c++": GCC.format(11)}, {},
     "error: the C++ compiler 'c++' is GCC 11.4.0: GCC 12 or clang 14, or a newer one, is needed; on Ubuntu 22.04 "
     "(untried): apt-get install g++-12"),
    ("jammy", "build", {"c++": GCC.format(11), "g++-12": GCC.format(12)}, {}, "all "),
    ("trixie", "build", {"clang++": CLANG.format(13)}, {"CXX": "clang++"},
     "error: the C++ compiler 'clang++' is clang 13.0.1: GCC 12 or clang 14, or a newer one, is needed; on "
     "Debian 13: apt-get install g++, or give another in CXX"),
    ("trixie", "build", {"clang++": CLANG.format(14)}, {"CXX": "clang++"}, "all "),
    ("bookworm", "cuda", OLD_NVCC, {},
     "error: the CUDA toolkit (STUBS/nvcc) is 11.8: 12.0 or newer is needed; on Debian 12: apt-get install "
     "cuda-toolkit-12-4, from NVIDIA's repository (https://developer.nvidia.com/cuda-downloads)"),
    ("trixie", "cuda", OLD_NVCC | MISSING_CUDA, {},
     "error: the CUDA toolkit (STUBS/nvcc) is 11.8: 12.0 or newer is needed; on Debian 13: apt-get install "
     "nvidia-cuda-toolkit, from the component non-free of the package sources"),
    ("trixie", "cuda-runtime", {"dpkg-query": "exit 1", "apt-cache": 'case "$*" in *lt12*) ;; *) echo x ;; esac'},
     {}, "error: the package libcublaslt12 is missing: on Debian 13 it is in the component non-free of the package "
     "sources; add that, and run this again"),
    ("forky", "test", MISSING_CATCH | {"apt-cache": "exit 100"}, {},
     "error: the package libcatch2-dev is in no package source of Debian testing: "),
    ("noble", "test", MISSING_CATCH | {"sudo": "exit 1"}, {"as": "nobody"},
     "error: this user cannot install (not root, and sudo does not work) what is missing; on Ubuntu 24.04 "
     "(untried), as root: apt-get install catch2"),
]

wrong = []


def expect(condition, what):
    if not condition:
        wrong.append(what)


def check_table():
    for system in SYSTEMS:
        for group in GROUPS:
            names = subprocess.run([INSTALL, "--system", system, "--list", group], capture_output=True,
                                   text=True).stdout.split()
            expect(len(names) > 5 and len(set(names)) == len(names) and
                   not any("/" in name or "=" in name or name == "-" for name in names),
                   f"--system {system} --list {group} printed {names}")


def check_case(folder, case):
    system, group, stand_ins, variables, line = case
    for name, text in (ALL_THERE | stand_ins).items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin"} | variables
    command = [INSTALL, "--system", system, group]
    if environment.pop("as", "") and os.geteuid() == 0:
        command = ["setpriv", "--reuid", "65534", "--clear-groups", "--", "bash", "-s", "--"] + command[1:]
    result = subprocess.run(command, input=INSTALL.read_text(), text=True, capture_output=True, env=environment)
    line = f"install_deps: {line.replace('STUBS', str(folder))}"
    told = [text for text in (result.stdout + result.stderr).splitlines() if text.startswith(line)]
    expect(len(told) == 1 and result.stderr.count("\n") <= 1 and max(map(len, told), default=0) <= 300 and
           result.returncode == (1 if ": error: " in line else 0),
           f"{case}: exit code {result.returncode}\n{result.stdout}{result.stderr}")


def check_cmake(folder):
    hint = subprocess.run([INSTALL, "--hint", "fmt"], capture_output=True, text=True).stdout.strip()
    expect("apt-get install libfmt-dev" in hint, f"--hint fmt printed '{hint}'")
    result = subprocess.run(["cmake", "-G", "Ninja", "-S", SOURCE, "-B", folder / "build",
                             "-DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON"],
                            capture_output=True, text=True)
    expect(result.returncode != 0 and f"fmt was not found; {hint}" in
           [text.strip() for text in result.stderr.splitlines()], f"CMake without fmt:\n{result.stderr}")


check_table()
for number, case in enumerate(CASES):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        check_case(pathlib.Path(folder), case)
with tempfile.TemporaryDirectory() as folder:
    check_cmake(pathlib.Path(folder))
print("\n".join(wrong))
sys.exit(1 if wrong else 0)
