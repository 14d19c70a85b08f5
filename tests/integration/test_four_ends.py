"""What stays of a job that ended well, that was saved, that ran out of memory and that was cancelled: its own figures,
also after the service was killed and its database came from a backup."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from fakes.fake_slack import FakeSlack
from integration.closed_loop_site import Site
from integration.ray_cluster import RayCluster, ray_cluster
from integration.server_process import free_port
from integration.service import Service, answered, eventually
from matrix import in_turns, turn
from tidegauge.cli.demo.jobs import last_lines
from tidegauge.probe.activation.launch import PYTHONPATH_FOLDER
from tidegauge_scheduler_hooks.ray_jobs.api import RayJob as Submission

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).with_name("rig_jobs") / "four_ends.py"
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
GPU_BYTES = 8 << 30
FRACTION = 0.25
"""Of the job that runs out of memory: 2 GiB, some 240 steps."""
WITHIN_S = 240
OWNER = "ada@example.org"
RUNS = {
    ("healthy", 0): "completed", ("saved", 0): "requeued", ("saved", 1): "completed", ("oom", 0): "oom",
    ("cancelled", 0): "cancelled",
}  # fmt: skip
"""How each attempt of each job ends."""
FLAGS = {"saved": ["--requeue"], "oom": ["--memory-fraction", str(FRACTION)]}
EXIT_STATUS = {"healthy": 0, "saved": 0, "oom": 1, "cancelled": -signal.SIGINT}
"""Of ``tidegauge run``."""
RAY_STATUS = {
    "healthy": ["SUCCEEDED"], "saved": ["STOPPED", "SUCCEEDED"], "oom": ["FAILED"], "cancelled": ["STOPPED"]
}  # fmt: skip
"""Of each submission of a job, in order."""
RAY_WORDS = {"healthy": "completed", "saved": "completed", "oom": "OOM", "cancelled": "cancelled"}
"""How it ended, in the metadata of the last submission."""


class Stand(ABC):
    """A service with a policy that acts, and jobs that end as their names say."""

    asked_by: str
    """The name by which the API finds a job."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.folder = folder
        self.environ = rig.environ(devices=1, total_bytes=GPU_BYTES, state=folder / "gpus")
        self.service = Service(self.environ)
        self.site = Site(self.service, str(rig.python), self.environ, folder)
        self.site.set_mode("act")

    @abstractmethod
    def start(self, how: str) -> None: ...

    @abstractmethod
    def cancel(self) -> None:
        """As its owner does it."""

    @abstractmethod
    def check_ends(self) -> None:
        """What their owner sees."""

    @abstractmethod
    def close(self) -> None:
        """Also the service."""

    def command(self, how: str) -> list[str]:
        (self.folder / how).mkdir()
        return [str(self.rig.python), str(SCRIPT), how, str(self.folder / how)]

    def began(self, how: str, attempt: int = 0) -> None:
        """It trains."""
        eventually((self.folder / how / f"began.{attempt}").exists, f"{how} trains", within_s=WITHIN_S)

    def let_end(self, how: str) -> None:
        (self.folder / how / "end").touch()

    def counters(self, how: str, attempt: int) -> dict[str, int]:
        """The job's own."""
        told: dict[str, int] = json.loads((self.folder / how / f"counters.{attempt}").read_text())
        return told

    def on_record(self, how: str, attempt: int, end: str | None) -> str:
        """The id of the job, once it has ended so; ``None``: while it runs."""
        seen: list[Any] = []

        def found() -> str | None:
            record = self.service.get(f"/api/v1/job-record?{self.asked_by}={how}&attempt={attempt}")["record"]
            seen.append(record["end"])
            return str(record["job"]["job_id"]) if record["end"] == end else None

        try:
            return eventually(found, "its end is on record", within_s=WITHIN_S)
        except AssertionError as error:
            raise AssertionError(f"{how}, attempt {attempt}: {end} is to be on record, it is {seen[-1:]}") from error

    def told(self, how: str, attempt: int) -> dict[str, Any]:
        """What the command says of it, by its id."""
        job_id = self.on_record(how, attempt, RUNS[how, attempt])
        answer: dict[str, Any] = answered(
            partial(self.service.call, "job", job_id, "--attempt", str(attempt), "--json")
        )
        return answer

    def kill_the_service(self) -> None:
        """All of its processes, as a crash of the machine would. The jobs go on."""
        before = self.service.record
        for process in [before.supervisor, *(stat.process for stat in self.service.processes())]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: not self.service.traces(before), "the end of the service")

    def restore_from_a_backup(self) -> None:
        """By the commands that the page tells, word for word but for the folders."""
        section = PAGE.read_text().partition("## Back up the database")[2].partition("\n## ")[0]
        copy, restore = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
        (self.folder / "backup").mkdir()
        self._type(copy)
        assert (self.folder / "backup" / "tidegauge.db").stat().st_mode & 0o777 == 0o600
        stop, rest = restore.split("\n", 1)
        self._type(stop)
        (self.service.files.root / "tidegauge.db").unlink()
        self._type(rest)

    def _type(self, lines: str) -> None:
        commands = "\n".join(line.removeprefix("head# ") for line in lines.splitlines())
        commands = commands.replace("/var/lib/tidegauge", str(self.service.files.root))
        commands = commands.replace("/backup", str(self.folder / "backup"))
        tidegauge = f'tidegauge() {{ {shlex.quote(sys.executable)} -m tidegauge "$@"; }}'
        subprocess.run(
            ["bash", "-ec", f"{tidegauge}\n{commands}"], env=self.service.environ, cwd="/", timeout=200, check=True
        )  # fmt: skip


