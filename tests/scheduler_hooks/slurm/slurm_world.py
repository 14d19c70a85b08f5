"""What tests of the Slurm adapter share: jobs in a model of slurmctld, their ranks, and the views of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fake_ranks import FakeRanks
from sample_views import identity, job_view, rank_summary
from scheduler_hooks.port_contract import ContractWorld
from scheduler_hooks.slurm.fake_slurm import FakeJob, FakeSettingsStore, FakeSlurm, environ_of
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.incidents.actions import JobTarget, SchedulerFacts
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.core.verdicts import OK
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.checkpoint import RankCheckpoint
from tidegauge_scheduler_hooks.facts import job_facts, surroundings
from tidegauge_scheduler_hooks.ports import RequeueChanges
from tidegauge_scheduler_hooks.slurm.adapter import SlurmScheduler

UNCHANGED = RequeueChanges()
SUBMITTED_WITH = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}
"""The environment that every job was submitted with."""


class SlurmWorld(ContractWorld):
    """Jobs that are entries of the model; their ranks answer at once."""

    def __init__(self) -> None:
        self.slurm = FakeSlurm()
        self.ranks = FakeRanks()
        self.settings = FakeSettingsStore()
        self.port: SlurmScheduler = self.another_port()

    def another_port(self, **options: Any) -> SlurmScheduler:
        """The adapter as another process, which remembers nothing, would have it."""
        checkpoints = RankCheckpoint(self.ranks, sleep=lambda _: None)
        return SlurmScheduler(self.slurm, self.ranks, self.settings, **{"checkpoints": checkpoints, **options})

    def start_job(self, *, saves: bool = False, **changes: Any) -> JobView:
        job = self.slurm.add(FakeJob(**{"job_id": 40 + len(self.slurm.known), **changes}))
        view = slurm_view(job)
        if saves:
            self.ranks.savers.add(view.ranks[0].process)
        return view

    def view_now(self, job: JobView) -> JobView:
        return slurm_view(self.job(job))

    def end_by_itself(self, job: JobView) -> None:
        self.job(job).state = "COMPLETED"

    def starts(self, job: JobView) -> int:
        one = self.job(job)
        return one.restarts + (one.state not in ("PENDING", "COMPLETING") or not one.goes_on)

    def alive(self, job: JobView) -> bool:
        return self.job(job).state == "RUNNING"

    def saves(self, job: JobView) -> int:
        return len(self.ranks.saved.get(job.ranks[0].process, ()))

    def environ(self, job: JobView) -> dict[str, str]:
        one = self.job(job)
        return environ_of(self.settings, str(one.job_id), one.uid, one.restarts, SUBMITTED_WITH)

    def owner_sees(self, job: JobView) -> str:
        printed = self.ranks.printed.get(job.ranks[0].process, {})
        return "\n".join([*printed.values(), self.job(job).comment])

    def until(self, true: Callable[[], bool]) -> None:
        for _ in range(10):
            if true():
                return
            self.slurm.advance()
        raise AssertionError("it did not happen")

    def job(self, job: JobView) -> FakeJob:
        return self.slurm.known[int(job.job_id)]

    def facts(self, job: JobView) -> SchedulerFacts | None:
        return self.port.describe([job]).get(job.key)

    def target(self, job: JobView) -> JobTarget:
        """As the policy makes it."""
        return job_facts(job, surroundings([job], {}), self.facts(job)).target


def slurm_view(job: FakeJob, **rank_changes: Any) -> JobView:
    """The job as the coordinator would see it: one rank, placed in the job by its slurmd."""
    job_id = JobId(str(job.job_id))
    who = identity(job_id=job_id, attempt=job.restarts, world_size=1, torch_version="2.11.0", alloc_conf=None)
    process = ProcessId(1000 + job.restarts, 5000 + job.job_id)
    rank = rank_summary(
        0, **{"identity": who, "process": process, "uid": job.uid, "verdict": OK, "slurm": SlurmPlace(job_id, "0"),
              "alive": job.state == "RUNNING", **rank_changes},
    )  # fmt: skip
    return job_view(
        job_id=job_id, attempt=job.restarts, world_size=1, ranks=(rank,), rank_nodes=("n",), rank_hostnames=("n1",)
    )
