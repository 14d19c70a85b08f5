"""The upgrade of a head in place: an old service with an open incident, then this version on the same state directory.

Everything is real: the old service and the old probe run the code of earlier commits, the rank trains on the rig and is
never touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.service import Service, eventually
from integration.upgrade_releases import old_code, probe_environ, service_environ, why_not
from matrix import in_turns
from tidegauge.osproc.processes import is_alive

pytestmark = [pytest.mark.rig, pytest.mark.timeout(600)]

TRAINING = Path(__file__).parents[1] / "soak" / "training.py"
RELEASES = ("2-closed-loop", "6-allocator")


class Head:
    """One state directory, an old rank that leaks, and the two versions of the service."""

    def __init__(self, rig: Rig, code: Path, scratch: Path) -> None:
        environ = rig.environ(devices=1, total_bytes=80 << 30, state=scratch / "gpus")
        self.service = Service(environ)
        self._now = dict(self.service.environ)
        self._before = service_environ(code, self._now)
        job = probe_environ(code, environ, level="auto")
        job |= {"TIDEGAUGE_RUN_DIR": str(self.service.run_dir), "TIDEGAUGE_JOB_ID": "llm", "OMP_NUM_THREADS": "1"}
        self.rank = subprocess.Popen([str(rig.python), str(TRAINING), "--leak", "--pause-s", "0.03"], env=job)

    def old(self) -> None:
        """Commands are the old version's from now on, and a service that they start is."""
        self.service.environ = self._before

    def new(self) -> None:
        self.service.environ = self._now

    def incident(self) -> dict[str, Any] | None:
        """The one that there is."""
        found = self.service.get("/api/v1/incidents?all=1")["incidents"]
        assert len(found) <= 1, "one leak is one incident"
        return found[0] if found else None

    def kill(self) -> None:
        """Every process of the service at once, as a crash of the machine would, but for the rank."""
        processes = [self.service.record.supervisor, *(stat.process for stat in self.service.processes())]
        for process in processes:
            with suppress(ProcessLookupError):  # a command that an agent runs has ended meanwhile
                os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: not any(is_alive(process) for process in processes), "the end of the old service")

    def close(self) -> None:
        self.rank.kill()
        self.rank.wait()
        self.new()
        self.service.close()


@pytest.fixture(params=in_turns(RELEASES))
def head(request: pytest.FixtureRequest, rig: Rig, tmp_path: Path) -> Iterator[Head]:
    release = str(request.param)
    reason = why_not(release)
    if reason is not None:
        pytest.skip(reason)
    with old_code(release) as code:
        head = Head(rig, code, tmp_path)
        try:
            head.old()
            head.service.up()
            yield head
        finally:
            head.close()


def before(head: Head) -> dict[str, Any]:
    """The incident as the old service tells it."""
    return eventually(head.incident, "an incident", within_s=180)


def after(head: Head, was: dict[str, Any]) -> None:
    """The new service goes on where the old one was."""

    def goes_on() -> dict[str, Any] | None:
        now = head.incident()
        return now if now is not None and now["updated_unix_s"] > was["updated_unix_s"] else None

    now = eventually(goes_on, "news of the incident", within_s=120)
    assert (now["number"], now["opened_unix_s"]) == (was["number"], was["opened_unix_s"])
    # An older service knew no groups of ranks: its incidents are about the first group, whose name is empty.
    assert now["key"] == {**was["key"], "job": {"group": "", **was["key"]["job"]}}
    assert now["state"] == "open"
    # Its last news may be the old service's, from after ``was``: the new one may have to look at the rank first.
    job = eventually(lambda: _leaking(head), "the job is seen to leak", within_s=120)
    assert job["job_id"] == "llm"
    now = eventually(head.incident, "the one incident")
    assert (now["number"], now["state"]) == (was["number"], "open")
    history = head.service.get(f"/api/v1/incident?number={now['number']}")["history"]
    assert [one["kind"] for one in history].count("opened") == 1
    assert head.rank.poll() is None, "the rank noticed nothing"


def _leaking(head: Head) -> dict[str, Any] | None:
    """The one job, once it is known to leak."""
    jobs = head.service.get("/api/v1/jobs")["jobs"]
    assert len(jobs) <= 1
    return jobs[0] if jobs and jobs[0]["state"] == "leak" else None


def test_an_incident_goes_on_after_down_and_up(head: Head) -> None:
    was = before(head)
    head.new()
    assert head.service.call("up").out.startswith("already up"), "a running service is left alone, old as it is"
    assert head.service.call("down").code == 0
    head.service.up()
    after(head, was)


def test_an_incident_goes_on_after_a_crash_with_the_old_engine_state_in_place(head: Head) -> None:
    """The engine's own store still holds the old actors; what runs afterwards must be this version's code."""
    was = before(head)
    head.kill()
    head.new()
    head.service.up()
    after(head, was)
    # None is healthy that had to stand still.
    eventually(lambda: len(head.service.agents()) == len(head.service.coordinators()) == 1, "one of each")
    eventually(lambda: head.service.get("/api/v1/status")["healthy"], "all is well")
    for pid in (*head.service.agents(), *head.service.coordinators()):
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"tg-old-" not in environ, "an actor runs the old code"
