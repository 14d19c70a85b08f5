"""The scheduler that the tests of actions run on keeps to the contract of every scheduler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler_hooks.fake_scheduler import FakeJob, FakeScheduler, FakeWorld, view_of
from scheduler_hooks.port_contract import ContractWorld, PortContract
from tidegauge.core.views import JobView


class ModelWorld(ContractWorld):
    """Jobs that are a few values."""

    def __init__(self) -> None:
        self.world = FakeWorld(looks_to_proof=2)
        self.port = FakeScheduler(self.world)

    def start_job(self, *, saves: bool = False) -> JobView:
        job = FakeJob(f"job-{len(self.world.jobs)}", can_save=saves)
        self.world.jobs[job.job_id] = job
        return view_of(job)

    def view_now(self, job: JobView) -> JobView:
        return view_of(self._job(job))

    def end_by_itself(self, job: JobView) -> None:
        self._job(job).presence = "gone"

    def starts(self, job: JobView) -> int:
        return self._job(job).starts

    def alive(self, job: JobView) -> bool:
        return self._job(job).presence == "running"

    def saves(self, job: JobView) -> int:
        return self._job(job).saves

    def environ(self, job: JobView) -> dict[str, str]:
        return self._job(job).environ

    def owner_sees(self, job: JobView) -> str:
        return "\n".join(self._job(job).messages)

    def until(self, true: Callable[[], bool]) -> None:
        assert any(true() for _ in range(5))

    def _job(self, job: JobView) -> FakeJob:
        return self.world.jobs[job.job_id]


class TestFakeScheduler(PortContract):
    """The model."""

    @pytest.fixture
    def world(self) -> ContractWorld:
        return ModelWorld()
