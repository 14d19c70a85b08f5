"""Replicas of an inference server, as the coordinator shows them: groups of one job, each judged by itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from jobs_of_ranks import jobs_of
from sample_views import LEAK, NOW_S, identity, rank_summary
from tidegauge.cluster.api.http_api import NotFoundError, Request
from tidegauge.cluster.api.overview import Overview
from tidegauge.cluster.coordinator.grouping import RankOnNode, job_of, job_views
from tidegauge.cluster.web.jobs_page import JobsAsked, JobsShown, jobs_page
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.incidents import Closure, ToldAs
from tidegauge.core.incidents.tracker import IncidentTracker
from tidegauge.core.incidents.wording import incident_sentence
from tidegauge.core.jobs.kubernetes import PodPlace
from tidegauge.core.jobs.rank_groups import RankGroups
from tidegauge.core.jobs.replicas import Replicas
from tidegauge.core.verdicts import OK, LeakState, Verdict
from tidegauge.core.views import JobView
from tidegauge.core.wire import from_wire
from top_world import World

BY_TIME = LEAK._replace(onset_step=None, suspect_step=None, alarm_step=None, bytes_per_step=None, steps_to_oom=None)
"""As ticks show a leak where no step ends."""


def server_rank(
    pid: int, name: str, verdict: Verdict = OK, *, rank: int = 0, world_size: int = 1, kind: str = "Deployment",
    **changes: Any,
) -> RankOnNode:  # fmt: skip
    """A rank on a node of its own."""
    node = f"n{pid}"
    who = identity(rank, job_id=JobId("team-a/vllm"), job_name="vllm", world_size=world_size, scheduler="kubernetes")
    place = PodPlace(f"uid-{pid}", "team-a", f"vllm-{pid}", "server", job_known=True, kind=kind, replica=name)
    one = rank_summary(rank, pod=place, verdict=verdict, uid=0, step=0)
    return RankOnNode(replace(one, identity=who, process=ProcessId(pid, pid), **changes), node, False, node)


def eight(leaking: int) -> list[RankOnNode]:
    return [server_rank(pid, f"pod vllm-{pid}", BY_TIME if pid < leaking else OK) for pid in range(8)]


def views(ranks: Sequence[RankOnNode], known: RankGroups) -> list[JobView]:
    """Those of the one attempt of the one job."""
    (found,) = job_views({job_of(ranks[0].rank): ranks}, known).values()
    return list(found)


def test_replicas_are_one_job_and_each_says_in_how_many_memory_grows() -> None:
    jobs = jobs_of(eight(3))
    assert {(job.job_id, job.attempt) for job in jobs} == {("team-a/vllm", 0)}
    assert [(job.group, job.state) for job in jobs[:4]] == [
        ("pod vllm-0", LeakState.LEAK),
        ("pod vllm-1", LeakState.LEAK),
        ("pod vllm-2", LeakState.LEAK),
        ("pod vllm-3", LeakState.OK),
    ]
    assert {job.replicas for job in jobs} == {Replicas("Deployment", 8, 3)}
    assert [len(job.ranks) for job in jobs] == [1] * 8, "no rank 0 takes another's place"


def test_workers_of_a_group_are_the_ranks_of_one_replica() -> None:
    ranks = [
        server_rank(10 * group + worker, f"replica {group}", rank=worker, world_size=4, kind="LeaderWorkerSet")
        for group in range(4)
        for worker in range(4)
    ]
    jobs = jobs_of(ranks)
    assert [(job.group_name, job.world_size, sorted(job.numbers)) for job in jobs] == [
        (f"replica {group}", 4, [0, 1, 2, 3]) for group in range(4)
    ]
    assert {job.replicas for job in jobs} == {Replicas("LeaderWorkerSet", 4, 0)}


def test_a_rolling_update_is_no_other_attempt_and_pods_that_ended_do_not_count() -> None:
    known = RankGroups()
    views(eight(1), known)
    old = [ended(one) for one in eight(1)]
    new = [server_rank(100 + pid, f"pod vllm-new-{pid}") for pid in range(8)]
    after = views([*old, *new], known)
    assert {job.attempt for job in after} == {0}
    assert {job.replicas for job in after} == {Replicas("Deployment", 8, 0)}
    assert sum(job.running for job in after) == 8


def ask(world: World, path: str, **query: str) -> Any:
    return json.loads(world.routes()[path](Request(query, None)).body)


def test_the_api_and_the_pages_find_a_server_by_its_name_alone_and_say_how_its_replicas_are() -> None:
    world = World(jobs=())
    for one in eight(3):
        world.report_one(one.rank, node_id=one.node_id)
    told = ask(world, "/api/v1/job", job_id="team-a/vllm")["job"]
    assert (told["group_name"], told["state"]) == ("pod vllm-0", "leak"), "the most alarming"
    assert told["replicas"] == {"kind": "Deployment", "running": 8, "growing": 3}
    assert ask(world, "/api/v1/job", job_id="team-a/vllm", group="pod vllm-5")["job"]["group_name"] == "pod vllm-5"
    with pytest.raises(NotFoundError):
        ask(world, "/api/v1/job", job_id="team-a/vllm", group="pod vllm-9")

    overview = from_wire(Overview, ask(world, "/api/v1/overview"))
    rows = "".join(jobs_page(JobsShown(overview, {}, ()), JobsAsked("", "alarm")))
    assert rows.count("Deployment: 3 of 8 replicas grow") == 8
    assert "no steps" not in rows


def test_workloads_of_one_name_count_each_their_own_replicas_and_a_job_beside_them_has_none() -> None:
    """A Deployment, a StatefulSet and a Job in one namespace: one id."""
    jobs = jobs_of(
        [
            server_rank(0, "pod vllm-0", BY_TIME),
            server_rank(1, "replica 0", kind="StatefulSet"),
            server_rank(2, "replica 1", kind="StatefulSet"),
            server_rank(3, "", BY_TIME, kind=""),
        ]
    )
    assert {job.group: job.replicas for job in jobs} == {
        "": None,
        "pod vllm-0": Replicas("Deployment", 1, 1),
        "replica 0": Replicas("StatefulSet", 2, 0),
        "replica 1": Replicas("StatefulSet", 2, 0),
    }


def test_a_job_that_is_no_server_has_no_replicas() -> None:
    (job,) = jobs_of([RankOnNode(rank_summary(0), "a", False, "a")])
    assert job.replicas is None


def test_an_incident_of_a_replica_says_how_many_others_do_it_by_time_and_a_scale_to_zero_opens_none() -> None:
    tracker, known = IncidentTracker((), next_number=1), RankGroups()
    opened = tracker.update(views(eight(3), known), now_s=NOW_S)
    assert [change.incident.key.job.group for change in opened] == [f"pod vllm-{pid}" for pid in range(3)]
    assert {change.incident.told_as for change in opened} == {ToldAs(1, NOW_S)}
    sentence = incident_sentence(opened[0].incident)
    assert sentence.startswith("Rank 0 of job team-a/vllm (pod vllm-0) leaks memory; at this rate")
    assert sentence.endswith(" In all, memory grows in 3 of 8 replicas, whatever the cause or process.")
    assert "step" not in sentence

    gone = views([ended(one) for one in eight(3)], known)
    assert {job.replicas for job in gone} == {Replicas("Deployment", 0, 0)}
    changes = [change for tick in range(100) for change in tracker.update(gone, now_s=NOW_S + tick)]
    assert {change.incident.number for change in changes} <= {1, 2, 3}, "nothing new"
    assert not tracker.incidents
    assert {change.incident.closure for change in changes} == {Closure.JOB_ENDED}


def test_a_healthy_server_that_is_scaled_to_zero_has_no_incident() -> None:
    tracker, known = IncidentTracker((), next_number=1), RankGroups()
    tracker.update(views(eight(0), known), now_s=NOW_S)
    gone = views([ended(one) for one in eight(0)], known)
    assert not [change for tick in range(100) for change in tracker.update(gone, now_s=NOW_S + tick)]


def ended(one: RankOnNode) -> RankOnNode:
    """The same, ended."""
    return one._replace(rank=replace(one.rank, alive=False))
