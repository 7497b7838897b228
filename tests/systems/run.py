#!/usr/bin/env python3
"""run.py [--list] [--quickstart] [--folder FOLDER] [--ccache FOLDER] [NAME]...: makes a bare chroot of each
system of today by debootstrap, copies a `git clone` of this tree into it, runs there both commands of the
README, scripts/quickstart and scripts/test, and prints a table of what came of it. NAMEs are of --list; all
without one. It needs root, and takes about half an hour and 6 GB for each. Exit codes: 0 passed, 1 failed,
2 wrong use."""
import argparse
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
CLONE = "/src"  # in each chroot: one place, so that a cache serves all
MIRROR = "http://deb.debian.org/debian"
System = collections.namedtuple("System", "name suite compiler account")
SYSTEMS = [
    System("debian-12", "bookworm", "", "root"),
    System("debian-13", "trixie", "", "root"),
    System("debian-testing", "testing", "", "root"),
    System("debian-13-clang", "trixie", "clang++", "root"),
    System("debian-12-user", "bookworm", "", "sluice"),
    System("debian-13-user", "trixie", "", "sluice"),
    System("debian-testing-user", "testing", "", "sluice"),
]
# What the table says of a system, by the name of its package.
LIBRARIES = {"CMake": "cmake", "Catch2": "libcatch2-dev catch2", "oneDNN": "libdnnl-dev", "Open MPI": "libopenmpi-dev",
             "fmt": "libfmt-dev", "CLI11": "libcli11-dev"}


def fail(sentence, code=1):
    print(f"systems: error: {sentence}", file=sys.stderr)
    sys.exit(code)


def check(command, log, what):
    with log.open("ab") as file:
        if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file).returncode != 0:
            fail(f"{what} failed; its messages are in {log}")


def bare_system(system, folder, log):
    """A new chroot, from a copy of the bare system that debootstrap made once."""
    base, root = folder / f"base-{system.suite}", folder / system.name
    if not base.exists():
        unfinished = folder / f"base-{system.suite}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        check(["debootstrap", "--variant=minbase", system.suite, unfinished, MIRROR], log, "debootstrap")
        unfinished.rename(base)
    shutil.rmtree(root, ignore_errors=True)
    check(["cp", "-a", base, root], log, "copying the bare system")
    # A name server answers late, or not at all, for a machine that has only a name of its own.
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.0.1 {os.uname().nodename}\n")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    # A mirror of `testing` that lags behind is good enough.
    (root / "etc/apt/apt.conf.d/90late").write_text('Acquire::Check-Valid-Until "false";\n')
    return root


# Mounts are those of the processes in it alone, and end with them. Its root is one by pivot_root: in a
# chroot tests could not make namespaces of their own.
ENTER = """set -e; mount --rbind "$1" "$1"; cd "$1"
mount -t proc proc proc; mount --rbind /sys sys; mount --rbind /dev dev; mount -t tmpfs tmpfs dev/shm
if [ -n "$2" ]; then mkdir -p ccache; mount --bind "$2" ccache; fi
mkdir -p old; pivot_root . old; cd /; umount -l /old; rmdir old
exec /bin/su - "$3" -c "$4" """


def run(root, account, command, ccache, log):
    """Returns the exit code and the seconds of a command in the chroot, by a login shell of that account."""
    entering = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", root,
                ccache, account, command]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TERM": "dumb", "LANG": "C.UTF-8"}
    started = time.monotonic()
    with log.open("ab") as file:
        code = subprocess.run(entering, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                              env=environment).returncode
    return code, time.monotonic() - started


def output_of(root, command):
    return subprocess.run(["chroot", root, "sh", "-c", command], capture_output=True, text=True).stdout.strip()


def prepare(system, root, log):
    """The clone, and an account that may use sudo, which a bare system lacks."""
    if system.account != "root":
        check(["chroot", root, "sh", "-c", "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y "
               f"install --no-install-recommends sudo && useradd -m -s /bin/bash {system.account} && "
               f"echo '{system.account} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/{system.account}"],
              log, "preparing an account with sudo")
    check(["git", "clone", "-q", "--no-hardlinks", SOURCE, root / CLONE[1:]], log, "git clone")
    check(["chroot", root, "chown", "-R", f"{system.account}:", CLONE], log, "chown")


def skipped_tests(log):
    """Name and reason of each skipped test, from the log that ctest keeps."""
    reasons, name = {}, ""
    for line in log.read_text(errors="replace").splitlines():
        started = re.match(r"\d+/\d+ Testing: (.*)", line)
        if started:
            name = started[1]
        why = re.match(r"\s*skipped: (.*)", line)
        if why and name:
            reasons[name] = why[1]
    return reasons


