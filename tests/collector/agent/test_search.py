"""`Search`: what is new is found apart from the polls, which never wait for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from fake_node import FakeNode, FakeRank
from open_files import open_below
from sample_views import identity
from tidegauge.agent.agent_state import AgentState
from tidegauge.agent.opening.local import LOCAL
from tidegauge.agent.opening.remote import OpenerAwayError
from tidegauge.agent.ranks.watches import WatchedRanks
from tidegauge.agent.rings.discovery import RingFile, RingFinder
from tidegauge.agent.search_thread import FIRST_REPORT_S, STALE_AFTER_S
from tidegauge.core.ids import GlobalRank, JobId, LocalRank, ProcessId
from tidegauge.core.jobs.kubernetes import PodCgroup
from tidegauge.osproc.processes import identity_of
from waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from tidegauge.agent.opening.port import Opener

VICTIM, NEWCOMER = ProcessId(7, 7), ProcessId(9, 9)


class Folders:
    """Of everybody, behind a lock that somebody may hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = threading.Event()
        self.free = threading.Event()
        self.free.set()
        new_rings = RingFinder.new_rings

        def waits(finder: RingFinder, now_s: float) -> list[RingFile]:
            if not self.free.is_set():
                self.held.set()
                self.free.wait()
            return new_rings(finder, now_s)

        monkeypatch.setattr(RingFinder, "new_rings", waits)

    def hold(self) -> None:
        """From the next look on; returns when that hangs."""
        self.held.clear()
        self.free.clear()
        assert self.held.wait(60)


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    one = Folders(monkeypatch)
    yield one
    one.free.set()


@pytest.fixture
def node(tmp_path: Path, folders: Folders) -> Iterator[FakeNode]:
    one = FakeNode(tmp_path / "run", linger_s=1.0)
    one.agent.start_searching()
    yield one
    folders.free.set()
    one.agent.close()


def start(node: FakeNode, process: ProcessId, job: str) -> FakeRank:
    return node.start_rank(process=process, who=identity(job_id=JobId(job), rank=GlobalRank(0)))


def shown(node: FakeNode) -> dict[ProcessId, int]:
    """Steps of the ranks that the next poll shows."""
    node.poll()
    return {rank.process: rank.step for rank in node.agent.view().ranks}


def watched(node: FakeNode, folders: Folders) -> FakeRank:
    """A rank that is shown, when all folders are behind the lock."""
    trains = start(node, VICTIM, "llm")
    trains.record()
    eventually(lambda: VICTIM in shown(node))
    folders.hold()
    return trains


def test_a_rank_is_followed_at_every_poll_while_somebodys_folder_cannot_be_listed(
    node: FakeNode, folders: Folders
) -> None:
    trains = watched(node, folders)
    late = start(node, NEWCOMER, "late")
    late.record()
    for _ in range(20):
        trains.record()
        assert shown(node) == {VICTIM: trains.seq[0]}
    folders.free.set()
    eventually(lambda: NEWCOMER in shown(node))


def test_the_first_poll_shows_the_ranks_that_were_there_before_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first report had none, and the coordinator took their jobs for ended and closed their incidents."""
    monkeypatch.setattr("tidegauge.agent.rings.discovery.MAX_OPENS_PER_POLL", 4)
    node = FakeNode(tmp_path / "run")
    for pid in range(100, 110):
        who = identity(rank=GlobalRank(pid), local_rank=LocalRank(pid), world_size=1 << 12)
        node.start_rank(process=ProcessId(pid, 3), who=who).record()
    node.agent.start_searching()
    assert len(shown(node)) == 10
    node.agent.close()


def test_an_agent_polls_though_its_first_look_hangs_and_does_not_report_yet(
    tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report without the ranks would seem to report their end."""
    monkeypatch.setattr("tidegauge.agent.search_thread.FIRST_LOOKS_S", 0.01)
    node = FakeNode(tmp_path / "run")
    start(node, VICTIM, "llm").record()
    folders.free.clear()
    node.agent.start_searching()
    assert shown(node) == {}
    assert not node.agent.may_report()
    node.poll(FIRST_REPORT_S + 1)
    assert node.agent.may_report(), "it does not come to its end at all"
    folders.free.set()
    eventually(lambda: VICTIM in shown(node))
    node.agent.close()


def test_the_search_looks_when_it_is_asked_and_says_when_it_found_a_ring(tmp_path: Path) -> None:
    """A poll that is over asks: processor caches are warm then. Between two polls of a quiet node 2 s pass."""
    node = FakeNode(tmp_path / "run")
    found = threading.Event()
    node.agent.start_searching(on_found=found.set)
    start(node, VICTIM, "llm").record()
    until_s = time.monotonic() + PATIENCE_S
    while not found.is_set() and time.monotonic() < until_s:
        node.agent.search_now()
    assert found.is_set()
    assert VICTIM in shown(node)
    node.agent.close()


def test_the_search_goes_on_once_a_second_though_polls_hang_or_come_more_rarely(tmp_path: Path) -> None:
    node = FakeNode(tmp_path / "run")
    found = threading.Event()
    node.agent.start_searching(on_found=found.set)
    start(node, VICTIM, "llm").record()
    assert found.wait(PATIENCE_S)
    node.agent.close()


