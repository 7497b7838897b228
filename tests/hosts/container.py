"""What the containers of the guide's Kubernetes job run, in a root of their own on two hosts. A pod is a host,
and `ssh` reaches it without the sshd that the worker runs: tests/systems starts that one, in the image."""
import re
import subprocess

try:
    import yaml
except ImportError:
    yaml = None

import packages
import training
from two_hosts import LIMIT, NAMES

IMAGE = re.compile(r"registry\.example/sluice-(cpu|cuda)")
# What MPI operator gives a launcher: pkg/controller/mpi_job_controller.go.
FROM_OPERATOR = {"OMPI_MCA_orte_keep_fqdn_hostnames": "true",
                 "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
                 "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
                 "OMPI_MCA_orte_set_default_slots": "2"}

# A root with this machine's programs and libraries, the project's programs and the volume, and nothing else.
ROOT = r"""
set -e
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir -p usr proc sys dev etc/mpi tmp run root opt/sluice work "./$2"
for name in bin sbin lib lib32 lib64; do ln -s "usr/$name" "$name"; done
mount --rbind /usr usr
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount --rbind "$2" "./$2"
mount --bind "$2/opt" opt/sluice
mount --bind "$2/shared/project" work
for name in passwd group nsswitch.conf ld.so.cache hosts alternatives openmpi; do
  cp -a -L "/etc/$name" etc || true
done
printf 'hosta slots=2\nhostb slots=2\n' > etc/mpi/hostfile
"""


def image_environment():
    """What the Dockerfile's `ENV` sets of Open MPI."""
    return dict(re.findall(r"\b(OMPI_\w+)=(\S+)", (packages.SOURCE / "Dockerfile").read_text(encoding="utf-8")))


def load(file):
    """The job of a YAML file."""
    try:
        with open(file, encoding="utf-8") as stream:
            return yaml.safe_load(stream)
    except yaml.YAMLError as error:
        raise ValueError(f"{file}: {error}") from None


def container_of(job, role):
    """The container of a role's pods. Its shell's words are checked."""
    if (job.get("apiVersion"), job.get("kind")) != ("kubeflow.org/v2beta1", "MPIJob"):
        raise ValueError(f"no MPIJob of v2beta1: {job}")
    pod = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
    [container] = pod["containers"]
    if not IMAGE.fullmatch(container["image"]):
        raise ValueError(f"{role}: image {container['image']} is not made by the guide")
    unknown = {mount["name"] for mount in container["volumeMounts"]} - {volume["name"] for volume in pod["volumes"]}
    if unknown:
        raise ValueError(f"{role}: volumeMounts has {unknown}, which volumes has not")
    command = container["command"]
    if not all(isinstance(word, str) for word in command):
        raise ValueError(f"{role}: a word of {command} is no text")
    if command[:2] == ["sh", "-c"] and subprocess.run(["bash", "-n", "-c", command[2]], check=False).returncode:
        raise ValueError(f"{role}: no shell takes '{command[2]}'")
    return container


def run_job(reader, steps=5):
    """Runs the launcher's command, as root in a root of its own. Raises ValueError with what is wrong."""
    hosts = reader.hosts
    job = load(reader.folder / "job.yaml")
    container_of(job, "Worker")
    launcher = container_of(job, "Launcher")
    build = (reader.folder / "build/default/bin").resolve().parent
    (hosts.folder / "opt/libexec").mkdir(parents=True)
    (hosts.folder / "opt/libexec/sluice").symlink_to(build / "bin")
    root = hosts.folder / "root"
    root.mkdir()
    for host in NAMES:
        hosts.check(host, ["sh", "-c", ROOT, "root", root, hosts.folder])
        hosts.check(host, ["sh", "-c", f"mkdir -p {root}/{build} && mount --bind {build} {root}/{build}"])
    hosts.instead_of_ssh(root)
    config = reader.folder / "train.toml"
    config.write_text(re.sub(r"steps = \d+", f"steps = {steps}", config.read_text()))
    environment = {"PATH": "/usr/bin:/usr/sbin", "HOME": "/root", **image_environment(), **FROM_OPERATOR}
    words = ["chroot", root, "env", "-i", "-C", launcher["workingDir"],
             *(f"{name}={value}" for name, value in environment.items()), *launcher["command"]]
    process = hosts.start("hosta", words)
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{words} does not end") from None
    losses = [event for event in training.events(reader.folder / "run") if event["event"] == "train"]
    if process.returncode or len(losses) != steps:
        raise ValueError(f"{words}: exit code {process.returncode}, {len(losses)} of {steps} steps:\n{output}")
