"""Jobs and ranks in one line each: what the lines say, and that screens cost the coordinator little."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from jobs_of_ranks import jobs_of
from sample_views import GIB, LEAK, MIB, gpu_view, identity, job_view, rank_summary, uuid_of
from tidegauge.cluster.api.http_api import BadRequestError, NotFoundError, Request
from tidegauge.cluster.api.overview import (
    MAX_JOBS,
    MAX_NAMED_JOBS,
    GpuLine,
    JobPage,
    Overview,
    job_line,
    job_page,
    node_page,
    nodes_page,
    overview,
)
from tidegauge.cluster.api.overview_api import Kept, KeptEach
from tidegauge.cluster.coordinator.grouping import RankOnNode
from tidegauge.cluster.views import NodeHealth, NodeStatus
from tidegauge.core.ids import JobId
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.jobs.kubernetes import PodPlace
from tidegauge.core.verdicts import OK
from tidegauge.core.views import GpuView, JobView, RankSummary
from tidegauge.core.wire import from_wire, to_wire
from top_world import World

STATUS = LoopStatus("observe", None)


def line_of(_: str, rank: RankSummary) -> tuple[int, ...]:
    return (rank.reserved_bytes, rank.reserved_bytes + 1)


def job(*ranks: RankSummary, stale: bool = False) -> JobView:
    (found,) = jobs_of(RankOnNode(rank, f"node-{n // 2}", stale, f"id-{n // 2}") for n, rank in enumerate(ranks))
    return found


def node(health: NodeHealth, *gpus: GpuView) -> NodeStatus:
    return NodeStatus("id", "node", None, health, 1, "i", None, 0.5, 0, gpus)


def at_a_glance(jobs: list[JobView], nodes: list[NodeStatus]) -> Overview:
    return overview(jobs, nodes, STATUS, lambda one: job_line(one, line_of), cluster="lab", version="1", now_unix_s=5.0)


def test_a_job_is_told_by_the_rank_to_look_at_first_and_by_the_fullest() -> None:
    told = job_line(job(rank_summary(0, reserved_bytes=70 * GIB), rank_summary(1, verdict=LEAK)), line_of)
    assert (told.first.rank, told.first.seconds_to_oom, told.first.line) == (
        1, LEAK.seconds_to_oom, (12 * GIB, 12 * GIB + 1),
    )  # fmt: skip
    assert told.used_bytes == 70 * GIB + 700 * MIB
    assert told.used_share == pytest.approx(told.used_bytes / (80 * GIB))
    assert (told.alive, told.stale, told.nodes, told.suspects, told.uid) == (2, 0, 1, 1, 1001)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (PodPlace("0f3c", "team-a", "train-0-x7k2p", "main", job_known=True), ("team-a/train-0-x7k2p", "main")),
        (PodPlace("0f3c"), ("0f3c", None)),
        (None, (None, None)),
    ],
)
def test_a_rank_is_told_with_its_pod(place: PodPlace | None, told: tuple[str | None, str | None]) -> None:
    first = job_line(job(rank_summary(0, pod=place)), line_of).first
    assert (first.pod, first.container) == told


def test_overview_leaves_unknown_rank_values_empty() -> None:
    told = job_line(job(rank_summary(0, limit_bytes=None, nontorch_bytes=None)), line_of)
    assert (told.used_share, told.first.used_share, told.first.used_bytes) == (None, None, 12 * GIB)


def test_a_rank_whose_node_is_silent_is_stale_and_one_that_ended_is_not_alive() -> None:
    told = job_page(job(rank_summary(0), rank_summary(1, alive=False), stale=True), line_of, now_unix_s=1.0)
    assert [(rank.alive, rank.stale) for rank in told.ranks] == [(True, True), (False, True)]
    assert (told.job.stale, told.job.running) == (2, True)


def test_a_page_holds_the_ranks_to_look_at_first_and_counts_the_others() -> None:
    ranks = [rank_summary(n, verdict=LEAK if n == 7 else OK) for n in range(10)]
    told = job_page(job(*ranks), line_of, now_unix_s=1.0, most=3)
    assert ([rank.rank for rank in told.ranks], told.left_out) == ([7, 0, 1], 7)
    alone = job_page(job(*ranks), line_of, now_unix_s=1.0, rank=9)
    assert ([rank.rank for rank in alone.ranks], alone.left_out) == ([9], 0)


def test_the_cluster_counts_nodes_by_health_and_the_gpus_of_those_that_are_there() -> None:
    told = at_a_glance(
        [job(rank_summary())],
        [node(NodeHealth.OK, gpu_view(0), gpu_view(1)), node(NodeHealth.GONE, gpu_view(2)), node(NodeHealth.OK)],
    )
    assert (told.nodes, told.gpus) == ({"ok": 2, "gone": 1}, 2)
    assert (told.gpu_used_bytes, told.gpu_total_bytes) == (26 * GIB, 160 * GIB)


def test_a_sum_of_which_a_part_is_not_known_is_not_known() -> None:
    told = at_a_glance([], [node(NodeHealth.OK, gpu_view(0), gpu_view(1, used_bytes=None))])
    assert (told.gpu_used_bytes, told.gpu_total_bytes) == (None, 160 * GIB)
    assert at_a_glance([], []).gpu_total_bytes is None


def test_an_overview_is_bounded() -> None:
    many = [replace(job(rank_summary()), job_id=str(number)) for number in range(MAX_JOBS + 5)]
    told = at_a_glance(many, [])
    assert (len(told.jobs), told.left_out) == (MAX_JOBS, 5)


def test_both_are_read_back_as_they_were() -> None:
    value = at_a_glance([job(rank_summary(0), rank_summary(1, verdict=LEAK))], [node(NodeHealth.OK)])
    assert from_wire(Overview, json.loads(json.dumps(to_wire(value)))) == value
    page = job_page(job_view(rank_nodes=("a", "a"), rank_hostnames=("b", "b")), line_of, now_unix_s=1.0)
    assert from_wire(JobPage, json.loads(json.dumps(to_wire(page)))) == page


def ask(world: World, path: str, **query: object) -> Any:
    return json.loads(world.routes()[path](Request({name: str(value) for name, value in query.items()}, None)).body)


def test_the_pages_tell_of_the_coordinators_jobs_with_their_memory() -> None:
    world = World().live(reports=10)
    told = from_wire(Overview, ask(world, "/api/v1/overview"))
    assert told.jobs[0].job_id == "48211"
    assert len(told.jobs[0].first.line) == 10
    page = from_wire(JobPage, ask(world, "/api/v1/job", job_id="48211", attempt=0, uid=1001, rank=3))
    assert [rank.rank for rank in page.ranks] == [3]


@pytest.mark.parametrize("query", [{"job_id": "0"}, {"job_id": "48211", "attempt": 9}, {"job_id": "48211", "uid": 9}])
def test_a_job_that_is_not_watched_is_not_found(query: dict[str, object]) -> None:
    with pytest.raises(NotFoundError, match="tidegauge jobs"):
        ask(World().live(reports=1), "/api/v1/job", **query)


def test_a_page_about_no_job_is_refused() -> None:
    with pytest.raises(BadRequestError):
        ask(World(), "/api/v1/job")


def test_of_two_owners_that_claim_one_id_each_is_told_his_own() -> None:
    world = World()
    for uid, node_id in ((1001, "a"), (6666, "b")):
        world.report_one(rank_summary(uid=uid, identity=identity(job_id=JobId("x"))), node_id=node_id)
    assert ask(world, "/api/v1/job", job_id="x", uid=6666)["job"]["uid"] == 6666


def test_fifty_screens_cost_as_much_as_one() -> None:
    numbers, now_s = itertools.count(1), [100.0]
    kept = Kept(lambda: next(numbers), kept_s=0.9, monotonic_s=lambda: now_s[0])
    assert [kept() for _ in range(50)] == [1] * 50
    now_s[0] += 0.8
    assert kept() == 1
    now_s[0] += 0.2
    assert [kept(), kept()] == [2, 2]


def test_an_answer_that_takes_long_is_kept_longer() -> None:
    now_s, costs_s = [0.0], [0.1]

    def make() -> float:
        now_s[0] += costs_s[0]
        return now_s[0]

    kept = Kept(make, kept_s=0.9, monotonic_s=lambda: now_s[0], processor_s=lambda: now_s[0])
    assert kept() == 0.1
    now_s[0] = 0.1 + 0.9 + 2.9
    assert kept() == 0.1
    now_s[0] += 0.2
    costs_s[0] = 5.0
    at_s = kept()
    assert at_s > 9.0
    now_s[0] += 0.9 + 9.9
    assert kept() == at_s, "for ten seconds more at most"
    now_s[0] += 0.2
    assert kept() > at_s


def test_answers_are_kept_for_each_key_as_long_as_they_were_slow_to_make_and_the_last_few() -> None:
    numbers, now_s = itertools.count(1), [0.0]

    def make() -> int:
        now_s[0] += 0.1
        return next(numbers)

    clock = lambda: now_s[0]  # noqa: E731
    kept = KeptEach[int](most=2, kept_s=0.0, monotonic_s=clock, processor_s=clock)
    assert [kept(key, make) for key in ("a", "b", "a", "b")] == [1, 2, 1, 2]
    now_s[0] += 3.1
    assert kept("a", make) == 3, "thirty times of 0.1 s are over"
    assert [kept(key, make) for key in ("c", "a", "b")] == [4, 3, 5], "of the last two that were asked for"


def test_an_answer_that_could_not_be_made_is_tried_again_at_once() -> None:
    answers: list[Any] = [ValueError("away"), "here"]

    def make() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    kept = Kept(make, kept_s=0.9, monotonic_s=lambda: 0.0)
    with pytest.raises(ValueError, match="away"):
        kept()
    assert kept() == "here"


def test_a_nodes_line_has_what_each_gpu_holds_by_whom_and_counts_ranks_that_the_viewer_may_not_see() -> None:
    ada = job(rank_summary(0, gpu=0, uuid=uuid_of(0)), rank_summary(1, gpu=1, uuid=uuid_of(1), alive=False))
    grace = replace(job(rank_summary(0, gpu=1, uuid=uuid_of(1), user_name="grace")), job_id="9")
    gpus = (gpu_view(1, uuid=uuid_of(1), used_bytes=20 * GIB), gpu_view(0, uuid=uuid_of(0), used_bytes=None))
    there = NodeStatus("id-0", "node-0", None, NodeHealth.OK, 1, "i", None, 0.5, 2, gpus)
    page = nodes_page([there], [ada], [ada, grace], cluster="lab", now_unix_s=5.0)
    (line,) = page.nodes
    held = ada.ranks[0].reserved_bytes + (ada.ranks[0].nontorch_bytes or 0)
    assert line.gpus == (
        GpuLine(0, gpus[1].total_bytes, None, held, gpus[1].other_processes_bytes, 1),
        GpuLine(1, gpus[0].total_bytes, 20 * GIB, held, gpus[0].other_processes_bytes, 1),
    )
    assert (line.jobs, line.more_jobs) == (("4711 ada",), 0)
    assert from_wire(type(page), to_wire(page)) == page
    whole = node_page(there, [ada], [ada, grace], line_of, now_unix_s=5.0)
    assert [(one.job_id, one.user_name, one.rank.rank) for one in whole.ranks] == [("4711", "ada", 0)], "not the ended"
    assert whole.node == line


def test_pages_of_nodes_are_bounded() -> None:
    there = NodeStatus("id-0", "node-0", None, NodeHealth.OK, 1, "i", None, 0.5, 2, ())
    many = [replace(job(rank_summary(n)), job_id=f"{n}") for n in range(MAX_NAMED_JOBS + 3)]
    page = nodes_page([there, there, there], many, many, cluster="lab", now_unix_s=5.0, most=2)
    assert (len(page.nodes), page.left_out) == (2, 1)
    assert (len(page.nodes[0].jobs), page.nodes[0].more_jobs) == (MAX_NAMED_JOBS, 3)
    ranks = node_page(there, many, many, line_of, now_unix_s=5.0, most=4)
    assert (len(ranks.ranks), ranks.left_out) == (4, MAX_NAMED_JOBS - 1)
