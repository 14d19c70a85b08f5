"""What stays of jobs on Kubernetes: their records are the jobs' own counters, however they ended, and also where the
head was killed and its database restored from a backup meanwhile."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.kubernetes.site import CAP, JOBS, TOTAL_BYTES, KubeSite, open_site
from integration.kubernetes.target import KubeTarget
from integration.service import eventually
from matrix import turn
from tidegauge.core.jobs.kubernetes import ACTIONS, ENDED, FRACTION
from tidegauge_scheduler_hooks.kubernetes.events import ENDED_EVENT

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

COUNTED = ("allocated_bytes", "reserved_bytes", "limit_bytes", "steps")
SMALL = "0.125"
"""Of 80 GiB: 10 GiB, which a job fills in a second when it may end."""
IDLE_AFTER_STEPS = 40


@pytest.fixture(scope="module")
def site(kube: KubeTarget, rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeSite]:
    folder = tmp_path_factory.mktemp("site")
    folder.chmod(0o755)
    if not kube.has_job_controller:
        pytest.skip("this API server runs without kube-controller-manager: nobody makes the pods of Jobs")
    with (
        kube.temporary_namespace("system") as system,
        kube.temporary_namespace("alice") as alice,
        open_site(kube, rig, folder, namespaces=[system, alice]) as one,
    ):
        yield one


@pytest.fixture
def jobs(site: KubeSite) -> FourJobs:
    return FourJobs(site)


class FourJobs:
    """Jobs that print their counters, and their records."""

    def __init__(self, site: KubeSite) -> None:
        self.site = site
        self._pods: dict[str, str] = {}
        """Names of Jobs by the uids of their pods, of those that are gone too."""

    def submit(self, name: str, *flags: str, gpu: int, ranks: int = 1, annotations: Mapping[str, str] = {}) -> None:
        """Goes on until ``let_end``, or until its flags end it."""
        self.site.submit_job(name, "--counters", *flags, first_gpu=gpu, ranks=ranks, steps=1, annotations=annotations)

    def note_pods(self, *names: str) -> None:
        """Before they go."""
        self._pods |= {pod["metadata"]["uid"]: name for name in names for pod in self.site.pods(name)}

    def counters(self, name: str, attempt: int) -> dict[int, dict[str, Any]]:
        """By rank, what the pods of an attempt printed last."""
        self.note_pods(name)
        logs = (self.site.bench.node.log_of(uid, "trainer") for uid, of in self._pods.items() if of == name)
        lines = [line.partition("counters ")[2] for log in logs for line in log.splitlines() if "counters {" in line]
        return {one["rank"]: one for one in map(json.loads, lines) if one["attempt"] == attempt}

    def told(self, name: str, attempt: int | None = None) -> dict[str, Any]:
        """What ``tidegauge job`` tells of it; empty without a record."""
        which = [] if attempt is None else ["--attempt", str(attempt)]
        done = self.site.service.call("job", f"{self.site.bench.namespace}/{name}", *which, "--json")
        return dict(done.json) if done.code == 0 else {}

    def peaks(self, name: str, attempt: int) -> dict[int, dict[str, Any]]:
        memory = self.told(name, attempt).get("memory") or {"peaks": []}
        return {peak["rank"]: peak for peak in memory["peaks"]}

    def check(self, name: str, end: str, attempt: int = 0) -> dict[str, Any]:
        """That an attempt's record is what the attempt printed, and its end; returns the record."""

        def ended() -> dict[str, Any] | None:
            record: dict[str, Any] = self.told(name, attempt).get("record") or {}
            return record if record.get("end") == end else None

        record = eventually(ended, f"{name} {attempt} {end}", within_s=150)
        told = self.counters(name, attempt)
        assert told, "it printed its counters"
        assert {rank: {key: one[key] for key in COUNTED} for rank, one in told.items()} == {
            rank: {key: one[key] for key in COUNTED} for rank, one in self.peaks(name, attempt).items()
        }
        fullest = told[record["fullest"]["rank"]]
        assert fullest["reserved_bytes"] == max(one["reserved_bytes"] for one in told.values())
        assert {key: record["fullest"][key] for key in COUNTED} == {key: fullest[key] for key in COUNTED}
        assert record["steps"] == max(one["steps"] for one in told.values())
        namespace = self.site.bench.namespace
        assert (record["namespace"], record["user_name"], record["scheduler"]) == (namespace, namespace, "kubernetes")
        assert (record["job_name"], record["world_size"], record["gpus"]) == (name, len(told), len(told))
        return record


