"""`Coordinator`: reports in, nodes, jobs and events out, on a clock that the test moves."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from sample_views import LEAK, MIB, identity, rank_summary
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.coordinator.event_log import MAX_EVENTS
from tidegauge.cluster.coordinator.known_node import MAX_HIDDEN_S, MAX_RANKS_KEPT
from tidegauge.cluster.views import EngineNode, EventKind, NodeHealth
from tidegauge.core.evidence.growth_bound import BoundState, GrowthBound, bounded_verdict
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.verdicts import OK, Band, LeakState, Severity, Signal
from tidegauge.core.views import NodeSummary, RankSummary
from tidegauge.rate_limited_log import LINES_PER_MINUTE

SUSPECTED = LEAK._replace(state=LeakState.SUSPECTED)


def flood(ranks: int) -> list[RankSummary]:
    """Leaks of one user's, of ranks 1 and on."""
    return [rank_summary(rank, verdict=LEAK, uid=6666, user_name="mallory") for rank in range(1, ranks + 1)]


@dataclass
class Time:
    """Wall and monotonic time, far apart so that mixing them up shows."""

    elapsed_s: float = 0.0

    def wall_s(self) -> float:
        return 1_800_000_000.0 + self.elapsed_s

    def monotonic_s(self) -> float:
        return 50.0 + self.elapsed_s


class Site:
    """A coordinator and the nodes that report to it."""

    def __init__(self) -> None:
        self.time = Time()
        self.coordinator = Coordinator(
            wall_s=self.time.wall_s,
            monotonic_s=self.time.monotonic_s,
            incarnation="c1",
            stale_after_s=10.0,
            linger_s=120.0,
        )

    def summary(self, *ranks: RankSummary, node: str = "a", incarnation: str = "i1", **changes: Any) -> NodeSummary:
        values: dict[str, Any] = {
            "node_id": f"id-{node}",
            "hostname": f"node-{node}",
            "agent_pid": 321,
            "incarnation": incarnation,
            "metrics_address": f"node-{node}:9494",
            "sent_unix_s": self.time.wall_s(),
            "ranks": ranks,
        }
        return NodeSummary(**(values | changes))

    def report(self, *ranks: RankSummary, **changes: Any) -> bool:
        return self.coordinator.report(self.summary(*ranks, **changes)).accepted

    def engine_lists(self, *nodes: str) -> None:
        self.coordinator.engine_nodes([EngineNode(f"id-{n}", f"node-{n}", f"10.0.0.{ord(n)}") for n in nodes])

    def pass_s(self, seconds: float) -> None:
        self.time.elapsed_s += seconds

    def health(self) -> dict[str, NodeHealth]:
        return {node.hostname: node.health for node in self.coordinator.nodes()}

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.coordinator.events()]


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_repeated_report_changes_nothing(site: Site) -> None:
    summary = site.summary(rank_summary(0), rank_summary(1, verdict=LEAK))
    site.coordinator.report(summary)
    nodes, jobs, events = site.coordinator.nodes(), site.coordinator.jobs(), site.coordinator.events()
    assert site.coordinator.report(summary).accepted
    assert (site.coordinator.nodes(), site.coordinator.jobs(), site.coordinator.events()) == (nodes, jobs, events)


def test_a_report_that_arrives_late_does_not_bring_the_past_back(site: Site) -> None:
    old = site.summary(rank_summary(0, step=1))
    site.pass_s(3)
    site.report(rank_summary(0, step=9))
    assert not site.coordinator.report(old).accepted
    assert site.coordinator.jobs()[0].ranks[0].step == 9


def test_a_node_whose_clock_was_set_back_is_still_heard(site: Site) -> None:
    site.report(rank_summary(0, step=1))
    assert site.report(rank_summary(0, step=2), sent_unix_s=site.time.wall_s() - 3600)
    assert site.coordinator.jobs()[0].ranks[0].step == 2


