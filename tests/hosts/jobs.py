"""Trainings on two hosts, which have the losses of one process."""
import contextlib
import dataclasses
import re
import signal
import subprocess
from typing import Callable

import launchers
import packages
import training
from two_hosts import LIMIT, NAMES, TwoHosts


@dataclasses.dataclass
class Launcher:
    name: str
    command: Callable  # of launchers.py
    needs: str = ""  # a name of packages.GET
    part: str = ""  # a file of it, as packages.missing takes it
    delay_ms: float = 0.0  # between the hosts
    may_not_end: bool = False  # in MPI_Finalize


LAUNCHERS = [
    Launcher("Open MPI over TCP", launchers.tcp),
    Launcher("Open MPI over TCP, 2 ms apart", launchers.tcp, delay_ms=2.0),
    Launcher("scripts/launch --hostfile", launchers.scripts_launch),
    Launcher("Open MPI over UCX", launchers.ucx),
    Launcher("Open MPI 5 from its wheel", launchers.open_mpi_5, needs="openmpi5"),
    # Before 4.2 MPI_Finalize hangs now and then over UCX: https://github.com/pmodels/mpich/pull/6596.
    Launcher("MPICH", launchers.mpich, needs="mpich", may_not_end=True),
    Launcher("Slurm with PMIx", launchers.slurm_pmix, needs="slurm", part=packages.PMIX_OF_SLURM),
]


@dataclasses.dataclass
class Mesh:
    name: str
    ranks: int
    flags: list
    exact: bool  # the losses have the bits of one process: docs/reference/parallelism.md


MESHES = [
    Mesh("dp 2 zero 1", 2, ["--dp", 2, "--zero", 1], exact=True),
    Mesh("tp 2", 2, ["--tp", 2], exact=False),
    Mesh("pp 2", 2, ["--pp", 2], exact=True),
    Mesh("dp 2 x tp 2", 4, ["--dp", 2, "--tp", 2], exact=False),
    Mesh("pp 2 x tp 2", 4, ["--pp", 2, "--tp", 2], exact=False),
]
# Of what one process computes.
TOLERANCE = 1e-6


def name_of(launcher, mesh):
    return f"{launcher.name}: {mesh.name}"


@contextlib.contextmanager
def hosts_for(launcher, folder, cache):
    """Two hosts that have the text and what the launcher needs."""
    over_usr = cache / launcher.needs if launcher.needs in packages.DEBIAN else None
    with TwoHosts(folder / "hosts", delay_ms=launcher.delay_ms, over_usr=over_usr) as hosts:
        (hosts.folder / "shared/text.txt").write_text(training.TEXT)
        if launcher.needs == "slurm":
            launchers.start_slurm(hosts)
        yield hosts


def command(launcher, hosts, ranks, bin_folder, cache, flags):
    """The whole command line of a training."""
    bin_folder = packages.MPICH_BUILD / "bin" if launcher.needs == "mpich" else bin_folder
    words = launcher.command(hosts, ranks, cache / launcher.needs)
    return [*words, bin_folder / "train_gpt2", *flags]


def fault_of(mesh, losses, one_process, others):
    """Says what is wrong with the losses, or nothing. `others` has those of launchers before."""
    apart = training.apart(losses, one_process)
    if apart > TOLERANCE or (mesh.exact and losses != one_process):
        return f"the losses are {apart:.1e} from those of one process: {losses} and {one_process}"
    if losses != others.setdefault(mesh.name, losses):
        return f"the losses have other bits than those by another launcher: {losses} and {others[mesh.name]}"
    return ""


def run_jobs(launcher, meshes, bin_folder, folder, cache, one_process, others, judge):
    """Trains with each mesh. `judge`(name, what is wrong or "") is called after each."""
    with hosts_for(launcher, folder, cache) as hosts:
        for number, mesh in enumerate(meshes):
            output = hosts.folder / f"shared/run-{number}"
            flags = training.flags(hosts.folder / "shared/text.txt", output, mesh=mesh.flags)
            job = hosts.start("hosta", command(launcher, hosts, mesh.ranks, bin_folder, cache, flags))
            try:
                words, _ = job.communicate(timeout=LIMIT // 3 if launcher.may_not_end else LIMIT)
                wrong = f"exit code {job.returncode}: {words}" if job.returncode else ""
            except subprocess.TimeoutExpired:
                wrong = "" if launcher.may_not_end and training.is_done(output) else "does not end"
                for host in NAMES:
                    hosts.signal(host, signal.SIGKILL)
            wrong = wrong or fault_of(mesh, training.losses(output), one_process, others)
            judge(name_of(launcher, mesh), wrong)
            if wrong:
                break  # what it left behind would disturb the next one


WITHOUT_PMIX = "Slurm without PMIx: each rank is alone"


def run_without_pmix(bin_folder, folder, cache):
    """Each of two processes must see that Slurm started another one, and refuse."""
    slurm = Launcher("", launchers.slurm_without_pmix, needs="slurm")
    with hosts_for(slurm, folder, cache) as hosts:
        output = hosts.folder / "shared/run"
        flags = training.flags(hosts.folder / "shared/text.txt", output)
        job = hosts.start("hosta", command(slurm, hosts, 2, bin_folder, cache, flags))
        words, _ = job.communicate(timeout=LIMIT)
        if training.losses(output):
            return f"trains: {words}"
        if not re.search(r"train_gpt2: error: .*--mpi=pmix", words):
            return f"nothing of --mpi=pmix in: {words}"
        return "" if job.returncode == 2 else f"exit code {job.returncode}: {words}"
