"""The commands of the guide on clusters, in small, on two hosts: all blocks of sections 1 and 2, then those of
one section, as if a reader typed them. What a block of ```text or of ```console shows must be printed."""
import contextlib
import importlib.machinery
import importlib.util
import re
import subprocess
import sys

import container
import jobs
import launchers
import packages
import training
from two_hosts import LIMIT, NAMES, NETWORK, TwoHosts, wait_until

PAGE = packages.SOURCE / "docs/guide/on-a-cluster.md"
# Sections that need hosts of their own kind. All others are run before each of them.
MESSAGES = "## 7. What messages mean"
SLURM, SSH, KUBERNETES = "3. Slurm", "4. Hosts with ssh", "5. Kubernetes"

# Commands that nothing runs, and why. No other block or command of the guide is left out.
NOT_RUN = {
    "docker build --target cuda -t registry.example/sluice-cuda .":
        "there is no Docker here; `scripts/test images` runs the steps of the Dockerfile",
    "docker push registry.example/sluice-cuda": "there is no registry",
    "kubectl apply -f job.yaml": "there is no Kubernetes; container.py runs the commands of the containers",
    "kubectl logs -f job/gpt2-xl-launcher": "there is no Kubernetes",
}
# What the guide has, and what it is in small. Each is somewhere in the guide.
IN_SMALL = {
    'model = "gpt2-xl"\n': "n-layer = 4\nn-head = 2\nn-embd = 32\ncontext = 32\nval-steps = 1\nsample-tokens = 0\n",
    "batch-size = 1024\n": "batch-size = 8\n",
    "steps = 100000\n": "steps = 1000000\n",
    "pp = 4\ntp = 4\n": "pp = 2\ntp = 2\n",
    'pipeline = "interleaved*4"\n': 'pipeline = "interleaved*2"\n',
    "zero = 1\nmicro-batch = 4\n": "zero = 1\nmicro-batch = 2\n",
    "threads = 8\n": "threads = 1\n",
    "#SBATCH --nodes=128\n": "#SBATCH --nodes=2\n",
    "#SBATCH --ntasks-per-node=8\n": "#SBATCH --ntasks-per-node=2\n",
    "#SBATCH --gpus-per-node=8\n": "#SBATCH --gpus-per-node=2\n",
    "#SBATCH --cpus-per-task=8\n": "#SBATCH --cpus-per-task=1\n",
    "slots=8\n": "slots=2\n",
    "launch -n 16 ": "launch -n 4 ",
    '-n, "16",': '-n, "4",',
    "slotsPerWorker: 8\n": "slotsPerWorker: 2\n",
    "node1": "hosta",
    "node2": "hostb",
    "10.0.0.0/16": NETWORK,
    "job 1234\n": "job 1\n",  # Slurm's first
    "job 1235\n": "job 2\n",
    "USR1 1234\n": "USR1 1\n",
}


