"""One user's lie about whose job leaks, through the whole service: rings, agent, detector, incident, policy, scheduler.

All is real but the GPU: the service of `tidegauge up` with a policy that acts as harshly as one may be written, a job
under `tidegauge run` that trains and does not leak, and a process of another uid that says it is a rank of that job and
about to run out of memory. Everything that happens happens to the liar.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.closed_loop_site import Job, Site
from integration.namespaces import INSIDE, PYTHON, Container, need_namespaces, start_container
from integration.needs import missing
from integration.security.users import AS_USER, MALLORY, Actor
from integration.service import Service, eventually

pytestmark = [pytest.mark.rig, pytest.mark.timeout(600)]

HARSH = """
version: 1
mode: act
brakes:
  {warnings_before_stop: 2, warning_interval: 1s, min_age: 1s, actions_per_job_per_hour: 100,
   actions_per_user_per_hour: 100, actions_per_hour: 100}
rules:
  - name: harsh
    when: {cause: leak}
    ladder:
      - {action: notify}
      - {action: notify, after: 1s}
      - {action: cap, retry_after: 1s}
      - {action: requeue, without_checkpoint: true}
"""


@pytest.fixture
def site(rig: Rig, tmp_path: Path) -> Iterator[Site]:
    if os.geteuid() != 0:
        missing("it takes root to be several users")
    environ = rig.environ(devices=2, total_bytes=80 << 30, state=tmp_path / "gpus")
    service = Service(environ)
    one = Site(service, str(rig.python), environ, tmp_path)
    (tmp_path / "policy.yaml").write_text(HARSH)
    service.root.chmod(0o755)
    service.run_dir.chmod(0o1777)
    try:
        service.up()
        yield one
    finally:
        service.close()
        shutil.rmtree(service.root, ignore_errors=True)


def jobs(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.service.get("/api/v1/jobs")["jobs"]
    return found


def job_of(site: Site, uid: int) -> dict[str, Any] | None:
    """The job of that user, as soon as its ranks are all there and train."""
    for job in jobs(site):
        ranks = [rank for rank in job["ranks"] if rank["alive"] and rank["step"] > 5]
        if len(ranks) == job["world_size"] and {rank["uid"] for rank in job["ranks"]} == {uid}:
            return job
    return None


def of_user(incident: dict[str, Any]) -> int:
    """The kernel's word on whose processes it is about."""
    return int(incident["key"]["job"]["uid"])


