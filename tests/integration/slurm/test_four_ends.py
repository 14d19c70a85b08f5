"""What stays of jobs on a real Slurm: their records are the jobs' own counters, however they ended, and also where the
head was killed and its database restored from a backup meanwhile."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.service import eventually
from integration.slurm.box_files import ACCOUNT
from integration.slurm.conftest import StartBox
from integration.slurm.site import HOOKS, MAY_REQUEUE, SERVICE_USER, SLURM_CONF, Job, Site
from matrix import turn

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

COUNTED = ("allocated_bytes", "reserved_bytes", "limit_bytes", "steps")
LINGER_S = "600"
"""Nodes report ended ranks for so long: the head may be away for a while on a busy machine."""
BACKUP = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))"
"""What ``.backup`` of the program ``sqlite3`` does."""


@pytest.fixture(scope="module")
def site(start_box: StartBox, rig: Rig) -> Iterator[Site]:
    """Its jobs have half a minute between SIGTERM and SIGKILL, which is Slurm's default."""
    conf = f"{SLURM_CONF}KillWait=30\n"
    box = start_box(nodes=3, gpus=2, memory_mib=8000, accounting=True, files=HOOKS, slurm_conf=conf)
    box.make_operator(SERVICE_USER)
    folder = box.folder / "s"
    folder.mkdir(mode=0o755)
    one = Site(box, rig, folder, {"TIDEGAUGE_LINGER_S": LINGER_S})
    one.set_mode("observe")
    try:
        one.up(nodes=box.nodes)
        yield one
    finally:
        print(one.story())  # shown with a failure
        one.close()


@turn(3)
def test_records_are_the_jobs_own_counters_however_they_ended(site: Site) -> None:
    healthy = _submit(site, "healthy", "n3")
    leaky = _submit(site, "leaky", "n1,n2", "--leak-rank", "1", options=MAY_REQUEUE)
    full = _submit(site, "full", "n3", "--fill", options=("--memory-profile", "--memory-fraction=0.25"))
    idle = _submit(site, "idle", "n1", "--idle-after", "40")
    jobs = (healthy, leaky, full, idle)
    eventually(lambda: all(_record(site, job) for job in jobs), "all of them are seen", within_s=150)

    site.kill_head()
    site.start_head()
    site.wait_for_nodes()
    assert [record["record"]["end"] for job in jobs if (record := _record(site, job))] == [None] * 4
    site.set_mode("act")
    full.let_end()
    site.box.wait(full.job_id, "FAILED", within_s=120)
    eventually(lambda: len(leaky.told("began")) > 1, "its second attempt", within_s=300)
    eventually(lambda: _is_in_its_second_attempt(site, leaky), "some steps of it", within_s=120)
    leaky.let_end()
    site.box.wait(leaky.job_id, "COMPLETED", within_s=240)
    attempts = site.restarts(leaky) + 1
    for attempt in range(attempts - 1):
        _check(site, leaky, "requeued", attempt)
    _check(site, leaky, "completed", attempts - 1)
    _check(site, full, "oom")

    # What is older than the backup comes from it, what is newer from the nodes.
    backup = site.state_dir("ctl") / "backup.db"
    database = site.state_dir("ctl") / "tidegauge.db"
    site.box.run(sys.executable, "-c", BACKUP, database, backup, user=SERVICE_USER)
    (counters,) = _counters(idle, 0).values()
    eventually(lambda: _peaks(site, idle).get(0, {}).get("steps") == counters["steps"], "the last of its counters")
    site.box.run("scancel", idle.job_id, user="alice")
    _check(site, idle, "cancelled")
    eventually(lambda: _admin_comment(site, idle).startswith("tg1: ended after"), "its end in sacct", within_s=90)
    assert f"tidegauge job {idle.job_id} has all of it" in _admin_comment(site, idle)
    assert "(cancelled); " in _admin_comment(site, idle)
    assert "(oom); " in _admin_comment(site, full)
    site.kill_head()
    site.box.run("rm", "-f", f"{database}-wal", f"{database}-shm", user=SERVICE_USER)
    site.box.run("mv", backup, database, user=SERVICE_USER)
    site.start_head()
    site.wait_for_nodes()
    healthy.let_end()
    site.box.wait(healthy.job_id, "COMPLETED", within_s=120)
    _check(site, healthy, "completed")
    _check(site, idle, "cancelled")
    _check(site, full, "oom")
    for attempt in range(attempts - 1):
        record = _check(site, leaky, "requeued", attempt)
        assert {"checkpoint", "requeue"} <= {*record["actions"]}
        assert record["incidents"]
    _check(site, leaky, "completed", attempts - 1)