class TidegaugeRun(Stand):
    """Jobs under ``tidegauge run``."""

    asked_by = "name"

    def __init__(self, rig: Rig, folder: Path) -> None:
        super().__init__(rig, folder)
        self._jobs: dict[str, subprocess.Popen[bytes]] = {}
        self._running = contextlib.ExitStack()

    def start(self, how: str) -> None:
        job = self.site.run(how, self.command(how), FLAGS.get(how, []))
        self._jobs[how], _ = self._running.enter_context(job)

    def cancel(self) -> None:
        """By SIGINT, to its keeper alone: the job gets a signal to the whole group twice, and may be interrupted anew
        while it writes its counters."""
        self._jobs["cancelled"].send_signal(signal.SIGINT)

    def wait(self, *jobs: str) -> None:
        """Until they have ended."""
        for how in jobs:
            assert self._jobs[how].wait(WITHIN_S) == EXIT_STATUS[how], last_lines(self.folder / f"{how}.log", 30)

    def check_ends(self) -> None:
        self.wait(*EXIT_STATUS)
        said = {how: (self.folder / f"{how}.log").read_text() for how in EXIT_STATUS}
        for text in said.values():
            assert text.count("`tidegauge job local-") == 1, text
        assert said["oom"].count("an allocation of ") == 1, said["oom"]
        assert "tidegauge: attempt 1: rank 0: " in said["saved"]

    def close(self) -> None:
        self._running.close()
        self.service.close()


class RayJobs(Stand):
    """Jobs that a user submits to a Ray cluster of their own."""

    asked_by = "job_id"

    def __init__(self, rig: Rig, folder: Path, cluster: RayCluster, slack: FakeSlack) -> None:
        super().__init__(rig, folder)
        self.cluster = cluster
        self._submitted: dict[str, str] = {}
        slack.add_user(OWNER)  # the one place where the owner of a Ray job can be warned
        (folder / "users.yaml").write_text(f"{getpass.getuser()}: {OWNER}\n")
        (folder / "slack-token").write_text(slack.token)
        (folder / "slack-token").chmod(0o600)
        self.service.environ |= {
            "TIDEGAUGE_RAY_JOBS_ADDRESS": cluster.url,
            "TIDEGAUGE_RAY_JOBS_TOKEN_FILE": str(cluster.token_file),
            "TIDEGAUGE_SLACK_API_URL": slack.api_url,
            "TIDEGAUGE_SLACK_TOKEN_FILE": str(folder / "slack-token"),
            "TIDEGAUGE_SLACK_USERS_FILE": str(folder / "users.yaml"),
            "TIDEGAUGE_NOTIFY_PORT": str(free_port()),
        }

    def start(self, how: str) -> None:
        environ = self.rig.environ(base={}, devices=1, total_bytes=GPU_BYTES, state=self.folder / "gpus")
        environ |= {
            "TIDEGAUGE_PROFILE": "stats", "TIDEGAUGE_RUN_DIR": str(self.service.run_dir), "TIDEGAUGE_JOB_ID": how,
            "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PYTHONPATH_FOLDER),
        }  # fmt: skip
        if how == "oom":
            environ["TIDEGAUGE_MEMORY_FRACTION"] = str(FRACTION)
        self._submitted[how] = self.cluster.user.call(
            "submit_job", entrypoint=shlex.join(self.command(how)), runtime_env={"env_vars": environ},
            metadata={"tidegauge.requeue": "true"} if how == "saved" else {},
        )  # fmt: skip

    def cancel(self) -> None:
        self.cluster.user.call("stop_job", job_id=self._submitted["cancelled"])

    def check_ends(self) -> None:
        for how in RAY_STATUS:
            eventually(partial(self._ended_so, how), f"{how} ends and has its line", within_s=WITHIN_S)
        assert "tidegauge.end" not in self._submissions("saved")[0].metadata

    def _ended_so(self, how: str) -> bool:
        jobs = self._submissions(how)
        line = jobs[-1].metadata.get("tidegauge.end", "")
        return [job.status for job in jobs] == RAY_STATUS[how] and f" ({RAY_WORDS[how]}); " in line

    def _submissions(self, how: str) -> list[Submission]:
        jobs = [job for job in self.cluster.api().jobs() if job.environ.get("TIDEGAUGE_JOB_ID") == how]
        return sorted(jobs, key=lambda job: job.started_unix_ms)

    def close(self) -> None:
        for job in self.cluster.api().jobs():
            if job.submission_id is not None and not job.finished:
                self.cluster.user.call("stop_job", job_id=job.submission_id)
        self.service.close()


