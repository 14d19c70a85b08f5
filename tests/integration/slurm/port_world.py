"""A real Slurm cluster with accounting, as the port's tests need it: ways in for the adapter, and Alice's jobs."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_ranks import FakeRanks
from integration.slurm.box import SlurmBox
from sample_views import identity, job_view, rank_summary
from scheduler_hooks.port_contract import ContractWorld
from scheduler_hooks.slurm.fake_slurm import FakeSettingsStore, environ_of
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.incidents.actions import JobTarget, SchedulerFacts
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.core.verdicts import OK
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.checkpoint import RankCheckpoint
from tidegauge_scheduler_hooks.facts import job_facts, surroundings
from tidegauge_scheduler_hooks.slurm.adapter import SlurmScheduler
from tidegauge_scheduler_hooks.slurm.commands import SlurmCommands

PROGRAMS = ("squeue", "sinfo", "scontrol", "scancel", "sacct", "sacctmgr")
JOB = """
cd {folder}
env -0 > draft.$SLURM_JOB_ID && mv draft.$SLURM_JOB_ID environ.$(date +%s%N)
until [ -e end ]; do sleep 0.1; done
"""


@dataclass
class Cluster:
    """A box, and Slurm's commands in it for each of its users."""

    box: SlurmBox
    inside: subprocess.Popen[bytes]
    """A process on the controller's host: its namespaces are the way in."""
    folder: Path

    def commands(self, user: str) -> SlurmCommands:
        """As ``user`` on the controller's host."""
        return SlurmCommands(self.bin_dir(user))

    def bin_dir(self, user: str) -> Path:
        bin_dir = self.folder / user
        uid = self.box.users[user]
        for program in PROGRAMS if not bin_dir.exists() else ():
            bin_dir.mkdir(exist_ok=True)
            enter = ["nsenter", f"--target={self.box.pid_of(self.inside)}", "--mount", "--uts", "--ipc", "--net"]
            become = ["--pid", "--root", "--wd", "--", "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
            path = bin_dir / program
            path.write_text(f'#!/bin/sh\nexec {shlex.join([*enter, *become])} {program} "$@"\n')
            path.chmod(0o755)
        return bin_dir

    def signal_controller(self, signal: str) -> None:
        self.box.run("bash", "-c", f"kill -{signal} $(cat /run/slurm/slurmctld.pid)")


class SlurmWorld(ContractWorld):
    """Alice's jobs, each with a folder in which it leaves its environment whenever it starts."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.box = cluster.box
        self.ranks = FakeRanks()
        self.settings = FakeSettingsStore()
        self.port: SlurmScheduler = self.port_of("tidegauge")
        self.folders: dict[str, Path] = {}
        self.soon: set[tuple[str, int]] = set()

    def port_of(self, user: str, commands: SlurmCommands | None = None) -> SlurmScheduler:
        """The adapter of a service that runs as ``user``."""
        checkpoints = RankCheckpoint(self.ranks, sleep=lambda _: None)
        commands = commands or self.cluster.commands(user)
        return SlurmScheduler(commands, self.ranks, self.settings, checkpoints=checkpoints)

    def start_job(self, *, saves: bool = False) -> JobView:
        view = self.start("--comment=tidegauge:requeue")
        if saves:
            self.ranks.savers.add(view.ranks[0].process)
        return view

    def start(self, *options: str) -> JobView:
        folder = self.folder()
        job = self.box.sbatch(JOB.format(folder=folder), "--open-mode=append", *options)
        self.folders[job] = folder
        self.until(lambda: self._starts(job) == 1)
        return self.view(job)

    def folder(self) -> Path:
        folder = self.box.work / f"port-{time.monotonic_ns()}"
        folder.mkdir()
        folder.chmod(0o777)
        return folder

    def view_now(self, job: JobView) -> JobView:
        return self.view(job.job_id)

    def end_by_itself(self, job: JobView) -> None:
        (self.folders[job.job_id] / "end").touch()
        self.box.wait(job.job_id, "COMPLETED")

    def starts(self, job: JobView) -> int:
        return self._starts(job.job_id)

    def _starts(self, job: str) -> int:
        return len(list(self.folders[job].glob("environ.*")))

    def alive(self, job: JobView) -> bool:
        return self.box.state(job.job_id) in ("RUNNING", "COMPLETING")

    def saves(self, job: JobView) -> int:
        return len(self.ranks.saved.get(job.ranks[0].process, ()))

    def environ(self, job: JobView) -> dict[str, str]:
        latest = max(self.folders[job.job_id].glob("environ.*"))
        environ = dict(entry.partition("=")[::2] for entry in latest.read_text().split("\0") if entry)
        restarts = int(environ.get("SLURM_RESTART_COUNT", "0"))
        return environ_of(self.settings, environ["SLURM_JOB_ID"], self.box.users["alice"], restarts, environ)

    def owner_sees(self, job: JobView) -> str:
        printed = self.ranks.printed.get(job.ranks[0].process, {})
        return "\n".join([*printed.values(), self.comment(job.job_id)])

    def until(self, true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 60.0
        while not true():
            self._hasten()
            assert time.monotonic() < deadline_s, "it did not happen within 60 s"
            time.sleep(0.05)  # between two looks; nothing is decided by it

    def _hasten(self) -> None:
        """Spare requeued jobs most of Slurm's wait, once each time."""
        said = self.box.run(
            "squeue", "-h", "-t", "PD", "-O", "JobArrayID:.|,RestartCnt:.|,Reason:.|", check=False
        ).stdout
        for line in said.splitlines():
            job, restarts, reason = line.split("|")[:3]
            if reason == "BeginTime" and (job, int(restarts)) not in self.soon:
                self.soon.add((job, int(restarts)))
                self.box.start_soon(job)

    def comment(self, job: str) -> str:
        return self.box.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%k").stdout.removesuffix("\n")

    def view(self, job: str, *, user: str = "alice", **rank_changes: Any) -> JobView:
        """The job as the coordinator would see it, with one rank."""
        said = self.box.run("squeue", "-h", "-t", "all", "-O", "JobID:.|,RestartCnt:.|,State:.|").stdout
        by_id = {line.split("|")[0]: line.split("|") for line in said.splitlines()}
        attempt, state = int(by_id[job][1]), by_id[job][2]
        who = identity(job_id=JobId(job), attempt=attempt, world_size=1, torch_version="2.11.0", alloc_conf=None)
        rank = rank_summary(
            0, **{"identity": who, "process": ProcessId(1000 + attempt, int(job)), "uid": self.box.users[user],
                  "verdict": OK, "slurm": SlurmPlace(JobId(job), "batch"), "alive": state == "RUNNING",
                  **rank_changes},
        )  # fmt: skip
        return job_view(
            job_id=job, attempt=attempt, world_size=1, ranks=(rank,), rank_nodes=("n",), rank_hostnames=("n1",)
        )  # fmt: skip

    def facts(self, job: JobView) -> SchedulerFacts | None:
        return self.port.describe([job]).get(job.key)

    def target(self, job: JobView) -> JobTarget:
        facts = self.facts(job)
        assert facts is not None
        return job_facts(job, surroundings([job], {}), facts).target

    def close(self) -> None:
        self.box.run("scancel", "-u", "alice", check=False)