def test_a_report_of_an_agent_that_was_replaced_is_refused(site: Site) -> None:
    site.report(incarnation="i1")
    site.report(incarnation="i2", agent_pid=322)
    assert not site.report(incarnation="i1", sent_unix_s=site.time.wall_s() + 100)
    assert site.coordinator.nodes()[0].agent_pid == 322
    assert site.kinds() == [EventKind.NODE_JOINED, EventKind.AGENT_RESTARTED]


def test_the_reply_names_the_coordinator_so_that_a_restart_shows(site: Site) -> None:
    assert site.coordinator.report(site.summary()).coordinator == "c1"


def test_a_node_that_only_the_engine_knows_is_waiting_for_its_agent(site: Site) -> None:
    site.engine_lists("a")
    (node,) = site.coordinator.nodes()
    assert (node.health, node.agent_pid, node.last_report_age_s) == (NodeHealth.WAITING, None, None)
    site.report()
    assert site.health() == {"node-a": NodeHealth.OK}


def test_ranks_that_a_new_agent_cannot_see_for_a_silent_opener_are_stale_not_ended(site: Site) -> None:
    site.report(rank_summary(0), rank_summary(1))
    for _ in range(5):
        site.pass_s(60)
        site.report(incarnation="i2", opener_answers=False)
        (job,) = site.coordinator.jobs()
        assert [rank.alive for rank in job.ranks] == [True, True]
        assert job.stale == (0, 1)
    site.report(rank_summary(0), incarnation="i2", opener_answers=True)
    (job,) = site.coordinator.jobs()
    assert [rank.alive for rank in job.ranks] == [True, False]
    assert job.stale == ()


def test_ranks_that_an_agent_saw_end_beside_a_silent_opener_have_ended(site: Site) -> None:
    site.report(rank_summary(0), rank_summary(1))
    site.report(rank_summary(0), rank_summary(1, alive=False), opener_answers=False)
    site.report(rank_summary(0), opener_answers=False)
    (job,) = site.coordinator.jobs()
    assert [rank.alive for rank in job.ranks] == [True, False]


def test_ranks_that_nobody_can_see_for_too_long_have_ended(site: Site) -> None:
    site.report(rank_summary(0))
    site.report(incarnation="i2", opener_answers=False)
    site.pass_s(MAX_HIDDEN_S)
    site.report(incarnation="i2", opener_answers=False)
    (job,) = site.coordinator.jobs()
    assert [rank.alive for rank in job.ranks] == [False]


def test_a_silent_node_goes_stale_once_and_its_ranks_with_it(site: Site) -> None:
    site.engine_lists("a")
    site.report(rank_summary(0), rank_summary(1))
    site.pass_s(10)
    assert site.health() == {"node-a": NodeHealth.OK}
    site.pass_s(1)
    for _ in range(3):
        site.engine_lists("a")
    assert site.health() == {"node-a": NodeHealth.STALE}
    assert site.kinds() == [EventKind.NODE_JOINED, EventKind.JOB_BEGAN, EventKind.NODE_STALE]
    (job,) = site.coordinator.jobs()
    assert (job.stale, job.running) == ((0, 1), True)


def test_a_stale_node_that_reports_again_is_well_again(site: Site) -> None:
    site.report(rank_summary(0))
    site.pass_s(11)
    assert site.health() == {"node-a": NodeHealth.STALE}
    site.report(rank_summary(0))
    assert site.health() == {"node-a": NodeHealth.OK}
    assert site.coordinator.jobs()[0].stale == ()


def test_a_node_that_the_engine_lost_is_gone_then_forgotten(site: Site) -> None:
    site.engine_lists("a", "b")
    site.report(rank_summary(0), node="a")
    site.report(rank_summary(1), node="b")
    site.engine_lists("a")
    assert site.health() == {"node-a": NodeHealth.OK, "node-b": NodeHealth.GONE}
    (job,) = site.coordinator.jobs()
    assert [(rank.identity.rank, rank.alive) for rank in job.ranks] == [(0, True), (1, False)]
    assert (job.running, job.stale) == (True, (1,))
    site.pass_s(121)
    site.engine_lists("a")
    site.report(rank_summary(0))
    assert site.health() == {"node-a": NodeHealth.OK}
    assert [rank.identity.rank for rank in site.coordinator.jobs()[0].ranks] == [0]


