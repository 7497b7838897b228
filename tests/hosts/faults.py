"""What goes wrong between two hosts, and the sentence that must be said about it.

A job of two ranks, one on each host, by Open MPI over TCP. Faults of a training come once it has done some
steps; those of a start are there before it, and must be told before step 1. Then the sentence must come,
and all processes on both hosts must end, mpirun among them, within --collective-timeout plus ten seconds."""
import dataclasses
import re
import shutil
import signal
import threading
from typing import Callable

import launchers
import training
from two_hosts import LIMIT, NAMES, TwoHosts, wait_until

PATIENCE = training.COLLECTIVE_TIMEOUT + 10
# mpirun has codes of its own for a host that is lost, and is killed if it does not end.
ANY_BUT_0 = ()


def link_down(hosts):
    hosts.link("hostb", "down")


def host_killed(hosts):
    hosts.signal("hostb", signal.SIGKILL)


def rank_killed(hosts):
    hosts.signal("hostb", signal.SIGKILL, "train_gpt2")


def rank_stopped(hosts):
    hosts.signal("hostb", signal.SIGSTOP, "train_gpt2")


def own_disks(hosts):
    """The output folder has the same path on both hosts, but each has its own."""
    return ["--output", hosts.folder / "local/run"]


def other_data(hosts):
    """One token of the text differs on hostb."""
    text = hosts.folder / "shared/text.txt"
    hosts.check("hostb", ["sh", "-c", f"sed 's/the quick/the quiet/' {text} > $TMPDIR/other"])
    hosts.check("hostb", ["mount", "--bind", hosts.folder / "local/other", text])


def other_build(hosts):
    """The program on hostb says another version of itself."""
    program, other = hosts.folder / "shared/train_gpt2", hosts.folder / "shared/other"
    other.write_bytes(program.read_bytes().replace(b"0.1.0", b"0.1.9"))
    other.chmod(0o755)
    hosts.check("hostb", ["mount", "--bind", other, program])


def full_disk(hosts):
    """The disk that both hosts write checkpoints to."""
    return ["--output", hosts.small / "run"]


def full_shm(hosts):
    """/dev/shm of hostb has no room for a page."""
    hosts.check("hostb", ["sh", "-c", "mount -t tmpfs -o size=16k tmpfs /dev/shm;"
                          "head -c 1M /dev/zero > /dev/shm/full 2> /dev/null; true"])


def nothing(_):
    """The fault is in how the hosts are made."""


def unknown_host(hosts):
    (hosts.folder / "shared/hostfile").write_text("hosta slots=1\nhostc slots=1\n")


@dataclasses.dataclass
class Fault:
    name: str
    happens: Callable  # may return flags in the place of others
    says: str  # a regular expression for what is printed
    exit_codes: tuple = (1,)
    in_training: bool = True  # or at the start
    closed_ports: tuple = ()  # from the start


# Where a rank has died, Open MPI 5 and 6 can end the others before they speak, and name the host.
DIED = r"(train_gpt2: error: .*rank 1\b.*hostb|Peer host: +hostb|rank 1 .*on node hostb exited)"

FAULTS = [
    Fault("the link to hostb goes down", link_down, r"train_gpt2: error: .*rank 1\b.*hostb",
          exit_codes=ANY_BUT_0),
    Fault("all processes on hostb are killed", host_killed, DIED,
          exit_codes=ANY_BUT_0),
    Fault("the rank on hostb is killed", rank_killed, DIED,
          exit_codes=ANY_BUT_0),
    Fault("the rank on hostb is stopped", rank_stopped, r"train_gpt2: error: .*rank 1\b.*hostb",
          exit_codes=ANY_BUT_0),
    Fault("each host has its own output folder", own_disks, r"train_gpt2: error: .*--output.*hostb",
          exit_codes=(2,), in_training=False),
    Fault("the data on hostb differ in a token", other_data,
          r"train_gpt2: error: .*\bdata.*", exit_codes=(2,), in_training=False),
    Fault("hostb has another build", other_build,
          r"train_gpt2: error: .*\b0\.1\.9", exit_codes=(2,), in_training=False),
    Fault("the disk is full at the save", full_disk,
          r"train_gpt2: error: .*not saved: .*No space left on device", in_training=False),
    Fault("/dev/shm of hostb is full", full_shm,
          r"(train_gpt2: error: .*/dev/shm.*No space left|done +5 of 5 steps)", exit_codes=(0, 1),
          in_training=False),
    Fault("the ports of the ranks' messages are closed", nothing,
          r"train_gpt2: error: rank \d.* waited .*\bhost",
          in_training=False, closed_ports=(launchers.FIRST_PORT, launchers.LAST_PORT)),
    Fault("the hostfile has an unknown host", unknown_host, r"hostc", exit_codes=(255,), in_training=False),
]


def name_of(fault):
    return f"fault: {fault.name}"


def replaced(flags, others):
    """The flags with the values of `others`, a list of flags and values, in the place of theirs."""
    flags = list(flags)
    for name, value in zip(others[::2], others[1::2]):
        flags[flags.index(name) + 1] = value
    return flags


class Output:
    """Collects what a process prints while it runs."""

    def __init__(self, process):
        self.text = ""
        self.process = process
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.text += line


def run_fault(fault, bin_folder, folder):
    """Returns what is wrong, or nothing."""
    with TwoHosts(folder / "hosts", closed_ports=fault.closed_ports) as hosts:
        shared = hosts.folder / "shared"
        (shared / "text.txt").write_text(training.TEXT)
        shutil.copy(bin_folder / "train_gpt2", shared)
        (shared / "run").mkdir()
        flags = training.flags(shared / "text.txt", shared / "run", mesh=["--dp", 2],
                               steps=1000000 if fault.in_training else 5)
        command = launchers.tcp(hosts, 2, None)
        if not fault.in_training:
            flags = replaced(flags, fault.happens(hosts) or [])
        job = hosts.start("hosta", [*command, shared / "train_gpt2", *flags])
        output = Output(job)
        if fault.in_training:
            if not wait_until(lambda: len(training.losses(shared / "run")) > 20):
                return f"does not train: {output.text}"
            fault.happens(hosts)
        patience = PATIENCE if fault.in_training else LIMIT
        ended = wait_until(lambda: not any(hosts.processes(host) for host in NAMES), patience)
        if not ended:
            left = {host: list(hosts.processes(host).values()) for host in NAMES}
            return f"after {patience} s there are still {left}; it said:\n{output.text}"
        output.thread.join()
        if not re.search(fault.says, output.text):
            return f"nothing like '{fault.says}' in:\n{output.text}"
        code = job.wait()
        if code == 0 if fault.exit_codes == ANY_BUT_0 else code not in fault.exit_codes:
            return f"exit code {job.returncode} of {fault.exit_codes}:\n{output.text}"
        if job.returncode == 2 and any((shared / "run").iterdir()):
            return f"wrong use, and yet it has written {list((shared / 'run').iterdir())}"
        return ""