def counts(text):
    """Passed, failed and skipped tests, of what ctest prints last, and the names of the latter two."""
    total = re.findall(r"(\d+) tests? failed out of (\d+)", text)
    if not total:
        return None
    end = text[text.rindex("tests passed"):]
    skipped = re.findall(r"^\s*\d+ - (.*) \((?:Skipped|Disabled|Not Run)\)", end, re.M)
    failed = re.findall(r"^\s*\d+ - (.*) \((?:Failed|Timeout|SEGFAULT|Subprocess aborted)\)", end, re.M)
    return int(total[-1][1]) - int(total[-1][0]) - len(skipped), failed, skipped


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def try_system(system, options):
    """Returns the rows of the table, the skipped tests with their reasons, and whether all is well."""
    options.folder.mkdir(parents=True, exist_ok=True)
    log = options.folder / f"{system.name}.log"
    log.write_text("")
    root = bare_system(system, options.folder, log)
    prepare(system, root, log)
    export = ""
    if system.compiler:
        export += f"export CXX={system.compiler}; "
    if options.ccache:
        export += "export CCACHE_DIR=/ccache; "
    cache = options.ccache
    if cache:  # an account can only use files of its own
        cache = pathlib.Path(cache).resolve() / system.account
        cache.mkdir(parents=True, exist_ok=True)
        owner = (root / CLONE[1:]).stat()
        os.chown(cache, owner.st_uid, owner.st_gid)
    rows, reasons, well = [], {}, True
    for command in ["scripts/quickstart"] + ([] if options.quickstart else ["scripts/test"]):
        print(f"systems: {system.name}: {command} (log: {log})", flush=True)
        begin = log.stat().st_size
        code, seconds = run(root, system.account, f"{export}cd {CLONE} && {command}", cache, log)
        text = log.read_bytes()[begin:].decode(errors="replace")
        found = counts(text) if command == "scripts/test" else None
        well = well and code == 0
        cells = ["passed" if code == 0 else f"FAILED with code {code}", "", ""]
        if found:
            cells = [str(found[0]), str(len(found[1])), str(len(found[2]))]
            for name in found[1]:
                print(f"systems: {system.name}: FAILED {name}", flush=True)
            last = root / CLONE[1:] / "build/simt/Testing/Temporary/LastTest.log"
            told = skipped_tests(last)
            reasons = {name: told.get(name, "no reason was printed") for name in found[2]}
        rows.append([system.name, command, clock(seconds)] + cells)
        if code != 0:
            break
    compiler = output_of(root, f"{system.compiler or 'c++'} --version | head -n 1")
    versions = [f"{name} {version}" for name, package in LIBRARIES.items()
                if (version := output_of(root, f"dpkg-query -W -f='${{Version}}\\n' {package} 2> /dev/null | tail -n 1"))]
    return rows, reasons, [system.name, compiler, ", ".join(versions)], well


def table(header, rows):
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--quickstart", action="store_true", help="scripts/quickstart alone")
    parser.add_argument("--folder", type=pathlib.Path, default=SOURCE / "build/systems", help="of the chroots")
    parser.add_argument("--ccache", default="", help="a cache to compile with; the times then say little")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    known = {system.name: system for system in SYSTEMS}
    if options.list:
        print("\n".join(known))
        return 0
    for name in options.names:
        if name not in known:
            fail(f"'{name}' is none of: {', '.join(known)}", 2)
    if os.geteuid() != 0:
        fail("only root can make a chroot: run this with sudo")
    for tool, package in {"debootstrap": "debootstrap", "unshare": "util-linux", "git": "git"}.items():
        if shutil.which(tool) is None:
            fail(f"{tool} is missing: apt-get install {package}")
    options.folder = options.folder.resolve()
    if subprocess.run(["git", "-C", SOURCE, "status", "--porcelain"], capture_output=True).stdout:
        print("systems: note: what is not committed is not tried")
    results = [try_system(known[name], options) for name in options.names or known]
    table(["system", "compiler", "packages"], [result[2] for result in results])
    table(["system", "command", "time", "passed", "failed", "skipped"],
          [row for result in results for row in result[0]])
    for rows, reasons, versions, _ in results:
        for name, why in reasons.items():
            print(f"skipped on {versions[0]}: {name}: {why}")
    return 0 if all(result[3] for result in results) else 1


sys.exit(main())
