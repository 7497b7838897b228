"""Two hosts on one machine: hosta and hostb, each with a network, a name, IPC, a /dev/shm and a disk of
its own, joined by a switch. They are namespaces without names, so runs beside each other share nothing.

Call `in_a_machine_of_its_own` first: all namespaces, mounts and processes made below end with it.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
NAMES = ("hosta", "hostb")
ADDRESSES = {"hosta": "10.77.0.1", "hostb": "10.77.0.2"}
NETWORK = "10.77.0.0/24"
# ctest's SKIP_RETURN_CODE of all tests here.
SKIPPED = 77
# Seconds after which a program that has been asked nothing special counts as hanging.
LIMIT = 60
UNSHARE = ["unshare"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]

# A host's init: keeps its namespaces and reaps what loses its parent.
INIT = r"""
set -e
hostname "$1"
ip link set lo up
mount --make-rprivate /
# UCX looks for networks in /sys, Slurm for control groups.
mount --rbind /sys/fs/cgroup "$2/local"
mount -t sysfs sysfs /sys
mount --rbind "$2/local" /sys/fs/cgroup
umount -l "$2/local"
mount -t tmpfs tmpfs /dev/shm
mount --bind "$2/names" /etc/hosts
mount -t tmpfs tmpfs "$2/local"
echo ready
while :; do sleep 1000 & wait; done
"""

# In ssh's place: AGENT [OPTIONS] HOST COMMAND... Like ssh it hands on no variables. {root} is a folder that
# has the same path on both hosts, mostly /.
AGENT = r"""#!/bin/sh
PATH=$PATH:/usr/sbin
while case $1 in -*) true ;; *) false ;; esac; do
  case $1 in -o) shift ;; esac
  shift
done
host=$1
shift
pid=$(cat "{folder}/$host.pid") || exit 255
exec nsenter --target "$pid" --net --uts --ipc --mount --wd=/ \
  chroot "{root}" env -i HOME="$HOME" PATH=/usr/bin:/bin:/usr/sbin:/sbin TMPDIR="{folder}/local" sh -c "$*"
"""

# A user's PATH lacks chroot and ip.
os.environ["PATH"] += ":/usr/sbin:/sbin"

APART = UNSHARE + ["--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--net"]


def skip_unless_possible():
    """Ends with ctest's code of a skipped test where namespaces cannot be made."""
    try:
        needed = "ip link add switch type bridge && mount -t tmpfs tmpfs /mnt && mount -t sysfs sysfs /sys"
        tried = subprocess.run([*APART, "sh", "-c", needed], capture_output=True, text=True, check=False)
        why = tried.stderr.strip() if tried.returncode else ""
    except OSError as error:
        why = str(error)
    if why:
        print("skipped: hosts: this machine lets nobody make two hosts of namespaces:", why)
        sys.exit(SKIPPED)


def inside():
    """Whether this is the second process of `in_a_machine_of_its_own`."""
    return "TWO_HOSTS" in os.environ


def in_a_machine_of_its_own():
    """Runs this script again as init of a PID namespace. When init ends, whatever the reason, the kernel
    kills all processes in there, and with them go networks and mounts. Returns the folder to work in; the
    first process does not return."""
    if inside():
        signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
        return pathlib.Path(os.environ["TWO_HOSTS"])
    with tempfile.TemporaryDirectory(prefix="sluice-hosts-") as folder:
        inner = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *APART, sys.executable, *sys.argv],
                                 env={**os.environ, "TWO_HOSTS": folder})
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: inner.kill())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both
        code = inner.wait()
    sys.exit(code if code >= 0 else 128 - code)


def run(*words):
    subprocess.run(words, check=True)


