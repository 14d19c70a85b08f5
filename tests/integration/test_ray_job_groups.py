"""The closed loop on a Ray job with two groups of workers: actors that train, on a real cluster of a user."""

from __future__ import annotations

import getpass
import json
import os
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from fakes.fake_slack import FakeSlack
from integration.closed_loop_site import LADDER, SCRIPT, Site, check_went_on, done, to_the_requeue
from integration.ray_cluster import INSIDE, PYTHON, RayCluster, ray_cluster
from integration.server_process import free_port
from integration.service import Service, eventually
from matrix import turn
from tidegauge.probe.activation.launch import PYTHONPATH_FOLDER
from tidegauge_scheduler_hooks.ray_jobs.api import RayJob as Submission
from whole_lines import whole_lines

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1500)]

GPU_BYTES = 80 << 30
STEPS = 500
BEGIN_S = 400
"""On a busy machine: Ray begins four workers, and each imports torch and Ray."""
OWNER = "ada@example.org"
GROUPS = ("trainer", "rollout")


class RayJob:
    """One submission with two groups of two ranks each; each group keeps its state in a file of its own."""

    def __init__(self, cluster: RayCluster, rig: Rig, environ: dict[str, str], folder: Path, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._python = str(rig.python)
        self._environ = environ
        self._folder = folder
        self._end = folder / f"{name}.end"

    def submit(self, flags: dict[str, tuple[str, ...]], *, steps: int) -> None:
        groups = [
            ["--state", str(self._state(group)), "--steps", str(steps), "--until", str(self._end), *flags[group]]
            for group in GROUPS
        ]
        # The rig's torch and Ray's packages in one process.
        packages = next((PYTHON.parents[1] / "lib").glob("python*/site-packages"))
        search = f"{PYTHONPATH_FOLDER}:{packages}"
        self._cluster.user.call(
            "submit_job",
            entrypoint=shlex.join([self._python, str(INSIDE / "groups.py"), str(SCRIPT), json.dumps(groups)]),
            runtime_env={
                "py_executable": self._python,
                "env_vars": {**self._environ, "TIDEGAUGE_JOB_ID": self.name, "PYTHONPATH": search},
            },
            metadata={"tidegauge.requeue": "true"},
        )

    def _state(self, group: str) -> Path:
        return self._folder / f"{self.name}-{group}.state"

    def told(self, group: str, what: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in whole_lines(self._state(group).with_suffix(".story"))]
        return [line for line in lines if line["what"] == what]

    def all_told(self, what: str, times: int = 1) -> bool:
        """Whether both groups did, so often. Fails with the driver's log if the job has failed meanwhile."""
        for run in self._submissions():
            assert run.status != "FAILED", self._cluster.user.call("get_job_logs", job_id=run.submission_id)
        return all(len(self.told(group, what)) >= times for group in GROUPS)

    def let_end(self) -> None:
        self._end.touch()

    def statuses(self) -> list[str]:
        """Of its submissions, in the order of their starts."""
        return [run.status for run in sorted(self._submissions(), key=lambda run: run.started_unix_ms)]

    def _submissions(self) -> list[Submission]:
        return [run for run in self._cluster.api().jobs() if run.environ.get("TIDEGAUGE_JOB_ID") == self.name]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as started:
        yield started


@pytest.fixture
def slack() -> Iterator[FakeSlack]:
    """The one place where the owner of a Ray job can be told."""
    with FakeSlack() as one:
        one.add_user(OWNER)
        yield one


@pytest.fixture
def site(rig: Rig, cluster: RayCluster, slack: FakeSlack, tmp_path: Path) -> Iterator[Site]:
    environ = rig.environ(devices=2, total_bytes=GPU_BYTES, state=tmp_path / "gpus")
    service = Service(environ)
    service.environ |= {
        "TIDEGAUGE_RAY_JOBS_ADDRESS": cluster.url,
        "TIDEGAUGE_RAY_JOBS_TOKEN_FILE": str(cluster.token_file),
        "TIDEGAUGE_SLACK_API_URL": slack.api_url,
        "TIDEGAUGE_SLACK_TOKEN_FILE": str(tmp_path / "slack-token"),
        "TIDEGAUGE_SLACK_USERS_FILE": str(tmp_path / "users.yaml"),
        "TIDEGAUGE_NOTIFY_PORT": str(free_port()),
    }
    (tmp_path / "users.yaml").write_text(f"{getpass.getuser()}: {OWNER}\n")
    (tmp_path / "slack-token").write_text(slack.token)
    (tmp_path / "slack-token").chmod(0o600)
    one = Site(service, str(rig.python), environ, tmp_path)
    one.set_mode("act")
    try:
        service.up()
        yield one
    finally:
        print(service.logs())
        service.close()


@pytest.fixture
def job(site: Site, rig: Rig, cluster: RayCluster, tmp_path: Path) -> Iterator[RayJob]:
    own = rig.environ(base={}, devices=2, total_bytes=GPU_BYTES, state=tmp_path / "gpus")
    own |= {
        "TIDEGAUGE_PROFILE": "stats", "TIDEGAUGE_RUN_DIR": str(site.service.run_dir), "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    yield RayJob(cluster, rig, own, tmp_path, f"groups-{os.path.basename(tmp_path)}")
    for running in cluster.api().jobs():
        if running.submission_id is not None and not running.finished:
            cluster.user.call("stop_job", job_id=running.submission_id)


@turn(2)
def test_of_two_groups_of_workers_both_are_saved_and_both_go_on(site: Site, job: RayJob) -> None:
    job.submit({"trainer": ("--leak-rank", "1"), "rollout": ()}, steps=STEPS)
    eventually(lambda: job.all_told("began"), "both train", within_s=BEGIN_S)
    eventually(lambda: job.all_told("began", times=2), "both train again", within_s=2 * BEGIN_S)
    eventually(lambda: "requeue" in done(_decisions(site, job)), "the requeue is written down")
    job.let_end()
    eventually(lambda: job.statuses()[-1] == "SUCCEEDED", "it ends", within_s=BEGIN_S)

    for group in GROUPS:
        check_went_on(partial(job.told, group), steps=STEPS)
    incidents = _incidents(site, job)
    assert {finding["rank"] for one in incidents for finding in one["findings"]} == {1}
    assert all(one["group_name"].startswith("pid ") for one in incidents)
    assert to_the_requeue(done(_decisions(site, job)))[-4:] == LADDER


@turn(3)
def test_with_a_group_that_cannot_be_asked_nothing_is_ended_and_the_owner_is_told_why(
    site: Site, job: RayJob, slack: FakeSlack
) -> None:
    job.submit({"trainer": ("--leak-rank", "1"), "rollout": ("--no-callback",)}, steps=1)
    why = "cannot checkpoint on request: give it tidegauge.on_checkpoint_request(fn), or TIDEGAUGE_CHECKPOINT=none"
    eventually(lambda: job.all_told("began"), "both train", within_s=BEGIN_S)
    eventually(lambda: why in _said(slack), "the owner is told why", within_s=BEGIN_S)
    # The message is out before its outcome is written down, and the job ends in less time than that may take.
    eventually(lambda: done(_decisions(site, job)), "the outcome is written down")
    job.let_end()
    eventually(lambda: job.statuses()[-1] == "SUCCEEDED", "it ends", within_s=BEGIN_S)

    assert len(job.statuses()) == 1
    assert {*done(_decisions(site, job))} == {"notify"}
    for group in GROUPS:
        assert (len(job.told(group, "began")), job.told(group, "saved")) == (1, [])


def _incidents(site: Site, job: RayJob) -> list[dict[str, Any]]:
    listed = site.service.answer("/api/v1/incidents?all=1")["incidents"]
    return [one for one in listed if one["key"]["job"]["job_id"] == job.name]


def _decisions(site: Site, job: RayJob) -> list[dict[str, Any]]:
    numbers = sorted(one["number"] for one in _incidents(site, job))
    pages = [site.service.answer(f"/api/v1/incident?number={number}") for number in numbers]
    return [record for page in pages for record in page["decisions"]]


def _said(slack: FakeSlack) -> str:
    """What the owner was told."""
    return "\n".join(one.words for thread in slack.direct_threads(OWNER) for one in (thread.parent, *thread.replies))