@pytest.fixture(params=in_turns(["tidegauge run", "Ray Jobs"]))
def stand(rig: Rig, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stand]:
    with contextlib.ExitStack() as stack:
        one: Stand
        if request.param == "tidegauge run":
            one = TidegaugeRun(rig, tmp_path)
        else:
            one = RayJobs(rig, tmp_path, stack.enter_context(ray_cluster()), stack.enter_context(FakeSlack()))
        stack.callback(one.close)
        one.service.up()
        yield one
        print(one.service.logs())


def test_each_of_four_ends_leaves_the_jobs_own_counters(stand: Stand) -> None:
    stand.start("saved")
    stand.start("oom")
    stand.began("saved", attempt=1)
    stand.on_record("saved", 0, "requeued")
    stand.on_record("oom", 0, "oom")
    for how in ("healthy", "cancelled"):
        stand.start(how)
        stand.began(how)
    for how, attempt in (("saved", 1), ("healthy", 0), ("cancelled", 0)):
        stand.on_record(how, attempt, None)
    stand.kill_the_service()
    stand.service.up()
    stand.let_end("healthy")
    stand.let_end("saved")
    stand.cancel()
    stand.check_ends()
    before = {run: stand.told(*run)["record"] for run in RUNS}
    stand.restore_from_a_backup()

    for (how, attempt), end in RUNS.items():
        answer, own = stand.told(how, attempt), stand.counters(how, attempt)
        record, (peak,) = answer["record"], answer["memory"]["peaks"]
        own["limit_bytes"] = int(own.pop("total_bytes") * (FRACTION if how == "oom" else 1))
        for fullest in (record["fullest"], peak):
            assert {name: fullest[name] for name in own} == own, how
        assert (record["steps"], record["end"]) == (own["steps"], end)
        ended = ("started_unix_s", "ended_unix_s", "incidents", "actions")
        assert {name: record[name] for name in ended} == {name: before[how, attempt][name] for name in ended}
    assert {"checkpoint", "requeue"} <= {*stand.told("saved", 0)["record"]["actions"]}
    assert stand.told("healthy", 0)["record"]["incidents"] == []


@turn(4)
@pytest.mark.parametrize("stand", ["tidegauge run"], indirect=True)
def test_jobs_that_end_while_the_service_is_down_are_on_record_as_they_ended(stand: TidegaugeRun) -> None:
    for how in ("healthy", "cancelled"):
        stand.start(how)
        stand.began(how)
        stand.on_record(how, 0, None)
    stand.kill_the_service()
    stand.let_end("healthy")
    stand.cancel()
    stand.wait("healthy", "cancelled")
    stand.service.up()
    for how in ("healthy", "cancelled"):
        record, own = stand.told(how, 0)["record"], stand.counters(how, 0)
        # Rings of ranks that ended meanwhile are not read: these are the figures of before.
        assert record["fullest"]["allocated_bytes"] <= own["allocated_bytes"]
        assert record["steps"] <= own["steps"]