def load_run_guides():
    loader = importlib.machinery.SourceFileLoader("run_guides", str(packages.SOURCE / "scripts/run_guides"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_guides", loader))
    sys.path.append(str(packages.SOURCE / "scripts"))
    sys.modules["run_guides"] = module
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


run_guides = load_run_guides()


class Wrong(Exception):
    """What is wrong with a block."""


def in_small(text):
    for large, small in IN_SMALL.items():
        text = text.replace(large, small)
    return text


def commands_of(block):
    """The commands of a ```console block, each with the lines that it shows."""
    commands = []
    for line in block.lines:
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif commands:
            commands[-1][1].append(line)
        else:
            raise Wrong(f"line {block.first}: a block of ```console begins with '$ '")
    return commands


def require_shown(lines, output):
    """Each of the lines, where `...` stands for anything, is in the output, one after another."""
    place = 0
    for line in lines:
        pattern = ".*".join(re.escape(part) for part in in_small(line + "\n").rstrip("\n").split("..."))
        found = re.compile(f"^{pattern}$", re.MULTILINE).search(output, place)
        if not found:
            raise Wrong(f"the guide shows '{line}', which is not in:\n{output}")
        place = found.end()


def check_blocks():
    """Each block has a label with which it is run, and what is never run is in NOT_RUN, and only that."""
    blocks = run_guides.blocks_of(PAGE)
    text = PAGE.read_text(encoding="utf-8")
    not_run = set(NOT_RUN)
    before = ""
    for block in blocks:
        if block.language not in ("sh", "console", "text"):
            return f"line {block.first}: ```{block.language} is none of ```sh, ```console and ```text, which are tested"
        if block.language == "console":
            not_run -= {command for command, _ in commands_of(block)}
        if block.language == "text" and before != "sh":
            return f"line {block.first}: ```text is what the ```sh block before it prints, and there is none"
        if block.language == "text" and any(line.startswith("$ ") for line in block.lines):
            return f"line {block.first}: a block of ```text has a command; its label is ```console"
        before = block.language
    if not_run:
        return f"NOT_RUN has what the guide has not: {not_run}"
    unknown = [large for large in IN_SMALL if large not in text]
    if unknown:
        return f"IN_SMALL has what the guide has not: {unknown}"
    missing = {SLURM, SSH, KUBERNETES} - {block.section for block in blocks}
    return f"the guide has no commands in {missing}" if missing else ""


def words_found(message, fragments):
    """The most words of fragments that follow each other in a message too, from any of them on."""
    most = 0
    for first in range(len(fragments)):
        place = words = 0
        for fragment in fragments[first:]:
            place = message.find(fragment, place)
            if place < 0:
                break
            place += len(fragment)
            words += len(fragment.split())
        most = max(most, words)
    return most


def check_messages():
    """The programs' messages in the guide's table are those of the sources: three words or more of each are in a
    text there, beside values. Messages of others begin with the name and a colon."""
    files = [*packages.SOURCE.glob("apps/**/*.cpp"), *packages.SOURCE.glob("parallel/**/*.cpp"),
             packages.SOURCE / "scripts/launch"]
    sources = "\n".join(file.read_text(encoding="utf-8") for file in files)
    sources = re.sub(r'"\s*\n\s*"', "", sources).replace("\\\n", "")  # a text over several lines
    texts = [[part.strip(" :;,'$") for part in re.split(r"\{[^}]*\}|\$\w+|%s|error: ", text) if len(part.strip()) > 1]
             for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', sources)]
    page = PAGE.read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]*)` \|", page[page.index(MESSAGES):], re.MULTILINE)
    for message in messages:
        if not any(words_found(message, text) >= 3 for text in texts):
            return f"no program says '{message}'"
    return "" if messages else "the table of messages is empty"


class Reader:
    """Types the guide's commands on hosta, in a folder that both hosts see."""

    def __init__(self, hosts, bin_folder):
        self.hosts = hosts
        self.folder = hosts.folder / "shared/project"
        self.folder.mkdir()
        environment = {"PATH": f"{self.folder}/build/default/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        run_guides.furnish(self.folder, bin_folder, environment)
        self.folder.joinpath("typed").mkdir()
        self.shell = hosts.start("hosta", ["env", *(f"{name}={value}" for name, value in environment.items()),
                                           "bash", "--norc"], stdin=subprocess.PIPE)
        self.number = 0

    def type(self, command, strict=False):
        """Runs a command in the reader's shell. Returns its output; it must succeed."""
        self.number += 1
        out, code = (self.folder / f"typed/{self.number}.{name}" for name in ("out", "code"))
        if strict:
            script = self.folder / f"typed/{self.number}.sh"
            script.write_text(command)
            command = f"bash -euE -o pipefail {script}"
        self.shell.stdin.write(f"cd {self.folder}\n{{ {command}\n}} < /dev/null > {out} 2>&1\n"
                               f"echo $? > {code}.new; mv {code}.new {code}\n")
        self.shell.stdin.flush()
        if not wait_until(code.exists, 2 * LIMIT):
            raise Wrong(f"'{command}' does not end:\n{out.read_text()}")
        output = out.read_text()
        if code.read_text().strip() != "0":
            raise Wrong(f"'{command}' has exit code {code.read_text().strip()}:\n{output}")
        return output

    def steps(self):
        return [event["step"] for event in training.events(self.folder / "run") if event["event"] == "train"]

    def wait_for_steps(self, more, so_far):
        if not wait_until(lambda: len(self.steps()) >= so_far + more, LIMIT):
            logs = sorted([*self.folder.glob("*.out"), *self.folder.glob("*.log"),
                           *self.folder.parent.glob("slurm/*.log")])
            raise Wrong("does not train:\n" + "".join(f"{log.name}:\n{log.read_text()}" for log in logs))

    def wait_for_end(self):
        """Waits until the training has stopped, which must have saved its last step."""
        if not wait_until(lambda: not any(self.hosts.processes(host, "train_gpt2") for host in NAMES)):
            raise Wrong("the training does not stop")
        last = self.steps()[-1]
        if not wait_until(lambda: (self.folder / f"run/checkpoints/step-{last:08}").exists(), 5):
            raise Wrong(f"step {last} was not saved: {list(self.folder.glob('run/checkpoints/*'))}")


def slurm_state(reader, job):
    return re.search(r"JobState=(\S+)", reader.type(f"scontrol show job {job}"))[1]


def type_console(reader, block):
    """Each command of a ```console block. A training that was started does some steps before the next command;
    one that was asked to stop has saved and ended."""
    for command, shown in commands_of(block):
        if command in NOT_RUN:
            continue
        so_far = len(reader.steps())
        output = reader.type(in_small(command + "\n").rstrip("\n"))
        require_shown(shown, output)
        if command.startswith(("sbatch ", "nohup ")):
            reader.wait_for_steps(3, so_far)
        elif command.startswith(("scancel ", "kill ")):
            reader.wait_for_end()
        if command.startswith("kill "):
            reader.type("wait $!")  # its exit code
        if command.startswith("scancel ") and not wait_until(lambda: slurm_state(reader, 1) == "COMPLETED"):
            raise Wrong(f"Slurm's job is {slurm_state(reader, 1)}: {reader.type('cat slurm-1.out')}")
    steps = reader.steps()
    if steps != list(range(1, len(steps) + 1)):
        raise Wrong(f"the steps do not follow each other: {steps}")


@contextlib.contextmanager
def hosts_for(section, folder, cache):
    if section == SLURM:
        with jobs.hosts_for(jobs.Launcher("", launchers.slurm_pmix, needs="slurm"), folder, cache) as hosts:
            yield hosts
    else:
        with TwoHosts(folder / "hosts") as hosts:
            yield hosts


def needs(section):
    return "slurm" if section == SLURM else ""


def missing(section, cache):
    """Why a section cannot be tested, or nothing."""
    if section == KUBERNETES and container.yaml is None:
        return "this python3 has no module yaml (Debian: python3-yaml)"
    return packages.missing(cache, needs(section), packages.PMIX_OF_SLURM if section == SLURM else "")


def run_section(section, bin_folder, folder, cache, image, image_environment):
    """Returns what is wrong with the commands of a section, or nothing."""
    with hosts_for(section, folder, cache) as hosts:
        try:
            reader = Reader(hosts, bin_folder)
            if section == SSH:
                hosts.instead_of_ssh()
            output = ""
            for block in run_guides.blocks_of(PAGE):
                if block.section in (SLURM, SSH, KUBERNETES) and block.section != section:
                    continue
                if block.language == "sh":
                    output = reader.type(in_small(block.text()), strict=True)
                elif block.language == "console":
                    type_console(reader, block)
                else:
                    require_shown(block.lines, output)
            if section == KUBERNETES:
                container.run_job(reader, image, image_environment)
        except (Wrong, ValueError, KeyError) as wrong:
            return f"{type(wrong).__name__}: {wrong}"
    return ""


CHECKS = {"guide: every block is run or listed": check_blocks, "guide: every message is a program's": check_messages}
SECTIONS = {f"guide: {section}": section for section in (SLURM, SSH, KUBERNETES)}
