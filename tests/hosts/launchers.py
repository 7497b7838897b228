"""How each launcher starts ranks on both hosts: one after another, half of them on the first host."""
import re
import subprocess

import packages
from two_hosts import ADDRESSES, NAMES, NETWORK


def hostfile(hosts, ranks, line):
    file = hosts.folder / "shared/hostfile"
    file.write_text("".join(line.format(host=host, ranks=ranks // 2) for host in NAMES))
    return file


def open_mpi(hosts, ranks, more, mpirun="mpirun"):
    version = subprocess.run([mpirun, "--version"], check=True, capture_output=True, text=True).stdout
    if re.search(r"\b4\.\d+\.\d+", version):
        agent = ["--mca", "plm_rsh_agent", hosts.agent, "--mca", "oob_tcp_if_include", NETWORK]
    else:
        agent = ["--prtemca", "plm_ssh_agent", hosts.agent, "--prtemca", "prte_if_include", NETWORK]
    return [mpirun, "--allow-run-as-root", "-n", ranks, "--map-by", "slot", "--bind-to", "none",
            "--hostfile", hostfile(hosts, ranks, "{host} slots={ranks}\n"), *agent, *more]


# Of messages between ranks. mpirun and its daemons take others.
FIRST_PORT, LAST_PORT = 7000, 7099
TCP = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", NETWORK,
       "--mca", "btl_tcp_port_min_v4", FIRST_PORT, "--mca", "btl_tcp_port_range_v4", LAST_PORT - FIRST_PORT]


def tcp(hosts, ranks, _):
    return open_mpi(hosts, ranks, TCP)


def scripts_launch(hosts, ranks, _):
    """Open MPI gets by variables what its command line says elsewhere."""
    variables = {"plm_rsh_agent": hosts.agent, "oob_tcp_if_include": NETWORK, "pml": "ob1", "btl": "tcp,self",
                 "btl_tcp_if_include": NETWORK}
    return ["env", *(f"OMPI_MCA_{name}={value}" for name, value in variables.items()),
            packages.SOURCE / "scripts/launch", "-n", ranks, "--hostfile",
            hostfile(hosts, ranks, "{host} slots={ranks}\n")]


def ucx(hosts, ranks, _):
    return open_mpi(hosts, ranks, ["--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any",
                                   "--mca", "opal_common_ucx_devices", "any", "-x", "UCX_TLS=tcp,self"])


def open_mpi_5(hosts, ranks, wheel):
    return open_mpi(hosts, ranks, [*TCP, "-x", f"LD_LIBRARY_PATH={wheel}/lib"], wheel / "bin/mpirun")


def mpich(hosts, ranks, _):
    return ["mpiexec.mpich", "-n", ranks, "-bind-to", "none", "-launcher", "ssh",
            "-launcher-exec", hosts.agent, "-f", hostfile(hosts, ranks, "{host}:{ranks}\n")]


# Two nodes without accounts, which say that they have GPUs. The daemons' logs are in the shared folder.
SLURM_CONF = """ClusterName=twohosts
SlurmctldHost=hosta({hosta})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
KillWait=2
SlurmctldPidFile={folder}/slurmctld.pid
StateSaveLocation={folder}/shared/slurm
SlurmctldLogFile={folder}/shared/slurm/slurmctld.log
SlurmdPidFile={folder}/local/slurmd.pid
SlurmdSpoolDir={folder}/local
SlurmdLogFile={folder}/shared/slurm/slurmd.%n.log
TmpFS={folder}/local
GresTypes=gpu
NodeName=hosta NodeAddr={hosta} CPUs=2 Gres=gpu:2
NodeName=hostb NodeAddr={hostb} CPUs=2 Gres=gpu:2
PartitionName=all Nodes=hosta,hostb Default=YES State=UP
"""


def start_slurm(hosts):
    (hosts.folder / "shared/slurm").mkdir()
    conf = hosts.folder / "shared/slurm/slurm.conf"
    conf.write_text(SLURM_CONF.format(folder=hosts.folder, **ADDRESSES))
    conf.with_name("gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
    hosts.environment = {"SLURM_CONF": str(conf), "OMPI_MCA_btl": "tcp,self",
                         "OMPI_MCA_btl_tcp_if_include": NETWORK}
    hosts.start("hosta", ["slurmctld", "-D"])
    for host in NAMES:
        hosts.start(host, ["slurmd", "-D", "-N", host])
    # A job waits until both nodes have answered.


def slurm_pmix(_, ranks, __):
    return ["srun", "--mpi=pmix", "-N", 2, "-n", ranks, "--distribution=block"]


def slurm_without_pmix(_, ranks, __):
    return ["srun", "-N", 2, "-n", ranks]
