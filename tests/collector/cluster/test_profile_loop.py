"""Memory profiles from a report into the database, and ranks that are asked for one now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rank_profiles import rank_profile
from sample_views import NOW_S, identity, rank_summary
from scheduler_values import JOB
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.profile_loop import ENDED_TRIP_S, ProfileLoop
from tidegauge.cluster.store import ProfileStore, StoreError, open_store, sqlite_url
from tidegauge.cluster.views import AskState, ProfileProblem
from tidegauge.core.ids import GlobalRank, JobId, JobKey, ProcessId
from tidegauge.core.orders import OrderResult
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile.request import MAX_S, TRIP_S
from tidegauge.core.samples import OomRecord
from tidegauge.core.views import NodeSummary
from tidegauge.protocol.messages import ReportReply

RANKS = (0, 1)


class Site:
    """One node with two ranks of a job, which do what they are asked."""

    def __init__(self, folder: Path) -> None:
        self.now_s = NOW_S
        self.coordinator = Coordinator(wall_s=lambda: self.now_s, monotonic_s=lambda: self.now_s, incarnation="c")
        self.store = open_store(sqlite_url(folder))
        self.problem: str | None = None
        self.asked: list[Mapping[str, Any]] = []
        self.answer: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {"ok": True}
        self.threads: list[threading.Thread] = []
        self.sent_s = 0.0
        self.loop = ProfileLoop(self.coordinator, self._table, now_s=lambda: self.now_s, submit=self._submit)
        self.report()

    def report(
        self,
        *profiles: RankProfile,
        results: tuple[OrderResult, ...] = (),
        ended: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
        problem: str | None = None,
    ) -> ReportReply:
        """``ended``: what differs of each rank that has ended. ``problem``: why no rank has a profile."""
        self.sent_s += 1.0
        ranks = tuple(
            rank_summary(
                uid=JOB.uid,
                process=ProcessId(1000 + rank, 5000 + rank),
                identity=identity(job_id=JobId(JOB.job_id), rank=GlobalRank(rank)),
                alive=rank not in ended,
                profile_problem=problem,
                **ended.get(rank, {}),
            )
            for rank in RANKS
        )
        return self.coordinator.report(
            NodeSummary(
                "engine-0", "node0", 321, "i", None, self.now_s, ranks=ranks, order_results=results,
                profiles=profiles, sent_mono_s=self.sent_s,
            )
        )  # fmt: skip

    def answered(self) -> None:
        """Reports of the node until nobody waits for it any more."""
        while any(thread.is_alive() for thread in self.threads):
            orders = self.report().orders
            self.asked += [order.request for order in orders]
            self.report(results=tuple(OrderResult(order.order_id, self.answer(order.request)) for order in orders))
            self.threads[-1].join(0.001)
        self.threads.clear()

    def states(self) -> list[tuple[int, AskState]]:
        return [(one.rank, one.state) for one in self.loop.asked(JOB)]

    def _submit(self, call: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=call))
        self.threads[-1].start()

    def _table(self) -> ProfileStore:
        if self.problem is not None:
            raise StoreError(self.problem)
        return self.store.profiles


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.store.close()


def test_why_ranks_have_no_profile_is_told_by_job_and_reason(site: Site) -> None:
    assert site.loop.problems() == []
    site.report(problem="put off: the hour is used up")
    assert site.loop.problems() == [ProfileProblem(JOB, RANKS, "put off: the hour is used up")]
    site.report(problem="put off: the hour is used up", ended={0: {}})
    assert site.loop.problems() == [ProfileProblem(JOB, (1,), "put off: the hour is used up")]


def test_a_reported_profile_is_kept_and_then_acknowledged(site: Site) -> None:
    assert site.report(rank_profile()).profiles_kept == ()
    site.loop.turn()
    assert site.store.profiles.of_job(JOB, limit=9) == [rank_profile()]
    assert site.report(rank_profile()).profiles_kept == ("profile-1",)


def test_a_database_that_is_away_costs_no_profile(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.problem = "the disk is full"
    site.report(rank_profile())
    site.loop.turn()
    site.loop.turn()
    assert site.report(rank_profile()).profiles_kept == ()
    assert caplog.text.count("no memory profiles are kept: the disk is full") == 1
    site.problem = None
    site.loop.turn()
    assert site.store.profiles.of_job(JOB, limit=9) == [rank_profile()]


def test_a_recording_that_failed_is_acknowledged_and_does_not_replace_a_profile(site: Site) -> None:
    site.report(rank_profile())
    site.loop.turn()
    failed = rank_profile(profile_id="later", packed="", at_unix_s=NOW_S + 60.0, problems=("it ended",))
    site.report(failed)
    site.loop.turn()
    assert site.store.profiles.of_job(JOB, limit=9) == [rank_profile()]
    assert site.report(failed).profiles_kept == ("later",)


def test_a_profile_that_is_asked_for_is_recorded_and_done(site: Site) -> None:
    [asked] = site.loop.ask(JOB, [1])
    assert (asked.rank, asked.state) == (1, AskState.ASKING)
    site.answered()
    assert site.states() == [(1, AskState.RECORDING)]
    [request] = site.asked
    assert (request["command"], request["id"], request["reason"]) == ("profile", asked.profile_id, "asked")
    site.report(rank_profile(1, profile_id=asked.profile_id))
    site.loop.turn()
    assert site.states() == [(1, AskState.DONE)]


def test_without_numbers_all_ranks_are_asked_but_not_those_that_are_at_it(site: Site) -> None:
    site.loop.ask(JOB, [0])
    site.answered()
    site.loop.ask(JOB, [])
    site.answered()
    site.loop.ask(JOB, [])
    site.answered()
    assert site.states() == [(0, AskState.RECORDING), (1, AskState.RECORDING)]
    assert len(site.asked) == 2


def test_a_rank_that_refuses_says_why_and_may_be_asked_again(site: Site) -> None:
    site.answer = lambda _: {"error": "a window is under way", "kind": "busy"}
    site.loop.ask(JOB, [0])
    site.answered()
    [asked] = site.loop.asked(JOB)
    assert (asked.state, asked.problem) == (AskState.FAILED, "a window is under way")
    site.answer = lambda _: {"ok": True}
    site.loop.ask(JOB, [0])
    site.answered()
    assert site.states() == [(0, AskState.RECORDING)]


def test_a_recording_that_is_under_way_is_waited_for(site: Site) -> None:
    site.answer = lambda _: {"ok": True, "id": "another", "state": "recording"}
    site.loop.ask(JOB, [0])
    site.answered()
    assert site.asked[0]["join"] is True
    [asked] = site.loop.asked(JOB)
    assert (asked.profile_id, asked.state) == ("another", AskState.RECORDING)
    site.report(rank_profile(0, profile_id="another"))
    site.loop.turn()
    assert site.states() == [(0, AskState.DONE)]


def test_a_recording_that_was_under_way_may_be_here_before_the_answer(site: Site) -> None:
    site.answer = lambda _: {"ok": True, "id": "another", "state": "searching"}
    site.loop.ask(JOB, [0])
    site.report(rank_profile(0, profile_id="another"))
    site.loop.turn()
    site.answered()
    assert site.states() == [(0, AskState.DONE)]


def test_a_recording_that_came_to_nothing_says_why(site: Site) -> None:
    [asked] = site.loop.ask(JOB, [0])
    site.answered()
    site.report(rank_profile(0, profile_id=asked.profile_id, packed="", problems=("no step ended", "too slow")))
    site.loop.turn()
    [asked] = site.loop.asked(JOB)
    assert (asked.state, asked.problem) == (AskState.FAILED, "no step ended; too slow")


def test_a_recording_that_never_comes_is_over_after_its_time(site: Site) -> None:
    site.loop.ask(JOB, [0])
    site.answered()
    site.now_s += MAX_S + TRIP_S + 1.0
    [asked] = site.loop.asked(JOB)
    assert (asked.state, asked.problem) == (AskState.FAILED, "nothing came of it in time")


@pytest.mark.parametrize(
    ("ending", "how"),
    [
        ({}, "killed"),
        ({"detached": True}, "by itself"),
        ({"last_oom": OomRecord(NOW_S, 1 << 50, 1 << 20, 0, 0, 0, 0)}, "out of GPU memory"),
    ],
)
def test_a_rank_that_ends_while_it_records_is_over_at_once_and_says_how(
    site: Site, ending: Mapping[str, Any], how: str
) -> None:
    site.loop.ask(JOB, [])
    site.answered()
    site.report(ended={0: ending})
    site.loop.turn()
    assert site.states() == [(0, AskState.RECORDING), (1, AskState.RECORDING)], "its node may be making the profile"
    site.now_s += ENDED_TRIP_S
    site.report(ended={0: ending})
    site.loop.turn()
    [ended, other] = site.loop.asked(JOB)
    assert (ended.state, ended.problem) == (
        AskState.FAILED, f"it ended ({how}) before its recording was complete",
    )  # fmt: skip
    assert other.state is AskState.RECORDING


def test_a_rank_that_ends_behind_its_recording_has_its_profile(site: Site) -> None:
    [asked] = site.loop.ask(JOB, [0])
    site.answered()
    site.report(ended={0: {}})
    site.loop.turn()
    site.now_s += ENDED_TRIP_S
    site.report(rank_profile(0, profile_id=asked.profile_id), ended={0: {}})
    site.loop.turn()
    assert site.states() == [(0, AskState.DONE)]


@pytest.mark.parametrize(("job", "ranks"), [(JOB, [7]), (JOB, [0, 7]), (JOB._replace(uid=7), [])])
def test_what_does_not_run_is_not_asked(site: Site, job: JobKey, ranks: list[int]) -> None:
    with pytest.raises(LookupError, match="has no running rank"):
        site.loop.ask(job, ranks)
    assert site.threads == []