def told(site: Site, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.service.get(path)["incidents"]
    return found


def test_forged_identity_gets_no_job_of_others_warned_capped_or_ended(site: Site) -> None:
    with site.job("healthy", steps=100_000) as healthy:
        mine = eventually(lambda: job_of(site, 0), "the job trains", within_s=120)
        rank = next(rank for rank in mine["ranks"] if rank["identity"]["rank"] == 1)
        liars = [
            # The very rank, on its GPU: the older process keeps the name. And a job of that name that is complete.
            Actor(MALLORY, "claims", mine["job_id"], healthy.process.pid, *claim, run_dir=site.service.run_dir)
            for claim in ((1, 2, rank["uuid"]), (0, 1))
        ]
        with ExitStack() as cleanup:
            for liar in liars:
                cleanup.enter_context(closing(liar))
            check_all_happens_to_the_liar(site, healthy, mine["job_id"], liars)
            after = eventually(lambda: job_of(site, 0), "the job is still there")
            assert [(one["alive"], one["cap_fraction"]) for one in after["ranks"]] == [(True, None)] * 2
        steps = max(one["step"] for one in after["ranks"])
        eventually(
            lambda: (job := job_of(site, 0)) is not None and max(one["step"] for one in job["ranks"]) > steps,
            "the job trains on when the liar has gone",
        )
        assert not [one for one in told(site, "/api/v1/incidents?all=1") if of_user(one) == 0]
        assert [line["what"] for line in healthy.story()] == ["began"]
        assert healthy.process.poll() is None
        assert "incident" not in healthy.log.read_text()


def check_all_happens_to_the_liar(site: Site, healthy: Job, job_id: str, liars: list[Actor]) -> None:
    """An incident opens about a forged rank, under the liar's uid, and all that is decided is about that."""

    def decided() -> list[dict[str, Any]]:
        numbers = [one["number"] for one in told(site, "/api/v1/incidents?all=1") if of_user(one) == MALLORY]
        found = [record for n in numbers for record in site.service.get(f"/api/v1/incident?number={n}")["decisions"]]
        return found if any(record["decision"]["action"] == "requeue" for record in found) else []

    records = eventually(decided, "the ladder for the liar's job comes to its end", within_s=240)
    [about] = {one["key"]["job"]["job_id"] for one in told(site, "/api/v1/incidents?all=1")}
    assert about == job_id, "the lie was believed as far as it goes: a job of that name, of the liar's"
    acted = {record["decision"]["action"] for record in records if record["outcome"] is not None}
    assert acted <= {"cap"}, "of theirs there is nothing to act on but their own ranks"
    # Seconds in which the ladder would go on, if it led to the job that was named.
    began = max(record["decision"]["decided_s"] for record in records)
    eventually(lambda: site.service.get("/api/v1/status")["now_unix_s"] > began + 8.0, "the ladder had its time")
    assert [line["what"] for line in healthy.story()] == ["began"]
    assert all(liar.lives for liar in liars)


def test_a_container_of_the_same_uid_gets_the_job_neither_warned_nor_ended_while_it_lives_nor_after(site: Site) -> None:
    """A container with mounts of its own, whose processes have the uid of the job that it names, as on a machine where
    everybody's containers run as root."""
    need_namespaces()
    with site.job("healthy", steps=100_000) as healthy:
        mine = eventually(lambda: the_job(site), "the job trains", within_s=120)
        # A rank that the job does not have; and a job of that name that is complete.
        with ExitStack() as cleanup:
            for rank, world_size in ((5, 8), (0, 1)):
                container = cleanup.enter_context(container_that_claims(site, mine["job_id"], rank, world_size))
                assert container.line()[0] == "ready"
            forged = eventually(lambda: told(site, "/api/v1/incidents?all=1"), "an incident", within_s=240)
            assert {one["group_name"].split()[0] for one in forged} == {"pid"}, "about another group of ranks"
            pause_s(site, 30.0)
            check_untouched(site, healthy)
        ended = site.service.get("/api/v1/status")["now_unix_s"]
        eventually(
            lambda: all(one["state"] == "closed" for one in told(site, "/api/v1/incidents?all=1")),
            "the incidents are over", within_s=240,
        )  # fmt: skip
        check_untouched(site, healthy)
        after = eventually(lambda: the_job(site), "the job is still there")
        steps = max(one["step"] for one in after["ranks"])
        eventually(
            lambda: (job := the_job(site)) is not None and max(one["step"] for one in job["ranks"]) > steps,
            "the job trains on",
        )
        assert site.service.get("/api/v1/status")["now_unix_s"] > ended
        acted = [record["decision"] for record in all_decisions(site) if record["outcome"] == "done"]
        assert {one["action"] for one in acted} <= {"notify", "cap"}
        mine_now = {rank["process"]["pid"] for rank in after["ranks"]}
        assert not [one for one in acted if {rank["process"]["pid"] for rank in one["target"]["ranks"]} & mine_now]


def container_that_claims(site: Site, job_id: str, rank: int, world_size: int) -> Container:
    run_dir, tests = site.service.run_dir, Path(__file__).parents[2]
    command = (
        f"cd / && PYTHONPATH={tests.parent}/collector:{tests} TIDEGAUGE_RUN_DIR={run_dir} {INSIDE}/bin/{PYTHON.name} "
        f"{AS_USER} 0 claims {job_id} 1 {rank} {world_size}"
    )
    return start_container("admin", command, uid=0, setup=f"mkdir -p {run_dir}; chmod 1777 {run_dir}")


def the_job(site: Site) -> dict[str, Any] | None:
    """The one of two ranks, which the other says that it belongs to."""
    return next((job for job in jobs(site) if job["world_size"] == 2 and len(job["ranks"]) == 2), None)


def all_decisions(site: Site) -> list[dict[str, Any]]:
    numbers = [one["number"] for one in told(site, "/api/v1/incidents?all=1")]
    return [record for n in numbers for record in site.service.get(f"/api/v1/incident?number={n}")["decisions"]]


def pause_s(site: Site, seconds: float) -> None:
    """Time in which the ladder would go on, by the service's own clock."""
    until_s = site.service.get("/api/v1/status")["now_unix_s"] + seconds
    eventually(lambda: site.service.get("/api/v1/status")["now_unix_s"] > until_s, "the ladder had its time")


def check_untouched(site: Site, healthy: Job) -> None:
    assert [line["what"] for line in healthy.story()] == ["began"]
    assert healthy.process.poll() is None
    assert "incident" not in healthy.log.read_text()
    mine = eventually(lambda: the_job(site), "the job is still there")
    assert [(one["alive"], one["cap_fraction"]) for one in mine["ranks"]] == [(True, None)] * 2
    assert mine["state"] == "ok"