def _submit(
    site: Site, name: str, nodes: str, *flags: str, options: tuple[str, ...] = ("--memory-profile=stats",)
) -> Job:
    """One rank on each of the nodes, which says its counters and goes on until ``let_end``."""
    return site.submit(
        name, "--counters", *flags, options=(*options, f"--nodelist={nodes}"), nodes=nodes.count(",") + 1,
        ranks_per_node=1, steps=1, user="alice",
    )  # fmt: skip


def _is_in_its_second_attempt(site: Site, job: Job) -> bool:
    record = (_record(site, job) or {"record": {}})["record"]
    return bool(record.get("job", {}).get("attempt", 0) > 0 and record["steps"] > 20)


def _check(site: Site, job: Job, end: str, attempt: int = 0) -> dict[str, Any]:
    """That an attempt's record is what the attempt printed, and its end; returns the record."""

    def ended() -> dict[str, Any] | None:
        record: dict[str, Any] = (_record(site, job, attempt) or {"record": {}})["record"]
        return record if record.get("end") == end else None

    record = eventually(ended, f"{job.log.stem} {attempt} {end}: {_record(site, job, attempt)}", within_s=120)
    told = _counters(job, attempt)
    assert {rank: {name: one[name] for name in COUNTED} for rank, one in told.items()} == {
        rank: {name: one[name] for name in COUNTED} for rank, one in _peaks(site, job, attempt).items()
    }
    fullest = told[record["fullest"]["rank"]]
    assert fullest["reserved_bytes"] == max(one["reserved_bytes"] for one in told.values())
    assert {name: record["fullest"][name] for name in COUNTED} == {name: fullest[name] for name in COUNTED}
    assert record["steps"] == max(one["steps"] for one in told.values())
    for one in told.values():
        assert (record["account"], record["partition"], record["nodes"]) == (
            one["account"], one["partition"], one["nodes"],
        )  # fmt: skip
    assert record["account"] == ACCOUNT
    assert (record["world_size"], record["gpus"], record["user_name"]) == (len(told), len(told), "alice")
    return record


def _counters(job: Job, attempt: int) -> dict[int, dict[str, Any]]:
    """By rank, what an attempt printed in its output."""
    lines = [line.partition("counters ")[2] for line in job.log.read_text().splitlines() if "counters {" in line]
    return {one["rank"]: one for one in map(json.loads, lines) if one["attempt"] == attempt}


def _record(site: Site, job: Job, attempt: int | None = None) -> dict[str, Any] | None:
    """What ``tidegauge job`` tells, if there is a record."""
    of_attempt = [] if attempt is None else ["--attempt", str(attempt)]
    told = site.call("job", job.job_id, *of_attempt, "--json", check=False)
    return json.loads(told.stdout) if told.returncode == 0 else None


def _admin_comment(site: Site, job: Job) -> str:
    """In small letters: sacctmgr of 22.05 makes them of all others."""
    return site.box.run("sacct", "-X", "-n", "-P", "-j", job.job_id, "-o", "AdminComment", user="alice").stdout.lower()


def _peaks(site: Site, job: Job, attempt: int = 0) -> dict[int, dict[str, Any]]:
    memory = (_record(site, job, attempt) or {}).get("memory") or {"peaks": []}
    return {peak["rank"]: peak for peak in memory["peaks"]}
