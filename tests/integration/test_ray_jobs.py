"""The Ray Jobs adapter against a real cluster of a user, who submits with Ray's own client."""

from __future__ import annotations

import itertools
import json
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_ranks import FakeRanks
from integration.ray_cluster import INSIDE, PYTHON, RayCluster, ray_cluster
from integration.service import eventually
from sample_views import identity, job_view, rank_summary
from scheduler_hooks.port_contract import ContractWorld, PortContract
from tidegauge.core.ids import JobId
from tidegauge.core.incidents.actions import JobTarget
from tidegauge.core.job_records.record import record_of
from tidegauge.core.views import JobView
from tidegauge.osproc.processes import identity_of, is_alive
from tidegauge_scheduler_hooks.checkpoint import RankCheckpoint
from tidegauge_scheduler_hooks.facts import job_facts, surroundings
from tidegauge_scheduler_hooks.ports import ChangedError, PermanentError, Presence, RequeueChanges
from tidegauge_scheduler_hooks.ray_jobs.adapter import RayJobs
from tidegauge_scheduler_hooks.ray_jobs.api import RayJobsApi

pytestmark = pytest.mark.timeout(300)

NUMBERS = itertools.count()


class RealWorld(ContractWorld):
    """Jobs of the cluster: each writes a file with its environment when it starts, into a folder of its name."""

    scheduler = "ray"

    def __init__(self, cluster: RayCluster) -> None:
        self.cluster = cluster
        self.ranks = FakeRanks()
        self.port: RayJobs = self.another_port()
        self.submitted: list[str] = []

    def another_port(self) -> RayJobs:
        """The adapter as another process, which remembers nothing, would have it."""
        checkpoints = RankCheckpoint(self.ranks, sleep=lambda _: None)
        return RayJobs(self.cluster.api(), self.ranks, uid=os.getuid(), checkpoints=checkpoints)

    def submit(self, entrypoint: str, *, environ: dict[str, str] | None = None, **arguments: Any) -> str:
        """Submit as the user does; ``{folder}`` is where the program is to write. Returns the job's name."""
        name = f"job-{next(NUMBERS)}"
        folder = self.folder(name)
        folder.mkdir()
        runtime_env = arguments.pop("runtime_env", {})
        submission_id = self.cluster.user.call(
            "submit_job", entrypoint=entrypoint.format(folder=folder),
            runtime_env={**runtime_env, "env_vars": {"TIDEGAUGE_JOB_ID": name, **(environ or {})}},
            metadata={"tidegauge.requeue": "true", **arguments.pop("metadata", {})}, **arguments,
        )  # fmt: skip
        self.submitted.append(submission_id)
        return name

    def start_job(self, *, saves: bool = False) -> JobView:
        name = self.submit(f"{PYTHON} {INSIDE / 'job.py'} {{folder}}")
        eventually(lambda: self.environs(name), f"{name} runs")
        view = self.view(name)
        if saves:
            self.ranks.savers.add(view.ranks[0].process)
        return view

    def view_now(self, job: JobView) -> JobView:
        return self.view(job.job_id)

    def view(self, name: str) -> JobView:
        """The job as the coordinator would see it: the process that started last, in the attempt that it was told."""
        *_, (pid, environ) = self.environs(name)
        attempt = int(environ.get("TIDEGAUGE_ATTEMPT", "0"))
        who = identity(
            job_id=JobId(name), attempt=attempt, scheduler="ray", torch_version="2.11.0", alloc_conf=None
        )  # fmt: skip
        process = identity_of(pid)
        assert process is not None
        rank = rank_summary(0, identity=who, process=process, uid=os.getuid(), last_sample_unix_s=time.time())
        return job_view(
            job_id=name, attempt=attempt, scheduler="ray", world_size=1, ranks=(rank,), rank_nodes=("n",)
        )  # fmt: skip

    def end_by_itself(self, job: JobView) -> None:
        (self.folder(job.job_id) / "end").touch()
        eventually(lambda: self.statuses(job.job_id)[-1] == "SUCCEEDED", f"{job.job_id} ends")

    def starts(self, job: JobView) -> int:
        return len(self.environs(job.job_id))

    def alive(self, job: JobView) -> bool:
        processes = [identity_of(pid) for pid, _ in self.environs(job.job_id)]
        return any(process is not None and is_alive(process) for process in processes)

    def saves(self, job: JobView) -> int:
        return len(self.ranks.saved.get(job.ranks[0].process, ()))

    def environ(self, job: JobView) -> dict[str, str]:
        return self.environs(job.job_id)[-1][1]

    def owner_sees(self, job: JobView) -> str:
        raise AssertionError("there is no such place")

    def folder(self, name: str) -> Path:
        return self.cluster.folder / name

    def environs(self, name: str) -> list[tuple[int, dict[str, str]]]:
        """Process and environment of each start, in order."""
        files = sorted(self.folder(name).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        return [(int(path.stem), json.loads(path.read_text())) for path in files]

    def statuses(self, name: str) -> list[str]:
        """Of each submission of the job, in order, as Ray tells the user."""
        jobs = [job for job in self.cluster.api().jobs() if job.environ.get("TIDEGAUGE_JOB_ID") == name]
        ids = [job.submission_id for job in sorted(jobs, key=lambda job: job.started_unix_ms)]
        return [str(self.cluster.user.call("get_job_status", job_id=one)) for one in ids]

    def target(self, job: JobView) -> JobTarget:
        facts = self.port.describe([job])[job.key]
        return job_facts(job, surroundings([job], {}), facts).target

    def close(self) -> None:
        """Stop what the test has left running."""
        for job in self.cluster.api().jobs():
            if job.submission_id is not None and not job.finished:
                self.cluster.user.call("stop_job", job_id=job.submission_id)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as started:
        yield started


@pytest.fixture
def world(cluster: RayCluster) -> Iterator[RealWorld]:
    world = RealWorld(cluster)
    yield world
    world.close()


class TestRayJobsOnRay(PortContract):
    """The contract of every scheduler."""

    @pytest.fixture
    def world(self, cluster: RayCluster) -> Iterator[ContractWorld]:
        world = RealWorld(cluster)
        yield world
        world.close()


def test_the_api_is_refused_without_and_with_another_token(cluster: RayCluster, tmp_path: Path) -> None:
    other = tmp_path / "token"
    other.write_text("0" * 64)
    with pytest.raises(PermanentError, match=r"refuses to list its jobs \(HTTP 40[13]\)"):
        cluster.api(other).jobs()


def test_a_job_of_ray_actors_goes_on_with_what_its_owner_uploaded(world: RealWorld) -> None:
    name = world.submit(f"{PYTHON} ranks.py {{folder}}", runtime_env={"working_dir": str(INSIDE)}, environ={"A": "b"})
    eventually(lambda: len(world.environs(name)) == 2, "both ranks run")
    (target,) = [world.target(view) for view in [world.view(name)]]
    world.port.requeue(target, RequeueChanges({"expandable_segments": "True"}), "leaks", decision_id="d")
    assert world.port.presence(target) is Presence.REPLACED
    eventually(lambda: len(world.environs(name)) == 4, "both ranks run again")
    assert world.statuses(name) == ["STOPPED", "RUNNING"]
    first, second = world.environs(name)[0][1], world.environs(name)[-1][1]
    assert second["RAY_JOB_ID"] != first["RAY_JOB_ID"], "to Ray it is another job"
    wanted = ("TIDEGAUGE_JOB_ID", "A", "UPLOADED", "TIDEGAUGE_ATTEMPT", "PYTORCH_ALLOC_CONF")
    assert [second[key] for key in wanted] == [name, "b", "it came along\n", "1", "expandable_segments:True"]
    replaced = replace(world.view(name), attempt=0)
    with pytest.raises(ChangedError):
        world.port.requeue(target, RequeueChanges(), "leaks", decision_id="another")
    assert world.port.presence(world.target(replaced)) is Presence.REPLACED, "the old ranks are of the old run"


def test_a_requeue_that_died_after_the_stop_is_completed_by_the_next_process(world: RealWorld) -> None:
    job = world.start_job()
    target = world.target(job)

    class DiedError(Exception):
        """What a SIGKILL is to the lines after it."""

    class Dying(RayJobsApi):
        """The client, up to its last request."""

        def submit(self, request: Mapping[str, Any]) -> None:
            raise DiedError

    dying = RayJobs(
        Dying(world.cluster.url, token_file=world.cluster.token_file, timeout_s=60.0), world.ranks, uid=os.getuid()
    )  # fmt: skip
    with pytest.raises(DiedError):
        dying.requeue(target, RequeueChanges(), "leaks", decision_id="d")
    assert world.statuses(job.job_id) == ["STOPPED"]
    assert world.another_port().presence(target) is Presence.RUNNING, "so that it is taken up again"
    world.another_port().requeue(target, RequeueChanges(), "leaks", decision_id="d")
    eventually(lambda: world.starts(job) == 2, "it runs again")
    assert world.statuses(job.job_id) == ["STOPPED", "RUNNING"]


def test_a_job_that_its_owner_stopped_stays_stopped(world: RealWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.cluster.user.call("stop_job", job_id=world.submitted[-1])
    eventually(lambda: world.statuses(job.job_id) == ["STOPPED"], "it has stopped")
    with pytest.raises(ChangedError):
        world.port.requeue(target, RequeueChanges(), "leaks", decision_id="d")
    assert world.port.presence(target) is Presence.GONE


def test_ray_itself_refuses_to_start_a_run_twice(world: RealWorld) -> None:
    request = {"submission_id": f"once-{next(NUMBERS)}", "entrypoint": "true"}
    api = world.cluster.api()
    api.submit(request)
    with pytest.raises(PermanentError, match="already exists"):
        api.submit(request)


def test_ray_requeue_reserves_the_entrypoints_resources_again(world: RealWorld) -> None:
    seat = {"seat": 1}
    metadata = {"tidegauge.entrypoint_resources": json.dumps(seat)}
    program = f"{PYTHON} {INSIDE / 'job.py'} {{folder}}"
    name = world.submit(program, metadata=metadata, entrypoint_resources=seat)
    eventually(lambda: world.environs(name), "it runs")
    world.port.requeue(world.target(world.view(name)), RequeueChanges(), "leaks", decision_id="d")
    eventually(lambda: len(world.environs(name)) == 2, "it runs again")
    asked = urllib.request.Request(f"{world.cluster.url}/api/v0/actors?detail=1")
    asked.add_header("Authorization", f"Bearer {world.cluster.token_file.read_text()}")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        actors = json.load(answer)["data"]["result"]["result"]
    of_job = [actor for actor in actors if actor["name"].endswith(f"{world.submitted[-1]}-attempt-1")]
    assert [actor["required_resources"] for actor in of_job] == [{"seat": 1.0}]


def test_ray_shows_the_remark_on_a_job_that_ended_and_nothing_else_has_changed(world: RealWorld) -> None:
    text = 'completed after 5 s; rank 0 on a: 1 of 2 GiB reserved (50%); `tidegauge job "it\'s"` has all of it'
    job = world.start_job()
    world.end_by_itself(job)
    before = world.cluster.api().jobs()
    record = record_of([job], None, now_s=time.time())
    world.another_port().remark_end(job, record, text)
    shown = world.cluster.user.call("get_job_info", job_id=world.submitted[-1])
    assert text in shown.replace("\\'", "'")
    after = world.cluster.api().jobs()
    (ours,) = [one for one in after if one.submission_id == world.submitted[-1]]
    assert ours.metadata == {"tidegauge.requeue": "true", "tidegauge.end": text}
    assert [replace(one, metadata=before[place].metadata) for place, one in enumerate(after)] == before
    assert world.statuses(job.job_id) == ["SUCCEEDED"]