class SilentOpener:
    """An opener that answers nothing until it is told to."""

    def __init__(self, answers: threading.Event) -> None:
        self.answers = answers

    def check(self) -> None:
        if not self.answers.is_set():
            raise OpenerAwayError("it has not answered yet")

    def __getattr__(self, name: str) -> Any:
        self.check()
        return getattr(LOCAL, name)


def test_reports_wait_for_the_ranks_that_a_silent_opener_hides(tmp_path: Path) -> None:
    """The agent was killed while the opener was stopped: the jobs go on, and so do their incidents."""
    answers = threading.Event()
    node = FakeNode(tmp_path / "run", opener=cast("Opener", SilentOpener(answers)))
    start(node, VICTIM, "llm").record()
    node.agent.start_searching()
    assert shown(node) == {}
    assert node.agent.view().collect_success["opener"] is False
    assert node.agent.summary(node_id="n1", incarnation="i1", metrics_address=None).opener_answers is False
    assert not node.agent.may_report()
    answers.set()
    eventually(lambda: shown(node) and node.agent.may_report())
    assert VICTIM in shown(node)
    node.agent.close()


def test_reports_wait_for_a_rank_of_before_that_lives_and_for_none_that_has_ended(tmp_path: Path) -> None:
    """After the opener has answered again its refusals of before are still obeyed for a while."""
    lives, ended = identity_of(os.getpid()), ProcessId(999_999_999, 1)
    assert lives is not None
    for kept, waits in ((lives, True), (ended, False)):
        folder = tmp_path / f"{kept.pid}"
        before = AgentState(folder / "agent", boot_id="b1")
        before.close([kept], lambda _: {}, 0.0)
        state = AgentState(folder / "agent", boot_id="b1")
        assert state.unclaimed() == (kept,)
        node = FakeNode(folder / "run", state=state)
        node.agent.start_searching()
        node.poll()
        assert node.agent.may_report() is not waits
        node.poll(FIRST_REPORT_S + 1)
        assert node.agent.may_report()
        node.agent.close()


def test_a_look_that_hangs_counts_as_failing_until_it_comes_to_its_end(node: FakeNode, folders: Folders) -> None:
    folders.hold()
    node.poll()
    assert node.agent.view().collect_success["rings"] is True
    node.poll(STALE_AFTER_S + 1)
    assert node.agent.view().collect_success["rings"] is False
    folders.free.set()
    eventually(lambda: shown(node) == {} and node.agent.view().collect_success["rings"])


def test_the_ring_of_an_ended_rank_is_deleted_though_its_folder_could_not_be_opened_for_a_while(
    node: FakeNode, folders: Folders
) -> None:
    trains = watched(node, folders)
    node.end(trains)
    for _ in range(3):
        node.poll(2.0)
    assert shown(node) == {}
    assert trains.path.exists()
    folders.free.set()
    eventually(lambda: not trains.path.exists())
    assert shown(node) == {}


def test_an_agent_is_closed_though_a_look_hangs(
    tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegauge.agent.search_thread.CLOSE_WAITS_S", 0.01)
    node = FakeNode(tmp_path / "run")
    node.agent.start_searching()
    folders.hold()
    node.agent.close()
    node.poll()  # does nothing, and fails at nothing


def test_rings_that_no_poll_has_taken_are_closed_with_the_agent(tmp_path: Path) -> None:
    node = FakeNode(tmp_path / "run")
    start(node, VICTIM, "llm").record()
    node.agent.start_searching()
    assert open_below(tmp_path)
    node.agent.close()
    assert open_below(tmp_path) == []


class Slow:
    """Rings of one crowd, each of which takes a while to read: they lie on a disk that is busy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.read: list[ProcessId] = []
        read_one = WatchedRanks._read_one

        def slowly(watches: WatchedRanks, watch: object, *more: object) -> int:
            process = watch.facts.process  # type: ignore[attr-defined]
            self.read.append(process)
            if process != VICTIM:
                self.now_s += 1.0
            return read_one(watches, watch, *more)  # type: ignore[arg-type]

        monkeypatch.setattr(WatchedRanks, "_read_one", slowly)


def test_rings_that_take_long_to_read_have_turns_and_cost_nobody_else_a_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    node = FakeNode(tmp_path / "run", wall_s=lambda: slow.now_s)
    crowd = [
        node.start_rank(
            process=ProcessId(pid, 3), pod=PodCgroup("crowd", None),
            who=identity(rank=GlobalRank(pid), local_rank=LocalRank(pid), world_size=1 << 12),
        )
        for pid in range(100, 108)
    ]  # fmt: skip
    trains = start(node, VICTIM, "llm")
    for one in crowd:
        one.record()
    for _ in range(60):
        trains.record()
        before = len(slow.read)
        assert shown(node)[VICTIM] == trains.seq[0], "followed at every poll"
        assert len(slow.read) - before <= 2, "the victim, and one of the crowd while it has time"
    assert set(slow.read) == {VICTIM, *(ProcessId(pid, 3) for pid in range(100, 108))}, "each has its turn"
    assert node.agent.view().poll_deferred["records"] > 0
