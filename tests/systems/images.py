#!/usr/bin/env python3
"""images.py [--list] [--build FOLDER] [--folder FOLDER] [--ccache FOLDER] [cpu|cuda]...: runs the steps of the
Dockerfile for its images, cpu if none is named, in chroots of Debian 13, since Docker is mostly not to be had where
tests run; trains in the image, and runs there the Kubernetes job of the guide on clusters on two hosts. It needs
root, debootstrap, the programs of build/simt, and 5 GB for cpu, 15 for cuda. `--list` only reads the file.
Exit codes: 0 passed, 1 failed, 2 wrong use.

It knows the instructions that the Dockerfile has, and refuses all others. A stage is a folder that begins as a
copy of the one it is made from. What Docker has beside that, such as layers, users and networks, is not here."""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MIRROR = "http://deb.debian.org/debian"
# What `debian:trixie-slim` has in debian.sources; debootstrap writes another file.
IMAGES = {"debian:trixie-slim": "trixie"}
SOURCES = f"""Types: deb
URIs: {MIRROR}
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: {MIRROR}-security
Suites: trixie-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
# Mounts are those of the processes in the chroot alone, and end with them. $3 may be a folder for ccache.
ENTER = """set -e; mount -t proc proc "$1/proc"; mount --rbind /sys "$1/sys"; mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/dev/shm"
if [ -n "$3" ]; then mkdir -p "$1/root/.cache/ccache"; mount --bind "$3" "$1/root/.cache/ccache"; fi
root=$1 place=$2; shift 3; exec chroot "$root" env -i -C "$place" "$@" """


class Refused(Exception):
    """A step that fails, or that this script does not know."""


@dataclasses.dataclass
class Stage:
    name: str
    base: str
    steps: list  # of (instruction, its words as text)


def say(name, seconds, what):
    print(f"{name:10} {int(seconds) // 60:3}:{int(seconds) % 60:02}  {what[:95]}", flush=True)


def stages_of(text):
    """The stages of a Dockerfile."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    stages = {}
    for line in re.sub(r"\\\n", "", text).splitlines():
        if not line.strip():
            continue
        instruction, rest = line.split(None, 1)
        if instruction == "FROM":
            found = re.fullmatch(r"(\S+) AS (\S+)", rest.strip())
            if not found:
                raise Refused(f"FROM {rest}: only `FROM IMAGE AS NAME` is known")
            stages[found[2]] = Stage(found[2], found[1], [])
        elif instruction not in ("RUN", "COPY", "ENV", "WORKDIR", "SHELL"):
            raise Refused(f"the instruction {instruction} is not known: {line}")
        elif instruction == "RUN" and "apt" in re.split(r"[\s-]", rest):
            raise Refused(f"the table of scripts/install_deps has the packages' names, and it installs them: {line}")
        elif not stages:
            raise Refused(f"a step before the first FROM: {line}")
        else:
            list(stages.values())[-1].steps.append((instruction, rest))
    return stages


@dataclasses.dataclass
class State:
    """What steps change beside files."""
    environment: dict
    place: str = "/"
    shell: tuple = ("/bin/sh", "-c")