def test_a_node_that_is_gone_before_its_first_report_keeps_its_name(site: Site) -> None:
    site.engine_lists("a")
    site.engine_lists()
    (node,) = site.coordinator.nodes()
    assert (node.hostname, node.address, node.health) == ("node-a", None, NodeHealth.GONE)
    assert [event.text for event in site.coordinator.events()] == ["node node-a is gone"]


def test_a_node_that_comes_back_without_a_report_is_not_taken_for_one_whose_ranks_have_ended(site: Site) -> None:
    site.engine_lists("a")
    site.report(rank_summary(0), node="a")
    site.engine_lists()
    site.engine_lists("a")
    (job,) = site.coordinator.jobs()
    assert job.stale == (0,), "nobody knows before its next report"
    site.report(rank_summary(0), node="a")
    (job,) = site.coordinator.jobs()
    assert (job.running, job.stale) == (True, ())


def test_a_node_that_is_gone_stays_gone_whatever_its_agent_still_sends(site: Site) -> None:
    site.engine_lists("a")
    site.report()
    site.engine_lists()
    assert not site.report()
    site.engine_lists()
    assert site.health() == {"node-a": NodeHealth.GONE}
    assert site.kinds() == [EventKind.NODE_JOINED, EventKind.NODE_GONE]


def test_service_discovery_names_every_node_but_those_that_are_gone(site: Site) -> None:
    site.engine_lists("a", "b", "c")
    site.report(node="a")
    site.report(node="b")
    site.engine_lists("a", "c")
    site.pass_s(60)
    assert [summary.metrics_address for summary in site.coordinator.reporting()] == ["node-a:9494"]


def test_a_job_spans_its_nodes(site: Site) -> None:
    site.report(rank_summary(0), node="a")
    site.report(rank_summary(1), node="b")
    (job,) = site.coordinator.jobs()
    assert job.hostnames == ("node-a", "node-b")
    assert [rank.identity.rank for rank in job.ranks] == [0, 1]


def test_a_rank_that_its_agent_no_longer_names_has_ended_and_lingers(site: Site) -> None:
    site.report(rank_summary(0))
    site.report()
    (job,) = site.coordinator.jobs()
    assert (job.running, job.ranks[0].alive) == (False, False)
    site.pass_s(119)
    assert len(site.coordinator.jobs()) == 1
    site.pass_s(2)
    assert site.coordinator.jobs() == ()


def test_an_ended_rank_that_its_agent_still_names_is_not_announced_twice(site: Site) -> None:
    ended = rank_summary(0, verdict=LEAK, alive=False)
    for _ in range(4):
        site.report(ended)
        site.engine_lists("a")
        site.pass_s(60)
    assert site.kinds().count(EventKind.RANK_VERDICT) == 1
    assert len(site.coordinator.jobs()) == 1


