"""`Launches`: which `tidegauge run` keeps what on this node, and how little of a record is believed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fake_node import FakeNode, FakeProcs
from sample_views import rank_view
from tidegauge.agent.ports import ProcessFacts
from tidegauge.agent.rings.launches import LOOK_EVERY_S, SEARCH_S, Launches
from tidegauge.agent.run_dirs.folders import HostRunDir
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.launches import MAX_RECORD_BYTES, LaunchRecord, LaunchState, encode_launch_record
from tidegauge.core.orders import GONE, Order, OrderTo
from tidegauge.core.run_dirs import launch_name, launch_socket_name

KEEPER, RANK = ProcessId(700, 7000), ProcessId(800, 8000)
UID = os.geteuid()
LINGER_S = 120.0


class ContainersRunDir(HostRunDir):
    """One that is a container's own."""

    @property
    def mount_namespaces(self) -> Sequence[int]:  # type: ignore[override] # SAFETY: RunDir allows both
        return [4]


class Node:
    """A run directory with a user's folder, and processes."""

    def __init__(self, run_dir: Path, procs: FakeProcs | None = None, *, kind: type[HostRunDir] = HostRunDir) -> None:
        self.folder = run_dir / str(UID)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.procs = procs or FakeProcs()
        self.launches = Launches(lambda: [kind(run_dir)], self.procs, linger_s=LINGER_S)
        self.now_s = 0.0

    def keep(self, process: ProcessId = KEEPER, *, uid: int = UID, **changes: object) -> Path:
        """A keeper that lives and has written its record."""
        self.procs.facts[process] = ProcessFacts(process, uid, None)
        return self.write(process, **changes)

    def write(self, process: ProcessId = KEEPER, **changes: object) -> Path:
        record = LaunchRecord(
            process,
            "job-1",
            "train",
            0,
            LaunchState.RUNNING,
            requeueable=True,
            exempt=False,
            gpu_share=0.5,
            started_unix_s=1.7e9,
        )._replace(**changes)  # type: ignore[arg-type] # SAFETY: tests name real fields
        path, draft = self.folder / launch_name(process), self.folder / "draft"
        draft.write_bytes(encode_launch_record(record))
        draft.rename(path)
        return path

    def look(self, after_s: float = LOOK_EVERY_S) -> list[ProcessId]:
        self.now_s += after_s
        self.launches.look(self.now_s)
        self.launches.hold()
        return [launch.process for launch in self.launches.summaries]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "run")


def test_a_keeper_that_lives_is_found_with_what_it_says(node: Node) -> None:
    node.keep(remarks=("watched",))
    assert node.look() == [KEEPER]
    (launch,) = node.launches.summaries
    assert (launch.uid, launch.job_id, launch.restarts, launch.gpu_share) == (UID, "job-1", 0, 0.5)
    assert (launch.requeueable, launch.exempt, launch.remarks) == (True, False, ("watched",))
    to = node.launches.sockets()[KEEPER]
    assert (f"{to.folder}/{to.name}", to.process) == (str(node.folder / launch_socket_name(KEEPER)), KEEPER)


def test_a_changed_record_is_read_again(node: Node) -> None:
    node.keep()
    node.look()
    node.write(restarts=1, state=LaunchState.STOPPING)
    node.look()
    (launch,) = node.launches.summaries
    assert (launch.restarts, launch.state) == (1, LaunchState.STOPPING)


def test_between_two_listings_only_the_end_of_a_keeper_is_seen(node: Node) -> None:
    node.keep()
    node.look()
    node.keep(ProcessId(701, 7001))
    assert node.look(after_s=0.1) == [KEEPER]
    del node.procs.facts[KEEPER]
    assert node.look(after_s=0.1) == []
    assert node.look() == [ProcessId(701, 7001)]


def test_a_keeper_in_a_container_goes_by_the_hosts_pid(node: Node) -> None:
    node.write()
    host = ProcessId(4242, 7000)
    node.procs.facts[KEEPER] = ProcessFacts(host, UID, None)
    assert node.look() == [host]
    assert node.launches.sockets()[host].name == launch_socket_name(KEEPER)


def test_a_process_of_another_user_is_not_what_the_record_says(node: Node) -> None:
    node.keep(uid=UID + 1)
    assert node.look() == []


def _oversized(path: Path) -> None:
    path.write_bytes(b'{"a": "' + b"x" * MAX_RECORD_BYTES + b'"}')


def _linked(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def _twice(path: Path) -> None:
    os.link(path, path.with_suffix(".too"))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _of_another(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"[700,7000]", b"[701,7000]"))