class Builder:
    def __init__(self, folder, ccache):
        self.folder = folder
        self.ccache = ccache
        self.stages = stages_of((SOURCE / "Dockerfile").read_text(encoding="utf-8"))
        self.states = {}

    def root(self, name):
        return self.folder / f"image-{name}"

    def log(self, name):
        return self.folder / f"image-{name}.log"

    def inside(self, name, state, command):
        """The command line that runs `command` in a stage."""
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", str(self.root(name)),
                state.place, self.ccache, *(f"{key}={value}" for key, value in state.environment.items()), *command]

    def check(self, command, name, what):
        with self.log(name).open("ab") as log:
            if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode:
                raise Refused(f"{what} failed; its messages are in {self.log(name)}")

    def bare(self, image, name):
        """A copy of the image that others make, which debootstrap makes here."""
        if image not in IMAGES:
            raise Refused(f"the image {image} is not known: {', '.join(IMAGES)} are")
        base = self.folder / f"images-base-{IMAGES[image]}"
        if not base.exists():
            unfinished = base.with_name(base.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            self.check(["debootstrap", "--variant=minbase", IMAGES[image], unfinished, MIRROR], name, "debootstrap")
            (unfinished / "etc/apt/sources.list").unlink()
            (unfinished / "etc/apt/sources.list.d/debian.sources").write_text(SOURCES)
            unfinished.rename(base)
        return base, State({"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"})

    def build(self, name):
        """Builds a stage after those that it needs, unless it has been built."""
        if name in self.states:
            return
        stage = self.stages[name]
        for instruction, words in stage.steps:
            if instruction == "COPY" and words.startswith("--from="):
                self.build(words.split()[0].removeprefix("--from="))
        self.log(name).write_text("")
        if stage.base in self.stages:
            self.build(stage.base)
            base, state = self.root(stage.base), self.states[stage.base]
        else:
            base, state = self.bare(stage.base, name)
        state = State(dict(state.environment), state.place, state.shell)
        shutil.rmtree(self.root(name), ignore_errors=True)
        subprocess.run(["cp", "-a", base, self.root(name)], check=True)
        # Docker gives a container the name servers of its host, and a name.
        shutil.copy("/etc/resolv.conf", self.root(name) / "etc/resolv.conf")
        (self.root(name) / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.0.1 {os.uname().nodename}\n")
        for instruction, words in stage.steps:
            started = time.monotonic()
            getattr(self, instruction.lower())(name, state, words)
            say(name, time.monotonic() - started, f"{instruction} {' '.join(words.split())}")
        self.states[name] = state

    def run(self, name, state, words):
        if words.startswith("--"):
            raise Refused(f"RUN {words.split()[0]} is not known")
        self.check(self.inside(name, state, [*state.shell, words]), name, f"RUN {words}")

    def env(self, _, state, words):
        for setting in shlex.split(words):
            key, equals, value = setting.partition("=")
            if not equals:
                raise Refused(f"ENV {words}: only `ENV NAME=VALUE` is known")
            state.environment[key] = re.sub(r"\$(\w+)", lambda found: state.environment.get(found[1], ""), value)

    def workdir(self, name, state, words):
        state.place = str(pathlib.PurePosixPath(state.place) / words.strip())
        (self.root(name) / state.place.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def shell(self, _, state, words):
        state.shell = tuple(json.loads(words))

    def copy(self, name, state, words):
        sources = words.split()
        target = sources.pop()
        root, ignored = SOURCE, (SOURCE / ".dockerignore").read_text(encoding="utf-8").split()
        if sources[0].startswith("--from="):
            root, ignored = self.root(sources.pop(0).removeprefix("--from=")), []
        if any(source.startswith("--") for source in sources):
            raise Refused(f"COPY {words}: only --from= is known")
        to = self.root(name) / str(pathlib.PurePosixPath(state.place) / target).lstrip("/")
        for source in sources:
            path = root / source.lstrip("/")
            if path.is_dir():  # Docker copies what is in it
                to.mkdir(parents=True, exist_ok=True)
                exclude = [f"--exclude=./{pattern}" for pattern in ignored]
                pack = subprocess.Popen(["tar", "-C", path, *exclude, "-cf", "-", "."], stdout=subprocess.PIPE)
                subprocess.run(["tar", "-C", to, "--no-same-owner", "-xf", "-"], stdin=pack.stdout, check=True)
                if pack.wait():
                    raise Refused(f"COPY {words} failed")
            else:
                if target.endswith("/"):
                    to.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, to)


def try_image(builder, name, build):
    """Trains in the image as its first lines say, with two ranks, and on two hosts as a job of Kubernetes."""
    text = builder.root(name) / "work/text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 2000)
    flags = ("--data text.txt --n-layer 2 --n-head 2 --n-embd 32 --context 32 --batch-size 4 --steps 3 "
             "--sample-tokens 0 --device cpu")
    shutil.rmtree(builder.root(name) / "work/runs", ignore_errors=True)
    for command in (f"train_gpt2 {flags} --output runs/one", "sluice generate --model runs/one/model --prompt the "
                    "--device cpu --max-tokens 3", f"mpirun -n 2 --oversubscribe train_gpt2 {flags} --output runs/two"):
        started = time.monotonic()
        builder.check(builder.inside(name, builder.states[name], shlex.split(command)), name, command)
        say(name, time.monotonic() - started, f"passed: {command}")
    started = time.monotonic()
    environment = [f"--image-env={key}={value}" for key, value in builder.states[name].environment.items()]
    builder.check([SOURCE / "tests/hosts/run.py", "--build", build, "--image", builder.root(name), *environment,
                   "guide: 5"], name, "the guide's Kubernetes job")
    say(name, time.monotonic() - started, "passed: the guide's Kubernetes job, with its sshd, on two hosts")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=SOURCE / "build/images")
    parser.add_argument("--ccache", default="", help="a folder for ccache, which a build of Docker has not")
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/simt", help="of this machine")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("image", nargs="*", metavar="cpu|cuda")
    options = parser.parse_args()
    if not set(options.image) <= {"cpu", "cuda"}:
        parser.error(f"{' '.join(options.image)}: the images are cpu and cuda")
    try:
        if options.list:
            for stage in stages_of((SOURCE / "Dockerfile").read_text(encoding="utf-8")).values():
                print(f"{stage.name}: {', '.join(instruction for instruction, _ in stage.steps)}")
            return 0
        options.folder.mkdir(parents=True, exist_ok=True)
        builder = Builder(options.folder.resolve(), options.ccache)
        for image in options.image or ["cpu"]:
            builder.build(image)
            try_image(builder, image, options.build)
    except Refused as refused:
        print(f"images: error: {refused}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
