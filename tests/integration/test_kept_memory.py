"""What stays of the memory of a job that leaked: the real service, which is killed while the job runs and after its
end, and asked when nobody watches the job any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from fake_node import MIB, STEP_S, FakeClock, FakeRank, identity
from html_text import Page
from integration.service import Service, eventually
from matrix import turn
from tidegauge.cluster.store import open_store, sqlite_url
from tidegauge.core.ids import GlobalRank, JobId, JobKey
from tidegauge.osproc.processes import identity_of

pytestmark = pytest.mark.timeout(300)

JOB = JobKey("leaky", 0, os.getuid())
SPIKE = 40_000 * MIB


class LeakyJob:
    """A rank that leaks, in a process that does nothing. It counts as PyTorch would if its program reset the peaks."""

    def __init__(self, service: Service) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        process = identity_of(self._process.pid)
        assert process is not None
        now_s = time.monotonic()
        self._clock = FakeClock(now_s=now_s - 3000 * STEP_S, unix_offset_s=time.time() - now_s)
        who = identity(job_id=JobId(JOB.job_id), rank=GlobalRank(0), world_size=1, job_name="train", device_uuids=())
        self._rank = FakeRank(service.run_dir, self._clock, process=process, capacity=4096, who=who)
        self.steps = 0
        self.highest_allocated = self.highest_reserved = 0
        for _ in range(3000):
            self.step()

    def step(self, spike: int = 0) -> None:
        """The next step."""
        self.steps += 1
        allocated = spike or 4096 * MIB + self.steps * 4 * MIB
        self.highest_allocated = max(self.highest_allocated, allocated)
        self.highest_reserved = max(self.highest_reserved, allocated + 512 * MIB)
        self._rank.record(step=self.steps, allocated=allocated, reserved=allocated + 512 * MIB)

    def step_now(self, spike: int = 0) -> None:
        self._clock.now_s = time.monotonic() - STEP_S
        self.step(spike)

    def die(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    service.environ |= {"TIDEGAUGE_SLURM": "off", "TIDEGAUGE_LINGER_S": "3", "TIDEGAUGE_INCIDENT_SEVERITY": "warning"}
    try:
        service.up()
        yield service
    finally:
        service.close()


@pytest.fixture
def job(service: Service) -> Iterator[LeakyJob]:
    job = LeakyJob(service)
    yield job
    job.die()


def points(service: Service, **asked: object) -> list[dict[str, Any]]:
    """Of rank 0."""
    query = urlencode({**JOB._asdict(), **asked} if "incident" not in asked else asked)
    ranks = service.get(f"/api/v1/memory?{query}")["ranks"]
    return [point for rank in ranks for point in rank["points"]]


def kill_coordinator(service: Service) -> None:
    before = service.answer("/api/v1/status")["coordinator"]
    (pid,) = eventually(service.coordinators, "the coordinator has its title")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: service.get("/api/v1/status")["coordinator"] != before, "there is another coordinator")


@turn(5)
def test_curve_and_peaks_outlast_the_job_and_two_coordinators(service: Service, job: LeakyJob) -> None:
    def incident() -> int | None:
        job.step_now()
        found = service.get("/api/v1/incidents?all=1")["incidents"]
        return found[0]["number"] if found else None

    def is_seen(allocated: int) -> bool:
        return any(point["allocated_bytes"] == allocated for point in points(service))

    number = eventually(incident, "the leak is an incident")
    job.step_now(SPIKE)
    eventually(lambda: is_seen(SPIKE), "the spike is seen")
    # The record is written once a minute: the first coordinator is to have written the spike.
    first = eventually(lambda: _stored_spike(service), "the spike is in the record", within_s=100.0)
    assert first == SPIKE

    kill_coordinator(service)
    job.step_now()
    eventually(lambda: points(service)[-1]["step"] == job.steps, "the next coordinator sees the job")
    job.die()
    eventually(lambda: service.get("/api/v1/ended-jobs?since=0")["jobs"], "the job has ended")
    eventually(lambda: not service.get("/api/v1/jobs")["jobs"], "nobody watches it any more")
    kill_coordinator(service)

    def curve_of(**asked: object) -> list[dict[str, Any]]:
        return eventually(lambda: points(service, **asked), f"what is kept of {asked}")

    for curve in (curve_of(), curve_of(incident=number)):
        assert curve[-1]["step"] == job.steps
        assert max(point["allocated_bytes"] for point in curve) == job.highest_allocated == SPIKE
        assert max(point["reserved_bytes"] for point in curve) == job.highest_reserved
        assert [point["at_unix_s"] for point in curve] == sorted(point["at_unix_s"] for point in curve)
        assert 3 <= len(curve) <= 120
    report = service.get_text(f"/report?incident={number}")
    assert "No readings" not in Page(report).text
    assert f"step {job.steps:,}" in report

    service.call("down")
    store = open_store(sqlite_url(service.files.root))
    try:
        (record,) = store.jobs.latest([JOB]).values()
        memory = store.jobs.memory(record)
    finally:
        store.close()
    assert memory is not None
    (peak,) = memory.peaks
    assert (peak.allocated_bytes, peak.reserved_bytes) == (job.highest_allocated, job.highest_reserved)
    assert (peak.rank, peak.steps) == (0, job.steps)


def _stored_spike(service: Service) -> int | None:
    """The highest allocated bytes in the database, once that is the spike."""
    store = open_store(sqlite_url(service.files.root))
    try:
        records = store.jobs.latest([JOB])
        memory = store.jobs.memory(records[JOB]) if JOB in records else None
    finally:
        store.close()
    highest = max((peak.allocated_bytes for peak in memory.peaks), default=0) if memory is not None else 0
    return highest if highest == SPIKE else None
