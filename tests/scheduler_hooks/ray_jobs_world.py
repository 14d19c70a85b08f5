"""What tests of the Ray Jobs adapter share: jobs in a model of Ray's API, and their ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fake_ranks import FakeRanks
from fake_ray_jobs import FakeRayJobs
from sample_views import identity, job_view, rank_summary
from scheduler_hooks.port_contract import ContractWorld
from tidegauge.core.ids import JobId, JobKey, ProcessId
from tidegauge.core.incidents.actions import JobTarget
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.checkpoint import RankCheckpoint
from tidegauge_scheduler_hooks.facts import job_facts, surroundings
from tidegauge_scheduler_hooks.ports import (
    RequeueChanges,
    SchedulerPort,
)
from tidegauge_scheduler_hooks.ray_jobs.adapter import RayJobs
from tidegauge_scheduler_hooks.ray_jobs.api import RayJobsApi

UID = 1001
UPLOADED = "gcs://_ray_pkg_d607e8bfdd7ec5c0.zip"
"""What each job has uploaded."""
UNCHANGED = RequeueChanges()


class RayWorld(ContractWorld):
    """Jobs that are entries of the model; their ranks answer at once."""

    scheduler = "ray"

    def __init__(self, cluster: FakeRayJobs) -> None:
        self.cluster = cluster
        self.ranks = FakeRanks()
        self.port = self.another_port()
        cluster.packages.add(UPLOADED)

    def another_port(self) -> RayJobs:
        """The adapter as another process, which remembers nothing, would have it."""
        checkpoints = RankCheckpoint(self.ranks, sleep=lambda _: None)
        return RayJobs(
            RayJobsApi(self.cluster.url), self.ranks, uid=UID, checkpoints=checkpoints, stop_within_s=0.0,
            remark_within_s=0.0, forget_after_s=0.0,
        )  # fmt: skip

    def start_job(self, *, saves: bool = False, **changes: Any) -> JobView:
        number = len(self.cluster.jobs)
        name = f"job-{number}"
        environ = {"TIDEGAUGE_JOB_ID": name}
        runtime_env = {"working_dir": UPLOADED, "env_vars": environ}
        entry = {"start_time": int(time.time() * 1000), "job_id": f"{number + 2:02x}000000", "runtime_env": runtime_env}
        self.cluster.add(name, **{**entry, **changes})
        view = self.view(name)
        if saves:
            self.ranks.savers.add(view.ranks[0].process)
        return view

    def view_now(self, job: JobView) -> JobView:
        return self.view(job.job_id, self.starts(job) - 1)

    def end_by_itself(self, job: JobView) -> None:
        self.cluster.end(self.latest(job)["submission_id"], "SUCCEEDED")

    def starts(self, job: JobView) -> int:
        return len(self.runs(job))

    def alive(self, job: JobView) -> bool:
        return any(run["status"] == "RUNNING" for run in self.runs(job))

    def saves(self, job: JobView) -> int:
        return sum(len(saved) for process, saved in self.ranks.saved.items() if process.start_ticks == _ticks(job))

    def environ(self, job: JobView) -> dict[str, str]:
        return dict(self.latest(job)["runtime_env"]["env_vars"])

    def owner_sees(self, job: JobView) -> str:
        raise AssertionError("there is no such place")

    def until(self, true: Callable[[], bool]) -> None:
        assert any(true() for _ in range(10))

    def runs(self, job: JobView) -> list[dict[str, Any]]:
        """All runs of a job, by its name."""
        runs = self.cluster.jobs.values()
        return [
            run for run in runs if (run["runtime_env"] or {}).get("env_vars", {}).get("TIDEGAUGE_JOB_ID") == job.job_id
        ]

    def latest(self, job: JobView) -> dict[str, Any]:
        return self.runs(job)[-1]

    def target(self, job: JobView) -> JobTarget:
        """As the policy makes it."""
        described = self.port.describe([job])
        facts = described[JobKey(job.job_id, job.attempt, job.ranks[0].uid)]
        return job_facts(job, surroundings([job], {}), facts).target

    def view(self, job_id: str, attempt: int = 0) -> JobView:
        """The job as the coordinator would see it."""
        who = identity(job_id=JobId(job_id), attempt=attempt, scheduler="ray", torch_version="2.11.0", alloc_conf=None)
        process = ProcessId(1000 + attempt, _ticks_of(job_id))
        rank = rank_summary(0, identity=who, process=process, uid=UID, last_sample_unix_s=time.time() + 1)
        return job_view(
            job_id=job_id, attempt=attempt, scheduler="ray", world_size=1, ranks=(rank,), rank_nodes=("n",)
        )  # fmt: skip


def _ticks_of(job_id: str) -> int:
    return 5_000 + int(job_id.rpartition("-")[2])


def _ticks(job: JobView) -> int:
    return _ticks_of(job.job_id)


def end(port: SchedulerPort, action: str, target: JobTarget) -> None:
    if action == "requeue":
        port.requeue(target, UNCHANGED, "leaks", decision_id="d")
    else:
        getattr(port, action)(target, "leaks", decision_id="d")
