"""What the containers of the guide's Kubernetes job run, in a root of their own on two hosts. A pod is a host,
and `ssh` reaches it without the sshd that the worker runs, unless the image itself is given: tests/systems/images.py
does so."""
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

# A root with this machine's programs and libraries, the project's programs and nothing else.
OWN_ROOT = r"""
set -e
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir -p usr etc tmp run root opt/sluice/libexec/sluice
for name in bin sbin lib lib32 lib64; do ln -s "usr/$name" "$name"; done
mount --rbind /usr usr
mount --bind "$3" opt/sluice/libexec/sluice
for name in passwd group nsswitch.conf ld.so.cache alternatives openmpi; do
  cp -r -L "/etc/$name" etc || true
done
"""
# The image's, to which what is written does not go, and a key in the place of the operator's secret.
IMAGE_ROOT = r"""
set -e
mount -t tmpfs tmpfs "$2/local"
mkdir "$2/local/upper" "$2/local/work"
mount -t overlay overlay -o "lowerdir=$3,upperdir=$2/local/upper,workdir=$2/local/work" "$1"
cd "$1"
mkdir -p root/.ssh
mount -t tmpfs tmpfs root/.ssh
cp "$2/key" root/.ssh/id_rsa
cp "$2/key.pub" root/.ssh/authorized_keys
"""
# What a pod has of its cluster. The folder of this test is not the volume's, but where `ssh` is from.
POD = r"""
set -e
cd "$1"
mkdir -p proc sys dev etc/mpi work "./$2" "./$3"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount --rbind "$2" "./$2"
mount --bind "$3" "./$3"
mount --bind "$2/shared/project" work
cp /etc/hosts etc/hosts
printf 'hosta slots=2\nhostb slots=2\n' > etc/mpi/hostfile
"""


def own_environment():
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


def in_root(root, environment, place, command):
    """The command line that runs a container's command."""
    return ["chroot", root, "env", "-i", "-C", place, *(f"{name}={value}" for name, value in environment.items()),
            *command]


def run_job(reader, image, image_environment, steps=5):
    """Runs the launcher's command, as root in the image, or without one in a root with this machine's programs.
    In the image its own sshd runs. Raises ValueError with what is wrong."""
    hosts = reader.hosts
    job = load(reader.folder / "job.yaml")
    worker, launcher = container_of(job, "Worker"), container_of(job, "Launcher")
    root = hosts.folder / "root"
    root.mkdir()
    programs = (reader.folder / "build/default/bin").resolve()
    environment = {"HOME": "/root", **(image_environment or {"PATH": "/usr/bin:/usr/sbin", **own_environment()})}
    if image:
        subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", "rsa", "-f", hosts.folder / "key"], check=True)
    for host in NAMES:
        hosts.check(host, ["sh", "-c", IMAGE_ROOT if image else OWN_ROOT, "root", root, hosts.folder,
                           image or programs])
        hosts.check(host, ["sh", "-c", POD, "pod", root, hosts.folder, programs])
        if image:
            hosts.start(host, in_root(root, environment, "/work", worker["command"]))
    if not image:
        hosts.instead_of_ssh(root)
    config = reader.folder / "train.toml"
    config.write_text(re.sub(r"steps = \d+", f"steps = {steps}", config.read_text()))
    words = in_root(root, {**environment, **FROM_OPERATOR}, launcher["workingDir"], launcher["command"])
    process = hosts.start("hosta", words)
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{words} does not end") from None
    losses = [event for event in training.events(reader.folder / "run") if event["event"] == "train"]
    if process.returncode or len(losses) != steps:
        raise ValueError(f"{words}: exit code {process.returncode}, {len(losses)} of {steps} steps:\n{output}")