def test_a_verdict_is_told_when_it_changes_and_only_then(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tidegauge"):
        for verdict in (OK, SUSPECTED, SUSPECTED, LEAK, LEAK, OK):
            site.report(rank_summary(1, verdict=verdict, step=500))
    told = [event for event in site.coordinator.events() if event.kind is EventKind.RANK_VERDICT]
    assert [(e.before, None if e.verdict is None else e.verdict.state) for e in told] == [
        (LeakState.OK, LeakState.SUSPECTED),
        (LeakState.SUSPECTED, LeakState.LEAK),
        (LeakState.LEAK, LeakState.OK),
    ]
    assert {(e.job_id, e.attempt, e.rank, e.step, e.hostname) for e in told} == {("4711", 0, 1, 500, "node-a")}
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage() == (
        "job 4711 attempt 0 rank 1 on node-a leaks, signal allocated, 12.0 MiB per step, since step 40, "
        "out of memory in 14\u201322 min, severity critical"
    )


def test_a_leak_that_is_only_a_note_does_not_warn(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tidegauge"):
        site.report(rank_summary(0, verdict=LEAK._replace(severity=Severity.NOTE)))
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.INFO]


def test_a_rank_restarted_in_place_starts_with_a_clean_record(site: Site) -> None:
    site.report(rank_summary(0, verdict=LEAK))
    site.report(rank_summary(0, process=ProcessId(2000, 9000)))
    (job,) = site.coordinator.jobs()
    assert (job.state, job.ranks[0].process.pid, job.running) == (LeakState.OK, 2000, True)


def test_events_are_bounded_and_can_be_asked_for_from_a_number_on(site: Site) -> None:
    for count in range(MAX_EVENTS + 5):
        site.report(incarnation=f"i{count}")
    events = site.coordinator.events()
    assert (len(events), events[-1].seq) == (MAX_EVENTS, MAX_EVENTS + 5)
    assert [event.seq for event in site.coordinator.events(after=MAX_EVENTS + 3)] == [MAX_EVENTS + 4, MAX_EVENTS + 5]


def test_coordinator_events_of_one_user_push_out_only_their_own(site: Site) -> None:
    site.report(rank_summary(0, verdict=LEAK))
    site.report(rank_summary(0, verdict=LEAK), *flood(MAX_EVENTS + 200))
    site.report(rank_summary(0), *flood(MAX_EVENTS + 200))
    events = site.coordinator.events()
    assert len(events) == MAX_EVENTS
    assert [event.seq for event in events] == sorted(event.seq for event in events)
    assert [event.kind for event in events if event.user_name != "mallory"] == [
        EventKind.NODE_JOINED, EventKind.JOB_BEGAN, EventKind.RANK_VERDICT, EventKind.RANK_VERDICT,
    ]  # fmt: skip
    assert events[-2].rank == MAX_EVENTS + 200, "of their own it is the oldest that go"


def test_ranks_that_change_by_the_thousand_are_told_in_a_few_lines_of_the_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="tidegauge"):
        site.report(*flood(300))
        site.pass_s(61)
        site.report(*flood(300), rank_summary(0, verdict=LEAK))
    told = [record.getMessage() for record in caplog.records if "leaks" in record.getMessage()]
    assert (len(told), told[-1].startswith("job 4711 attempt 0 rank 0 ")) == (LINES_PER_MINUTE + 1, True)
    assert "280 more lines of this kind were left out in the minute before" in caplog.text


def ranks_shown(site: Site) -> list[int]:
    return [int(rank.identity.rank) for job in site.coordinator.jobs() for rank in job.ranks]


def test_processes_that_change_their_names_leave_a_bounded_number_of_ended_ranks(site: Site) -> None:
    """As many processes as an agent lets one user have, with other rank numbers in every report."""
    site.report(rank_summary(0, alive=False, identity=identity(0, job_id=JobId("first"))))
    for turn in range(1, 8):
        site.pass_s(1.0)
        site.report(*(rank_summary(rank) for rank in range(512 * turn, 512 * (turn + 1))))
    shown = ranks_shown(site)
    assert len(shown) == MAX_RANKS_KEPT
    assert shown == list(range(512 * 8 - MAX_RANKS_KEPT, 512 * 8)), "those that ended first were forgotten first"
    (node,) = site.coordinator._nodes.values()
    assert node.histories.keys() == node.ranks.keys()
    assert node.ended_s.keys() < node.ranks.keys()
    assert site.coordinator._events._announced.keys() == node.ranks.keys()


def test_coordinator_drops_ended_ranks_of_the_user_who_fills_a_node(site: Site) -> None:
    site.report(rank_summary(0, alive=False, uid=4321, user_name="ada", identity=identity(0, job_id=JobId("first"))))
    for turn in range(1, 8):
        site.pass_s(1.0)
        site.report(*(rank_summary(rank) for rank in range(512 * turn, 512 * (turn + 1))))
    (first, crowd) = sorted(site.coordinator.jobs(), key=lambda job: len(job.ranks))
    assert (first.job_id, len(crowd.ranks)) == ("first", MAX_RANKS_KEPT - 1)


