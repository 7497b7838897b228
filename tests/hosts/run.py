#!/usr/bin/env python3
"""run.py [--list] [--build FOLDER] [--image FOLDER] [NAME]: trains on two hosts that are namespaces of this
machine, with the programs of build/simt, and makes faults between them. NAME is a regular expression for the
names that --list prints. Exit codes: 0 passed, 1 failed, 77 skipped, 2 wrong use."""
import argparse
import pathlib
import re
import sys

import faults
import guide
import jobs
import packages
import training
import two_hosts


class Report:
    """Prints a line for each test and counts them."""

    def __init__(self):
        self.counts = {"passed": 0, "FAILED": 0, "skipped": 0}

    def say(self, state, name, why=""):
        self.counts[state] += 1
        print(f"{state:8} {name}{': ' if why else ''}{why}", flush=True)

    def judge(self, name, wrong):
        self.say("FAILED" if wrong else "passed", name, wrong)

    def end(self):
        print("hosts: " + ", ".join(f"{count} {state}" for state, count in self.counts.items()))
        if self.counts["FAILED"]:
            return 1
        return 0 if self.counts["passed"] else two_hosts.SKIPPED


def launchers_of(names):
    """The launchers that have selected tests, each with its selected meshes."""
    for launcher in jobs.LAUNCHERS:
        meshes = [mesh for mesh in jobs.MESHES if names(jobs.name_of(launcher, mesh))]
        if meshes:
            yield launcher, meshes


def all_names():
    for launcher, meshes in launchers_of(lambda name: True):
        yield from (jobs.name_of(launcher, mesh) for mesh in meshes)
    yield jobs.WITHOUT_PMIX
    yield from guide.CHECKS
    yield from guide.SECTIONS
    yield from (faults.name_of(fault) for fault in faults.FAULTS)


def prepare(names, cache):
    """Downloads and builds, while there still is a network. Returns what is wrong, or nothing."""
    cache.mkdir(parents=True, exist_ok=True)
    needs = {launcher.needs for launcher, _ in launchers_of(names)} - {""}
    if names(jobs.WITHOUT_PMIX):
        needs.add("slurm")
    needs |= {guide.needs(section) for name, section in guide.SECTIONS.items() if names(name)} - {""}
    for name in sorted(needs):
        packages.get(cache, name)
    if "mpich" in needs and (cache / "mpich").exists():
        return packages.build_with_mpich(cache)
    return ""


def run_all(names, build, cache, folder, image, image_environment):
    report = Report()
    one_process = training.losses_of_one_process(build / "bin", folder / "one")
    others = {}  # the losses of each mesh
    for launcher, meshes in launchers_of(names):
        missing = packages.missing(cache, launcher.needs, launcher.part)
        if missing:
            report.say("skipped", launcher.name, missing)
            continue
        jobs.run_jobs(launcher, meshes, build / "bin", folder, cache, one_process, others, report.judge)
    if names(jobs.WITHOUT_PMIX):
        missing = packages.missing(cache, "slurm")
        if missing:
            report.say("skipped", jobs.WITHOUT_PMIX, missing)
        else:
            wrong = jobs.run_without_pmix(build / "bin", folder, cache)
            report.judge(jobs.WITHOUT_PMIX, wrong)
    for name, check in guide.CHECKS.items():
        if names(name):
            report.judge(name, check())
    for name, section in guide.SECTIONS.items():
        missing = guide.missing(section, cache)
        if names(name) and missing:
            report.say("skipped", name, missing)
        elif names(name):
            report.judge(name, guide.run_section(section, build / "bin", folder, cache, image, image_environment))
    for fault in faults.FAULTS:
        if names(faults.name_of(fault)):
            report.judge(faults.name_of(fault), faults.run_fault(fault, build / "bin", folder))
    return report.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, default=packages.SOURCE / "build/simt")
    parser.add_argument("--image", help="a folder with the image in which the guide's Kubernetes job runs")
    parser.add_argument("--image-env", action="append", default=[], help="NAME=VALUE that the image sets")
    parser.add_argument("name", nargs="?", default="")
    options = parser.parse_args()

    def names(name):
        return re.search(options.name, name) is not None

    if options.list or not any(names(name) for name in all_names()):
        print("\n".join(all_names()))
        return 0 if options.list else 2
    build = options.build.resolve()
    cache = build.parent / "hosts"
    if not two_hosts.inside():
        two_hosts.skip_unless_possible()
        wrong = prepare(names, cache)
        if wrong:
            print(f"FAILED   MPICH: {wrong}")
            return 1
    image_environment = dict(setting.split("=", 1) for setting in options.image_env)
    return run_all(names, build, cache, two_hosts.in_a_machine_of_its_own(), options.image, image_environment)


sys.exit(main())