@pytest.mark.parametrize(
    "damage", [lambda path: path.write_bytes(b"{"), _oversized, _linked, _twice, _pipe, _of_another],
    ids=["torn", "oversized", "symlink", "two names", "fifo", "another process"],
)  # fmt: skip
def test_launches_refuse_a_damaged_record_and_log_it_once(
    node: Node, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(node.keep())
    for _ in range(3):
        assert node.look() == []
    assert len(caplog.records) == 1
    assert "700-7000.job" in caplog.text


def test_a_record_that_is_mended_is_taken(node: Node) -> None:
    node.keep().write_bytes(b"{")
    assert node.look() == []
    node.write()
    assert node.look() == [KEEPER]


def test_the_record_of_a_dead_keeper_goes_after_a_while_and_its_socket_too(node: Node) -> None:
    path = node.keep()
    stranger = node.folder / "4-4.job.sock"
    stranger.touch()
    node.look()
    del node.procs.facts[KEEPER]
    assert node.look() == []
    node.look(after_s=LINGER_S - 5)
    assert path.exists()
    node.look(after_s=10)
    assert not path.exists()
    assert stranger.exists()


def test_a_record_that_is_touched_stays_though_its_keeper_cannot_be_seen(node: Node) -> None:
    path = node.write()
    for _ in range(5):
        node.look(after_s=LINGER_S / 2)
        os.utime(path, ns=(int(node.now_s * 1e9), int(node.now_s * 1e9)))
    assert path.exists()


def test_a_process_that_cannot_be_found_is_not_searched_for_for_ever(node: Node) -> None:
    node.write()
    for _ in range(3):
        node.look(after_s=SEARCH_S)
    searches = node.procs.searches
    for _ in range(3):
        node.look()
    assert node.procs.searches == searches


def test_a_failure_to_look_is_not_the_end_of_a_keeper(node: Node) -> None:
    node.keep()
    node.look()
    node.procs.failing = True
    assert node.look() == [KEEPER]


def test_ranks_are_named_by_the_keeper_that_they_descend_from(node: Node) -> None:
    node.keep()
    node.procs.parents[RANK] = (ProcessId(750, 1), KEEPER, ProcessId(1, 0))
    node.look()
    rank, other = rank_view(0, process=RANK, uid=UID), rank_view(1, uid=UID)
    assert [view.launch for view in node.launches.named([rank, other])] == [KEEPER, None]


def test_a_rank_of_another_user_is_not_the_keepers(node: Node) -> None:
    node.keep()
    node.procs.parents[RANK] = (KEEPER,)
    node.look()
    (view,) = node.launches.named([rank_view(0, process=RANK, uid=UID + 1)])
    assert view.launch is None


def test_a_rank_is_looked_up_once_and_again_only_when_it_had_nobody(node: Node) -> None:
    node.keep()
    node.procs.parents[RANK] = (KEEPER,)
    node.look()
    ranks = [rank_view(0, process=RANK, uid=UID)]
    for _ in range(5):
        node.launches.named(ranks)
        node.look(after_s=2 * LOOK_EVERY_S)
    assert node.procs.walks == 1
    del node.procs.parents[RANK]
    node.procs.facts.clear()
    node.look()
    assert node.launches.named(ranks)[0].launch is None


def test_a_rank_that_was_seen_before_its_keeper_is_named_later(node: Node) -> None:
    node.keep(ProcessId(699, 1))
    node.look()
    node.procs.parents[RANK] = (KEEPER,)
    ranks = [rank_view(0, process=RANK, uid=UID)]
    assert node.launches.named(ranks)[0].launch is None
    node.keep()
    node.look()
    assert node.launches.named(ranks)[0].launch == KEEPER


def test_without_keepers_no_chain_is_walked(node: Node) -> None:
    node.look()
    node.launches.named([rank_view(0, process=RANK, uid=UID)])
    assert node.procs.walks == 0


def test_an_agent_reports_keepers_and_their_ranks(tmp_path: Path) -> None:
    agent = FakeNode(tmp_path / "run")
    rank = agent.start_rank()
    Node(agent.run_dir, agent.procs).keep()
    agent.procs.parents[rank.process] = (KEEPER,)
    rank.record()
    agent.poll()
    summary = agent.agent.summary(node_id="n", incarnation="i", metrics_address=None)
    assert [launch.process for launch in summary.launches] == [KEEPER]
    assert [one.launch for one in summary.ranks] == [KEEPER]
    assert agent.agent.view().rings_skipped == {}


def test_an_order_for_a_keeper_that_ended_says_that_it_is_gone(tmp_path: Path) -> None:
    agent = FakeNode(tmp_path / "run")
    order = Order("o-1", OrderTo.LAUNCH, KEEPER, UID, {"command": "describe"}, 1.0)
    assert agent.agent.carry_out(order).kind == GONE
    agent.procs.facts[KEEPER] = ProcessFacts(KEEPER, UID, None)
    assert agent.agent.carry_out(order).kind is None


def test_a_launch_that_ended_tells_its_exit_status_for_a_while(node: Node) -> None:
    node.keep()
    assert node.look() == [KEEPER]
    path = node.write(state=LaunchState.ENDED, exit_status=3, cancelled=True)
    del node.procs.facts[KEEPER]
    assert node.look() == []
    (ended,) = node.launches.ended
    assert (ended.process, ended.exit_status, ended.cancelled) == (KEEPER, 3, True)
    node.look(after_s=LINGER_S + 5)
    node.look()
    assert (node.launches.ended, path.exists()) == ((), False)


def test_a_launch_that_was_killed_has_no_exit_status(node: Node) -> None:
    node.keep()
    node.look()
    del node.procs.facts[KEEPER]
    node.look()
    assert node.launches.ended == ()


def test_a_launch_that_ended_before_its_agent_began_tells_its_exit_status_for_a_while(node: Node) -> None:
    path = node.write(state=LaunchState.ENDED, exit_status=3)
    node.look()
    (ended,) = node.launches.ended
    assert (ended.process, ended.uid, ended.exit_status) == (KEEPER, UID, 3)
    node.look(after_s=LINGER_S + 5)
    node.look()
    assert (node.launches.ended, path.exists()) == ((), False)


def test_what_a_launch_that_ended_left_in_a_container_tells_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path / "run", kind=ContainersRunDir)
    node.write(state=LaunchState.ENDED, exit_status=0)
    node.look()
    assert node.launches.ended == ()