class TwoHosts:
    """with TwoHosts(folder) as hosts: ... In `folder`, `shared` is one folder for both hosts, and
    `local` has the same path on both but is each host's own disk. `small` is shared and has 200 kB."""

    def __init__(self, folder, delay_ms=0.0, closed_ports=(), over_usr=None):
        self.folder = pathlib.Path(folder)
        self.small = self.folder / "small"
        self.delay_ms = delay_ms
        self.closed_ports = closed_ports  # the first and the last of those that neither host reaches
        self.over_usr = over_usr  # a folder whose usr/ is laid over /usr of both hosts
        self.environment = {}  # more variables for what is started
        self.init = {}
        self.started = []

    def __enter__(self):
        for name in ("shared", "local", "small"):
            (self.folder / name).mkdir(parents=True)
        run("mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", self.small)
        (self.folder / "names").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{ADDRESSES[name]} {name}\n" for name in NAMES))
        for host in NAMES:
            self._boot(host)
        self._connect()
        self.agent = self.folder / "agent"
        self.agent.write_text(AGENT.format(folder=self.folder, root="/"))
        self.agent.chmod(0o755)
        return self

    def __exit__(self, *_):
        for host in self.init:
            self.signal(host, signal.SIGKILL)
        for process in self.started:
            process.kill()
            process.wait()
        for host in NAMES:
            subprocess.run(["ip", "link", "del", f"to-{host}"], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["ip", "link", "del", "switch"], stderr=subprocess.DEVNULL, check=False)
        run("umount", self.small)
        shutil.rmtree(self.folder)

    def _boot(self, host):
        init = subprocess.Popen(["unshare", "--net", "--uts", "--ipc", "--mount",
                                 "sh", "-c", INIT, "init", host, self.folder],
                                stdout=subprocess.PIPE, text=True)
        self.started.append(init)
        if init.stdout.readline() != "ready\n":
            raise RuntimeError(f"{host} did not start")
        self.init[host] = init.pid
        (self.folder / f"{host}.pid").write_text(str(init.pid))
        if self.over_usr:
            self.check(host, ["mount", "-t", "overlay", "overlay", "-o",
                              f"lowerdir={self.over_usr}/usr:/usr", "/usr"])

    def _connect(self):
        run("ip", "link", "add", "switch", "type", "bridge")
        run("ip", "link", "set", "switch", "up")
        for host in NAMES:
            run("ip", "link", "add", f"to-{host}", "type", "veth", "peer", "name", "eth0",
                "netns", str(self.init[host]))
            run("ip", "link", "set", f"to-{host}", "up")
            self.check(host, ["ip", "addr", "add", f"{ADDRESSES[host]}/24", "dev", "eth0"])
            self.check(host, ["ip", "link", "set", "eth0", "up"])
            if not (self.delay_ms or self.closed_ports):
                run("ip", "link", "set", f"to-{host}", "master", "switch")
        if self.delay_ms or self.closed_ports:
            self.started.append(subprocess.Popen(
                [sys.executable, HERE / "wire.py", "to-hosta", "to-hostb", str(self.delay_ms),
                 *map(str, self.closed_ports)]))

    def inside(self, host, command):
        """The command line that runs `command` on the host."""
        return ["nsenter", f"--target={self.init[host]}", "--net", "--uts", "--ipc", "--mount",
                "--wd=.", "env", f"TMPDIR={self.folder}/local"] + [str(word) for word in command]

    def start(self, host, command, stdin=subprocess.DEVNULL):
        """Starts `command` on the host; its stdout and stderr together go to a pipe."""
        process = subprocess.Popen(self.inside(host, command), stdin=stdin, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   cwd=self.folder / "shared",
                                   env={**os.environ, **self.environment})
        self.started.append(process)
        return process

    def check(self, host, command):
        """Runs a short command on the host, which must succeed, and returns what it prints."""
        return subprocess.run(self.inside(host, command), check=True, text=True,
                              stdout=subprocess.PIPE, timeout=LIMIT).stdout

    def instead_of_ssh(self, root=""):
        """Lets the command `ssh` on both hosts reach the other one, in the folder `root` of it."""
        agent = self.folder / "agent-ssh"
        agent.write_text(AGENT.format(folder=self.folder, root=root or "/"))
        agent.chmod(0o755)
        for host in NAMES:
            self.check(host, ["mount", "--bind", agent, f"{root}/usr/bin/ssh"])

    def processes(self, host, program=""):
        """The living processes on the host, but its init, as {pid: name}; those of one program's name."""
        network = os.readlink(f"/proc/{self.init[host]}/ns/net")
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or os.readlink(entry / "ns/net") != network:
                    continue
                name, state = (entry / "stat").read_text().split("(", 1)[1].rsplit(") ", 1)
            except OSError:  # it has ended meanwhile
                continue
            pid = int(entry.name)
            parent = int(state.split()[1])
            own = self.init[host] in (pid, parent) and name in ("sh", "sleep")
            if state[0] != "Z" and not own and program in name:
                found[pid] = name
        return found

    def signal(self, host, number, program=""):
        """Sends a signal to all processes on the host, or to those of one program."""
        for pid in self.processes(host, program):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def link(self, host, state):
        """Pulls the host's cable ("down"), or puts it in again ("up")."""
        run("ip", "link", "set", f"to-{host}", state)


def wait_until(condition, seconds=LIMIT):
    """Whether the condition holds within so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
