"""How ranks' memory went, from agents' reports to the page that plots are drawn from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from loop_store import FakeIncidents, FakeStore
from sample_views import GIB, LEAK, MIB, identity, job_record, rank_summary
from scheduler_values import finding, incident
from tidegauge.cluster.api.http_api import BadRequestError, NotFoundError, Request, UnavailableError
from tidegauge.cluster.api.memory_api import MAX_RANKS, memory_routes
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.views import EngineNode
from tidegauge.core.ids import JobId, JobKey, ProcessId
from tidegauge.core.incidents import ChangeKind, IncidentChange
from tidegauge.core.job_records.memory import JobMemory, RankMemory
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.views import NodeSummary, RankSummary
from tidegauge.core.wire import from_wire
from tidegauge.http.access import EVERYBODY, Viewer

BEGAN_S = 1_800_000_000.0
ADA, GRACE = (Viewer(name, sees_all=False, reads_metrics=False) for name in ("ada", "grace"))
RECORD = job_record()
KEPT = tuple(RankMemory(rank, (MemoryPoint(BEGAN_S - 60.0, 7, rank * GIB, rank * GIB, None),)) for rank in (1, 3))


@dataclass
class Site:
    """A coordinator whose ranks report a new sample with every second that passes."""

    elapsed_s: float = 0.0
    store: FakeStore = field(default_factory=FakeStore)

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(
            wall_s=lambda: BEGAN_S + self.elapsed_s, monotonic_s=lambda: self.elapsed_s, incarnation="c", linger_s=120.0
        )

    def report(self, *ranks: RankSummary, node: str = "a") -> None:
        self.elapsed_s += 1.0
        self.coordinator.report(
            NodeSummary(f"id-{node}", f"node-{node}", 1, "i", None, BEGAN_S + self.elapsed_s, ranks)
        )

    def rank(self, number: int = 0, **changes: Any) -> RankSummary:
        return rank_summary(number, **({"last_sample_unix_s": self.elapsed_s} | changes))

    def get(self, **query: object) -> Any:
        return self.get_as(EVERYBODY, **query)

    def get_as(self, viewer: Viewer, **query: object) -> Any:
        route = memory_routes(self.coordinator, self.store)["/api/v1/memory"]
        asked = {name: str(value) for name, value in query.items()}
        return json.loads(route(Request(asked, None, viewer=viewer)).body)


@pytest.fixture
def site() -> Site:
    return Site()


def test_every_report_adds_a_point_at_the_coordinators_time(site: Site) -> None:
    for step in range(5):
        site.report(site.rank(step=step, allocated_bytes=step * GIB))
    points = site.coordinator.memory("4711", 0)[0]
    assert [(point.at_unix_s - BEGAN_S, point.step, point.allocated_bytes) for point in points] == [
        (1.0 + step, step, step * GIB) for step in range(5)
    ]
    assert points[0].used_bytes == 12 * GIB + 700 * MIB


def test_a_rank_without_a_new_sample_gets_no_new_point(site: Site) -> None:
    for _ in range(5):
        site.report(site.rank(last_sample_unix_s=7.0))
    assert len(site.coordinator.memory("4711", 0)[0]) == 1


def test_the_rank_to_look_at_first_comes_first(site: Site) -> None:
    later = LEAK._replace(seconds_to_oom=LEAK.seconds_to_oom and LEAK.seconds_to_oom._replace(likely=9999.0))
    site.report(
        site.rank(0),
        site.rank(1, verdict=later),
        site.rank(2, verdict=LEAK),
        site.rank(3, reserved_bytes=70 * GIB),
    )
    assert list(site.coordinator.memory("4711", 0)) == [2, 1, 3, 0]
    assert list(site.coordinator.memory("4711", 0, most=2)) == [2, 1]
    assert list(site.coordinator.memory("4711", 0, rank=3)) == [3]


def test_of_a_rank_that_was_restarted_in_place_the_living_process_is_told(site: Site) -> None:
    old, new = ProcessId(1, 1), ProcessId(2, 2)
    site.report(site.rank(process=old, step=10), site.rank(1))
    site.report(site.rank(process=old, step=11, alive=False), site.rank(process=new, step=1))
    assert [point.step for point in site.coordinator.memory("4711", 0)[0]] == [1]


def test_memory_api_excludes_other_users_ranks_if_an_owner_is_named(site: Site) -> None:
    site.report(site.rank(0, uid=1001))
    site.report(site.rank(0, uid=6666, process=ProcessId(6, 6)), site.rank(1, uid=6666), node="b")
    assert list(site.coordinator.memory("4711", 0, 1001)) == [0]
    assert list(site.coordinator.memory("4711", 0)) == [0, 1]
    assert site.coordinator.memory("4711", 1) == {}


def test_a_history_is_forgotten_with_its_rank(site: Site) -> None:
    site.report(site.rank())
    rank = site.coordinator.jobs()[0].ranks[0]
    site.report()
    assert len(site.coordinator.memory("4711", 0)[0]) == 1
    site.elapsed_s += 121.0
    site.coordinator.engine_nodes([EngineNode("id-a", "node-a", "10.0.0.1")])
    assert site.coordinator.memory("4711", 0) == {}
    assert site.coordinator.memory_line("id-a", rank, columns=8) == ()
    assert site.coordinator.memory_line("id-of-nobody", rank, columns=8) == ()


def test_a_line_is_what_the_rank_held_over_its_life(site: Site) -> None:
    for held in (1, 2, 5):
        site.report(site.rank(reserved_bytes=held * GIB, nontorch_bytes=None))
    rank = site.coordinator.jobs()[0].ranks[0]
    assert site.coordinator.memory_line("id-a", rank, columns=8) == (GIB, 2 * GIB, 5 * GIB)


def test_the_page_tells_points_as_they_are_read_back(site: Site) -> None:
    site.report(site.rank(0, nontorch_bytes=None), site.rank(1))
    answer = site.get(job_id="4711", attempt=0, uid=1001, rank=0)
    assert (answer["job_id"], answer["attempt"], answer["uid"]) == ("4711", 0, 1001)
    (rank,) = answer["ranks"]
    assert rank["rank"] == 0
    read = tuple(from_wire(MemoryPoint, raw) for raw in rank["points"])
    assert read == site.coordinator.memory("4711", 0)[0]
    assert read[0].nontorch_bytes is None


def test_the_page_is_bounded_but_a_rank_that_is_asked_for_is_always_in_it(site: Site) -> None:
    site.report(*(site.rank(number) for number in range(100)))
    assert len(site.get(job_id="4711", attempt=0)["ranks"]) == MAX_RANKS
    assert [rank["rank"] for rank in site.get(job_id="4711", attempt=0, rank=99)["ranks"]] == [99]


def test_a_job_that_is_not_known_has_no_ranks(site: Site) -> None:
    assert site.get(job_id="a b/ü", attempt=3)["ranks"] == []


@pytest.mark.parametrize("query", [{}, {"job_id": ""}, {"job_id": "x" * 1025}, {"job_id": "x", "uid": "root"}])
def test_a_request_that_makes_no_sense_is_refused(site: Site, query: dict[str, str]) -> None:
    with pytest.raises(BadRequestError):
        site.get(**query)


def test_the_longest_job_id_there_is_passes(site: Site) -> None:
    name = "\N{WATER WAVE}" * 1024
    site.report(site.rank(identity=identity(0, job_id=JobId(name))))
    assert len(site.get(job_id=name)["ranks"]) == 1


def test_of_two_launches_in_one_job_each_is_told_by_itself(site: Site) -> None:
    """Both have a rank 0; the second has another name than the empty one, which it keeps when the first has ended."""

    def two(**changes: Any) -> tuple[RankSummary, RankSummary]:
        first = site.rank(0, process=ProcessId(10, 1), parent=ProcessId(9, 1), **changes)
        return first, site.rank(0, process=ProcessId(20, 2), parent=ProcessId(19, 2), step=700)

    site.report(*two())
    views = {job.group_name: job for job in site.coordinator.jobs()}
    assert set(views) == {"pid 9", "pid 19"}
    group = views["pid 19"].group
    assert [point.step for point in site.coordinator.memory("4711", 0, group=group)[0]] == [700]
    assert [point.step for point in site.coordinator.memory("4711", 0)[0]] == [200]
    asked = site.get(job_id="4711", group=group)
    assert (asked["group"], [point["step"] for point in asked["ranks"][0]["points"]]) == (group, [700])
    site.report(*two(alive=False))
    assert {job.group for job in site.coordinator.jobs()} == {"", group}


def test_the_nodes_are_told_what_the_groups_are_called(site: Site) -> None:
    ranks = [site.rank(0, process=ProcessId(pid, 1), parent=ProcessId(pid - 1, 1)) for pid in (10, 20)]
    report = NodeSummary("id-a", "node-a", 1, "i", None, BEGAN_S, tuple(ranks))
    site.coordinator.report(report)
    site.coordinator.jobs()
    reply = site.coordinator.report(replace(report, sent_unix_s=BEGAN_S + 1))
    assert {one.process.pid: one.name for one in reply.group_names} == {10: "pid 9", 20: "pid 19"}
    assert site.coordinator.report(replace(report, sent_unix_s=BEGAN_S + 2, ranks=())).group_names == ()


def test_a_coordinator_that_was_restarted_knows_again_whose_incident_is_whose(site: Site) -> None:
    """The launch that an incident is about may report before the other, and the engine calls its node otherwise."""
    about = incident(
        group_name="pid 19",
        job=JobKey("4711", 0, 1001, "pid 19"),
        findings=(finding(0, hostname="node-a", node_id="before", process=ProcessId(20, 2)),),
    )
    site.coordinator.remember_groups([about, incident()])
    site.report(site.rank(0, process=ProcessId(20, 2), parent=ProcessId(19, 2)))
    assert [job.group for job in site.coordinator.jobs()] == ["pid 19"]
    site.report(
        site.rank(0, process=ProcessId(10, 1), parent=ProcessId(9, 1)),
        site.rank(0, process=ProcessId(20, 2), parent=ProcessId(19, 2)),
    )
    groups = {job.group: job.ranks[0].process.pid for job in site.coordinator.jobs()}
    assert groups == {"": 10, "pid 19": 20}


def with_record(site: Site) -> Site:
    """Job 4711 has a record with the curves of ranks 1 and 3, and an incident of rank 1, with the same."""
    site.store.jobs.records.append(RECORD)
    site.store.jobs.memories[RECORD] = JobMemory((), KEPT)
    about = incident(job=RECORD.job, number=7, findings=(finding(1),))
    site.store.incidents = FakeIncidents([IncidentChange(ChangeKind.OPENED, BEGAN_S, about)], {7: KEPT})
    return site


def steps(answer: Any) -> dict[int, list[int]]:
    return {rank["rank"]: [point["step"] for point in rank["points"]] for rank in answer["ranks"]}


def test_of_a_job_that_is_gone_the_curves_of_its_record_are_told(site: Site) -> None:
    asked = {"job_id": "4711", "attempt": 0, "uid": 1001}
    assert steps(with_record(site).get(**asked)) == {1: [7], 3: [7]}
    assert steps(site.get(**asked, rank=3)) == {3: [7]}
    assert steps(site.get(**asked, rank=2)) == {}


def test_of_a_watched_job_the_record_tells_of_the_ranks_that_are_gone(site: Site) -> None:
    with_record(site).report(site.rank(1, step=200), site.rank(2, step=200))
    assert steps(site.get(job_id="4711", uid=1001)) == {1: [200], 2: [200], 3: [7]}
    site.store.problem = "away"
    assert steps(site.get(job_id="4711", uid=1001)) == {1: [200], 2: [200]}
    with pytest.raises(UnavailableError, match="away"):
        site.get(job_id="4712", uid=1001)


def test_a_record_is_told_to_those_who_may_see_the_job(site: Site) -> None:
    asked = {"job_id": "4711", "attempt": 0, "uid": 1001}
    assert (steps(with_record(site).get_as(ADA, **asked)), steps(site.get_as(GRACE, **asked))) == ({1: [7], 3: [7]}, {})
    assert steps(site.get_as(GRACE, job_id="4711", uid=1002)) == {}


def test_of_an_incident_the_stored_curves_go_on_with_what_is_watched(site: Site) -> None:
    assert steps(with_record(site).get(incident=7)) == {1: [7], 3: [7]}
    site.report(site.rank(1, step=200), site.rank(2, step=200))
    assert steps(site.get(incident=7)) == {1: [7, 200], 3: [7]}
    assert steps(site.get(incident=7, rank=1)) == {1: [7, 200]}
    assert site.get_as(ADA, incident=7)["job_id"] == "4711"
    for viewer, number in ((GRACE, 7), (ADA, 8)):
        with pytest.raises(NotFoundError, match="no incident"):
            site.get_as(viewer, incident=number)