@turn(4)
def test_records_are_the_jobs_own_counters_however_they_ended(jobs: FourJobs, tmp_path: Path) -> None:
    site = jobs.site
    site.set_mode("observe")  # so that the first attempt lasts until it was seen
    jobs.submit("healthy", gpu=0)
    jobs.submit("full", "--fill", gpu=1, annotations={FRACTION: SMALL})
    jobs.submit("idle", "--idle-after", str(IDLE_AFTER_STEPS), gpu=1)
    jobs.submit("leaky", "--leak-rank", "1", gpu=2, ranks=2, annotations={ACTIONS: "requeue", FRACTION: CAP})
    names = ("healthy", "full", "idle", "leaky")
    eventually(lambda: all(jobs.told(name) for name in names), "all of them are seen", within_s=300)
    jobs.note_pods(*names)

    site.service.kill()
    site.service.up()
    assert [jobs.told(name)["record"]["end"] for name in names] == [None] * 4
    site.set_mode("act")
    eventually(lambda: site.told("leaky", "began")[1:], "its second attempt", within_s=300)
    site.set_mode("observe")
    eventually(lambda: _steps(jobs, "leaky", 1) > 20, "some steps of it", within_s=200)
    site.let_end("leaky")
    site.let_end("full")
    attempts = len(site.told("leaky", "began"))
    for attempt in range(attempts - 1):
        jobs.check("leaky", "requeued", attempt)
    jobs.check("leaky", "completed", attempts - 1)
    full = jobs.check("full", "oom")
    assert full["fullest"]["limit_bytes"] == TOTAL_BYTES * float(SMALL)

    eventually(lambda: _steps(jobs, "idle", 0) == IDLE_AFTER_STEPS, "the last of its steps", within_s=200)
    path = f"/{JOBS}/namespaces/{site.bench.namespace}/jobs/idle"
    site.admin.do("DELETE", path, {"propagationPolicy": "Background"})  # as kubectl does
    jobs.check("idle", "cancelled")

    # What ended is in the backup; what runs goes on from it.
    backup, database = tmp_path / "backup.db", site.service.files.root / "tidegauge.db"
    with contextlib.closing(sqlite3.connect(database)) as source, contextlib.closing(sqlite3.connect(backup)) as copy:
        source.backup(copy)  # what ``.backup`` of the program ``sqlite3`` does
    site.service.kill()
    for path_of in (database, *database.parent.glob("tidegauge.db-*")):
        path_of.unlink()
    backup.rename(database)
    site.service.up()
    site.let_end("healthy")
    jobs.check("healthy", "completed")
    jobs.check("idle", "cancelled")
    jobs.check("full", "oom")
    for attempt in range(attempts - 1):
        record = jobs.check("leaky", "requeued", attempt)
        assert {"checkpoint", "requeue"} <= {*record["actions"]}
        assert record["incidents"]
    jobs.check("leaky", "completed", attempts - 1)
    for name, how in (("healthy", "completed"), ("full", "OOM")):
        said = eventually(partial(_remark, site, name), f"the remark on {name}", within_s=100)
        assert said.startswith("ended after ")
        assert f"({how}); " in said
        notes = [event["note"] for event in site.events(name) if event["reason"] == ENDED_EVENT]
        assert notes == [said]


def _remark(site: KubeSite, name: str) -> str | None:
    """What ``kubectl describe`` shows among the annotations."""
    annotations: dict[str, str] = site.owner(JOBS, "jobs", name)["metadata"].get("annotations") or {}
    return annotations.get(ENDED)


def _steps(jobs: FourJobs, name: str, attempt: int) -> int:
    return max((int(peak["steps"]) for peak in jobs.peaks(name, attempt).values()), default=0)
