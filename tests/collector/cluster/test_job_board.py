"""`JobBoard`: whatever is heard in whatever order, it is what `jobs_of` makes of everything; and it makes no more."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from examples import fewer
from jobs_of_ranks import jobs_of
from sample_views import LEAK, identity, rank_summary
from tidegauge.cluster.coordinator.grouping import RankOnNode, alarm_first, job_of, job_views
from tidegauge.cluster.coordinator.job_board import JobBoard
from tidegauge.cluster.coordinator.known_node import KnownNode, RankOfProcess
from tidegauge.core.ids import JobId, JobKey, ProcessId
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.jobs.rank_groups import RankGroups
from tidegauge.core.verdicts import OK, LeakState
from tidegauge.core.views import JobView, NodeSummary, RankSummary

NODES = ("a", "b", "c")
SUSPECTED = LEAK._replace(state=LeakState.SUSPECTED)
KEEPER = ProcessId(9, 9)


def rank_of(job: str, number: int, pid: int, *, attempt: int = 0, **changes: Any) -> RankSummary:
    who = identity(number, job_id=JobId(job), attempt=attempt, attempts_each=2)
    return replace(rank_summary(number), identity=who, process=ProcessId(pid, 5), **changes)


def key_of(rank: RankSummary) -> RankOfProcess:
    return rank.identity.key, rank.process


def known(node_id: str) -> KnownNode:
    node = KnownNode(node_id)
    node.take_summary(summary(node_id), 0.0)
    return node


def summary(node_id: str, *, exempt: bool | None = None) -> NodeSummary:
    launch = None if exempt is None else LaunchSummary(
        KEEPER, 1001, "j", None, 0, LaunchState.RUNNING, requeueable=True, exempt=exempt, gpu_share=None,
        started_unix_s=1.0,
    )  # fmt: skip
    return NodeSummary(node_id, f"host-{node_id}", 1, "i", None, 0.0, launches=() if launch is None else (launch,))


RANKS = st.builds(
    rank_of,
    st.sampled_from(["j1", "j2"]),
    st.integers(0, 2),
    st.integers(1, 3),
    uid=st.sampled_from([1001, 1002]),
    alive=st.booleans(),
    verdict=st.sampled_from([OK, SUSPECTED, LEAK]),
    last_sample_unix_s=st.sampled_from([1.0, 2.0]),
    launch=st.sampled_from([None, KEEPER]),
    attempt=st.integers(0, 2),
)


class Board(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.board = JobBoard()
        self.nodes = {name: known(name) for name in NODES}
        self.groups: dict[tuple[str, int], RankGroups] = {}

    @rule(name=st.sampled_from(NODES), rank=RANKS)
    def hear(self, name: str, rank: RankSummary) -> None:
        self.board.put(self.nodes[name], key_of(rank), rank)

    @rule(name=st.sampled_from(NODES), place=st.integers(0, 5))
    def forget(self, name: str, place: int) -> None:
        keys = list(self.nodes[name].ranks)
        if keys:
            self.board.remove(self.nodes[name], keys[place % len(keys)])

    @rule(name=st.sampled_from(NODES), stale=st.booleans())
    def go_stale(self, name: str, stale: bool) -> None:
        self.nodes[name].was_stale = stale
        self.board.touch(self.nodes[name])

    @rule(name=st.sampled_from(NODES), exempt=st.sampled_from([None, True, False]))
    def hear_of_launches(self, name: str, exempt: bool | None) -> None:
        self.nodes[name].take_summary(summary(name, exempt=exempt), 0.0)
        self.board.touch(self.nodes[name])

    @rule()
    def look(self) -> None:
        self.board.jobs()

    @invariant()
    def it_is_what_everything_comes_to(self) -> None:
        jobs: dict[tuple[str, int], dict[JobKey, list[RankOnNode]]] = defaultdict(lambda: defaultdict(list))
        for node in self.nodes.values():
            for rank in node.ranks.values():
                member = RankOnNode(rank, node.hostname, node.was_stale, node.node_id, node.launch_of(rank))
                jobs[rank.identity.job_id, rank.uid][job_of(rank)].append(member)
        self.groups = {job: self.groups.get(job) or RankGroups() for job in jobs}
        whole = [
            view
            for job, attempts in jobs.items()
            for views in job_views(attempts, self.groups[job]).values()
            for view in views
        ]
        assert sorted(self.board.jobs(), key=in_order) == sorted(whole, key=in_order)
        assert [alarm_first(job) for job in self.board.jobs()] == sorted(map(alarm_first, whole))


class LazyBoard(Board):
    """Looked at only now and then, so that changes pile up."""

    @invariant()
    def it_is_what_everything_comes_to(self) -> None: ...

    @rule()
    def look(self) -> None:
        super().it_is_what_everything_comes_to()


def in_order(job: JobView) -> tuple[object, ...]:
    return job.key


TestBoard = Board.TestCase
TestBoard.settings = settings(fewer(2), stateful_step_count=20)
TestLazyBoard = LazyBoard.TestCase
TestLazyBoard.settings = settings(fewer(2), stateful_step_count=30)


def test_a_job_of_which_nothing_was_heard_is_the_same_object() -> None:
    board, node = JobBoard(), known("a")
    for job in ("j1", "j2"):
        board.put(node, key_of(rank_of(job, 0, 1)), rank_of(job, 0, 1))
    before = {job.job_id: job for job in board.jobs()}
    changed = rank_of("j2", 0, 1, step=999)
    board.put(node, key_of(changed), changed)
    after = {job.job_id: job for job in board.jobs()}
    assert after["j1"] is before["j1"]
    assert after["j2"].ranks[0].step == 999


def test_a_process_that_is_known_in_two_starts_of_its_job_is_in_a_group_of_each() -> None:
    board, node, other = JobBoard(), known("a"), known("b")
    ended, again = rank_of("j1", 0, 1, attempt=2, alive=False), rank_of("j1", 2, 1, attempt=1)
    for where, rank in [(other, again), (node, ended), (node, again)]:  # two processes call themselves rank 2
        board.put(where, key_of(rank), rank)
    assert sorted((job.attempt, job.group_name, job.rank_hostnames) for job in board.jobs()) == [
        (1, "pid 1", ("host-a",)), (1, "pid 1 (2)", ("host-b",)), (2, "", ("host-a",)),
    ]  # fmt: skip


@given(st.permutations([rank_of("j1", 0, pid, last_sample_unix_s=1.0, alive=False) for pid in (1, 2, 3)]))
def test_job_board_picks_a_ranks_process_independent_of_report_order(ranks: list[RankSummary]) -> None:
    (job,) = jobs_of(RankOnNode(rank, "host", False, "n") for rank in ranks)
    assert job.ranks[0].process.pid == 3


@given(st.permutations([rank_of("j1", number, pid) for number, pid in ((0, 1), (1, 2), (0, 3), (1, 4))]))
def test_two_launches_in_one_job_are_two_views_whoever_was_heard_first(ranks: list[RankSummary]) -> None:
    launcher_of = {1: ProcessId(71, 7), 2: ProcessId(71, 7), 3: ProcessId(73, 7), 4: ProcessId(73, 7)}
    told = [replace(rank, parent=launcher_of[rank.process.pid]) for rank in ranks]
    jobs = jobs_of(RankOnNode(rank, "host", False, "n") for rank in told)
    assert {job.group_name: [rank.process.pid for rank in job.ranks] for job in jobs} == {
        "pid 71": [1, 2],
        "pid 73": [3, 4],
    }
    assert {job.key.whole for job in jobs} == {JobKey("j1", 0, 1001)}
    assert len({job.key for job in jobs}) == 2


def test_a_rank_that_was_not_looked_at_yet_is_in_no_group() -> None:
    """A reply is made before the next look: it called a new rank of one launch by the other's name."""
    board, node = JobBoard(), known("a")

    def hear(number: int, pid: int, run_id: str) -> RankSummary:
        rank = rank_of("j1", number, pid)
        rank = replace(rank, identity=rank.identity._replace(run_id=run_id), parent=ProcessId(ord(run_id), 1))
        board.put(node, key_of(rank), rank)
        return rank

    ranks = [hear(1, 1, "a"), hear(0, 2, "b")]
    board.jobs()
    names = {one.process.pid: one.name for one in board.group_names(node, ranks)}
    assert names == {1: "pid 97", 2: "pid 98"}
    ranks += [hear(0, 3, "a"), hear(1, 4, "b")]
    assert {one.process.pid: one.name for one in board.group_names(node, ranks)} == names
    board.jobs()
    told = {one.process.pid: one.name for one in board.group_names(node, ranks)}
    assert told == {**names, 3: "pid 97", 4: "pid 98"}


def test_groups_keep_their_names_when_the_engine_starts_again_on_their_node() -> None:
    """Its former node is known until it is forgotten, and so is each rank twice."""
    board, before = JobBoard(), known("a")
    ranks = [replace(rank_of("j1", 0, pid), parent=ProcessId(pid - 1, 1)) for pid in (71, 73)]
    for rank in ranks:
        board.put(before, key_of(rank), rank)
    names = {job.ranks[0].process.pid: (job.group, job.group_name) for job in board.jobs()}
    assert names == {71: ("", "pid 70"), 73: ("pid 72", "pid 72")}
    after = KnownNode("b")
    after.take_summary(replace(summary("b"), hostname=before.hostname), 9.0)
    for rank in reversed(ranks):
        board.put(after, key_of(rank), rank)
        board.jobs()
    before.was_stale = True
    board.touch(before)
    assert {job.ranks[0].process.pid: (job.group, job.group_name) for job in board.jobs()} == names
    for rank in ranks:
        board.remove(before, key_of(rank))
    assert {job.ranks[0].process.pid: (job.group, job.group_name) for job in board.jobs()} == names
