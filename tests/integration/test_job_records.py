"""What stays of jobs: real ones under ``tidegauge run`` on the rig, an agent, and a coordinator that is replaced."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.service import eventually
from tidegauge.agent.node_agent import open_node_agent
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.job_recording import JobRecorder
from tidegauge.cluster.store import open_store, sqlite_url
from tidegauge.cluster.views import EngineNode
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.verdicts import LeakState
from tidegauge.settings import Settings

pytestmark = [pytest.mark.rig, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("rig_jobs") / "recorded.py"
STEPS = 40
WITHIN_S = 300.0
NODE = EngineNode("id", "here", "127.0.0.1")


class Site:
    """A node and the head's records of its jobs, on a database that outlives the coordinator."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        run_dir = folder / "run"
        run_dir.mkdir()
        self._rig = rig
        self._folder = folder
        self._environ = {
            **rig.environ(devices=1, total_bytes=8 << 30, state=folder / "gpus"),
            "TIDEGAUGE_RUN_DIR": str(run_dir),
            "OMP_NUM_THREADS": "1",
        }
        self._agent = open_node_agent(Settings(run_dir=run_dir, kubernetes="off", slurm="off", linger_s=5.0))
        self._store = open_store(sqlite_url(folder))
        self._jobs: list[subprocess.Popen[bytes]] = []
        self.replace_coordinator()

    def close(self) -> None:
        for job in self._jobs:
            if job.poll() is None:
                job.kill()
                job.wait()
        self._agent.close()
        self._store.close()

    def replace_coordinator(self) -> None:
        self._coordinator = Coordinator(
            wall_s=time.time, monotonic_s=time.monotonic, incarnation="c", linger_s=5.0
        )  # fmt: skip
        self._recorder = JobRecorder(
            self._coordinator.jobs, self._store.jobs, ended_launches=self._coordinator.ended_launches,
            history_of=self._coordinator.history_of, now_s=time.time, monotonic_s=time.monotonic,
        )  # fmt: skip

    def start(self, how: str) -> subprocess.Popen[bytes]:
        command = ["bash", "-c", f"exec {self._rig.python} {SCRIPT} {how} {self._folder / how}"]
        with (self._folder / f"{how}.log").open("wb") as log:
            job = subprocess.Popen(
                [sys.executable, "-m", "tidegauge.cli.main", "run", "--job-name", how, "--", *command],
                env=self._environ, stdout=log, stderr=log, cwd=self._folder,
            )  # fmt: skip
        self._jobs.append(job)
        return job

    def counters(self, how: str) -> Mapping[str, int]:
        """The job's own."""
        file = self._folder / how
        eventually(file.exists, f"counters of {how}")
        found: dict[str, int] = json.loads(file.read_text())
        return found

    def running(self, how: str) -> JobRecord:
        def found() -> JobRecord | None:
            self._look()
            return next((one for one in self._store.jobs.running() if one.job_name == how), None)

        return eventually(found, f"a record of {how}; it said {self._said(how)}")

    def ended(self, how: str, end: JobEnd) -> JobRecord:
        def found() -> JobRecord | None:
            self._look()
            ended = self._store.jobs.ended(limit=9)
            return next((one for one in ended if one.job_name == how and one.end is end), None)

        what = f"a record of {how} that ended so: {end.value}; it said {self._said(how)}"
        return eventually(found, what, within_s=WITHIN_S)

    def _look(self) -> None:
        self._agent.poll()
        self._coordinator.engine_nodes([NODE])
        summary = self._agent.summary(node_id=NODE.node_id, incarnation="i", metrics_address=None)
        self._coordinator.report(summary)
        self._recorder.tick()

    def _said(self, how: str) -> str:
        return (self._folder / f"{how}.log").read_text()[-500:]


@pytest.fixture
def site(rig: Rig, tmp_path: Path) -> Iterator[Site]:
    site = Site(rig, tmp_path)
    try:
        yield site
    finally:
        site.close()


def test_the_record_of_a_healthy_job_has_the_figures_of_its_own_counters(site: Site) -> None:
    job = site.start("clean")
    record = site.ended("clean", JobEnd.COMPLETED)
    assert job.wait(60) == 0
    own = site.counters("clean")
    assert (record.state, record.steps, record.ooms) == (LeakState.OK, STEPS, 0)
    assert record.fullest.allocated_bytes == own["allocated"] > 96 << 20
    assert record.fullest.reserved_bytes == own["reserved"]
    assert (record.fullest.alloc_retries, record.fullest.ooms, record.gpus) == (0, 0, 1)
    assert record.script == str(SCRIPT)
    assert record.script_sha256 == hashlib.sha256(SCRIPT.read_bytes()).hexdigest()
    assert (record.arguments or "").startswith("clean ")
    assert record.torch_version
    assert record.started_unix_s < (record.ended_unix_s or 0.0) <= time.time()


def test_a_job_that_dies_of_an_oom_says_so(site: Site) -> None:
    job = site.start("oom")
    record = site.ended("oom", JobEnd.OOM)
    assert job.wait(60) != 0
    assert (record.ooms, record.fullest.ooms, record.steps) == (1, 1, STEPS)


def test_the_record_of_a_running_job_goes_on_under_the_next_coordinator_and_ends_with_a_signal(site: Site) -> None:
    job = site.start("endless")
    before = site.running("endless")
    site.replace_coordinator()
    site.running("endless")
    os.kill(site.counters("endless")["pid"], signal.SIGKILL)
    record = site.ended("endless", JobEnd.FAILED)
    job.wait(60)
    assert record.started_unix_s == before.started_unix_s


def test_a_job_that_a_person_ended_was_cancelled(site: Site) -> None:
    job = site.start("endless")
    site.running("endless")
    site.counters("endless")  # of its first step
    job.terminate()
    record = site.ended("endless", JobEnd.CANCELLED)
    job.wait(60)
    assert record.steps > 0