def test_ended_ranks_that_an_agent_still_names_stay_until_others_have_been_forgotten(site: Site) -> None:
    named = [rank_summary(rank, alive=False) for rank in range(3)]
    site.report(*named)
    for turn in range(1, 6):
        site.pass_s(1.0)
        site.report(*named, *(rank_summary(rank) for rank in range(1000 * turn, 1000 * (turn + 1))))
    shown = ranks_shown(site)
    assert (len(shown), shown[:3], shown[-1000]) == (MAX_RANKS_KEPT, [0, 1, 2], 5000)


def test_of_a_report_with_more_ranks_than_an_agent_watches_the_others_are_not_taken(site: Site) -> None:
    site.report(*(rank_summary(rank) for rank in range(MAX_RANKS_KEPT + 5)))
    assert ranks_shown(site) == list(range(MAX_RANKS_KEPT))
    site.report(*(rank_summary(rank) for rank in range(5, MAX_RANKS_KEPT + 5)))
    assert ranks_shown(site) == list(range(5, MAX_RANKS_KEPT + 5))


def test_a_coordinator_that_starts_empty_knows_everything_after_one_report(site: Site) -> None:
    site.report(rank_summary(0), rank_summary(1, verdict=LEAK))
    reborn = Site()
    reborn.report(rank_summary(0), rank_summary(1, verdict=LEAK))
    assert reborn.coordinator.jobs() == site.coordinator.jobs()


def test_last_heard_is_measured_on_the_monotonic_clock(site: Site) -> None:
    assert site.coordinator.last_heard("id-a") is None
    site.report()
    assert site.coordinator.last_heard("id-a") == (50.0, "i1")


def test_a_job_has_the_launch_of_the_same_report_as_its_ranks() -> None:
    launch = LaunchSummary(
        ProcessId(7, 70), 1001, "4711", None, restarts=1, state=LaunchState.RUNNING, requeueable=True, exempt=False,
        gpu_share=None, started_unix_s=1e9,
    )  # fmt: skip
    site = Site()
    site.report(rank_summary(0, launch=launch.process), launches=(launch,))
    (job,) = site.coordinator.jobs()
    assert (job.launch, job.launch_node, job.rank_nodes, job.rank_hostnames) == (launch, "id-a", ("id-a",), ("node-a",))
    site.time.elapsed_s += 1
    site.report(rank_summary(0, launch=launch.process), launches=())
    (job,) = site.coordinator.jobs()
    assert (job.launch, job.launch_node) == (None, None)


def test_a_peer_of_a_rank_that_was_looked_into_hears_of_its_bound_and_nobody_else_does(site: Site) -> None:
    grows = LEAK._replace(
        severity=Severity.CRITICAL, signal=Signal.ALLOCATED, onset_step=10, grown_bytes=400 * MIB, headroom_eaten=0.5
    )
    bound = GrowthBound(
        "`window` (deque, train.py)", "deque", 60, 150, 70, 300 * MIB, Band(*[360.0 * MIB] * 3), BoundState.HOLDS,
        total_bytes=600.0 * MIB,
    )  # fmt: skip
    looked_into = rank_summary(0, verdict=bounded_verdict(grows, bound), bound=bound)
    peer = rank_summary(1, verdict=grows)
    site.report(looked_into, node="a")
    for _ in range(2):
        site.report(peer, node="b")
        site.coordinator.jobs()
        site.pass_s(1)
        reply = site.coordinator.report(site.summary(peer, node="b"))
        assert [one.process for one in reply.peer_bounds] == [peer.process]
        lent = reply.peer_bounds[0].bound
        assert (lent.of_rank, lent.holds) == (0, True)
        peer = rank_summary(1, verdict=bounded_verdict(grows, lent), bound=lent)  # as its node shows it from now on
        site.pass_s(1)
    assert site.coordinator.report(site.summary(looked_into, node="a")).peer_bounds == ()
