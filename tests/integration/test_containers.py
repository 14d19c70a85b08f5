"""Ranks in containers of real namespaces, and the agent that looks into them: what it finds, what it leaves alone."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_node import FakeClock, FakeRank
from integration.namespaces import (
    INSIDE,
    LAYOUTS,
    PYTHON,
    Container,
    need_namespaces,
    rank_command,
    start_container,
)
from integration.needs import missing
from tidegauge.agent.container_run_dirs.discovery import WALK_EVERY_S, Containers
from tidegauge.agent.node_agent import NodeAgent, open_node_agent
from tidegauge.agent.processes.procfs import ProcFs
from tidegauge.core.ids import ProcessId
from tidegauge.core.orders import Order, OrderTo
from tidegauge.core.views import RankView
from tidegauge.settings import Settings

UID, VICTIM_UID = 5001, 5002
WITHIN_S = 60.0
FUSE = Path(__file__).with_name("silent_fuse.py")


class Node:
    """A real agent that looks into containers, at a time of its own."""

    def __init__(self, run_dir: Path, *, into_containers: bool = True) -> None:
        self.clock = FakeClock()
        self.agent = NodeAgent(
            Settings(linger_s=0.0),
            hostname="node",
            gpus=None,
            procs=ProcFs(monotonic_s=self.clock.monotonic_s),
            clock=self.clock,
            run_dirs=[run_dir],
            containers=Containers([run_dir], candidates=lambda: None) if into_containers else None,
        )

    def poll(self) -> tuple[RankView, ...]:
        """One poll that looks through all processes."""
        self.clock.pass_s(WALK_EVERY_S)
        return polled(self.agent)

    def poll_until(self, seen: Callable[[], bool]) -> None:
        until_s = time.monotonic() + WITHIN_S
        while not seen():
            assert time.monotonic() < until_s, f"not within {WITHIN_S:g} s: {self.agent.view()}"
            self.poll()

    @property
    def skipped(self) -> dict[str, int]:
        return dict(self.agent.view().rings_skipped)


def polled(agent: NodeAgent) -> tuple[RankView, ...]:
    """What one poll shows. Fails if that poll does not end, as it would in a lookup that nobody answers."""
    thread = threading.Thread(target=agent.poll, daemon=True)
    thread.start()
    thread.join(WITHIN_S)
    assert not thread.is_alive(), "the agent hangs"
    return agent.view().ranks


def ping(agent: NodeAgent, rank: RankView) -> object:
    order = Order("1", OrderTo.RANK, rank.process, rank.uid, {"command": "ping"}, WITHIN_S)
    return agent.carry_out(order).reply


def rank_in(container: Container) -> tuple[Path, int]:
    """Path of the ring and pid, as they are in there."""
    word, ring, pid = container.line()
    assert word == "ready"
    return Path(ring), int(pid)


def root_of(container: Container) -> Path:
    """The container's root, by the first process in it."""
    [inner] = Path(f"/proc/{container.process.pid}/task/{container.process.pid}/children").read_text().split()
    return Path(f"/proc/{inner}/root")


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A run directory on the machine's own /dev/shm: in a container the same name is another folder."""
    need_namespaces()
    path = Path(tempfile.mkdtemp(prefix="tidegauge-containers-", dir="/dev/shm"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def node(run_dir: Path) -> Iterator[Node]:
    node = Node(run_dir)
    yield node
    node.agent.close()


@pytest.fixture
def victim() -> Iterator[FakeRank]:
    """Another user's ring, in a run directory that the agent does not know; containers see the place, too."""
    folder = Path(tempfile.mkdtemp(prefix="tidegauge-victim-"))
    folder.chmod(0o755)
    rank = FakeRank(folder, FakeClock(), process=ProcessId(7, 5), uid=VICTIM_UID)
    os.chown(rank.path.parent, VICTIM_UID, VICTIM_UID)
    os.chown(rank.path, VICTIM_UID, VICTIM_UID)
    yield rank
    shutil.rmtree(folder)


# --- what is seen


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_with_a_dev_shm_of_its_own_is_seen_and_answers(run_dir: Path, layout: str) -> None:
    agent = open_node_agent(Settings(slurm="off", run_dir=run_dir), {})
    with start_container(layout, rank_command("job-1", run_dir=run_dir), uid=UID) as container:
        ring, inner_pid = rank_in(container)
        assert not ring.exists(), "it is not on the machine's own /dev/shm"
        [rank] = polled(agent)
        assert (rank.identity.job_id, rank.uid, rank.steps) == ("job-1", UID, 3)
        assert Path(f"/proc/{rank.process.pid}/root{ring}").exists()
        assert ping(agent, rank) == {"ok": True, "pid": inner_pid}
        assert agent.view().rings_skipped == {}
    agent.close()


def test_without_looking_into_containers_nothing_is_seen(run_dir: Path) -> None:
    node = Node(run_dir, into_containers=False)
    with start_container("admin", rank_command("job-1", run_dir=run_dir), uid=UID) as container:
        rank_in(container)
        assert node.poll() == ()


def test_two_containers_with_the_same_pids_are_two_ranks(node: Node, run_dir: Path) -> None:
    with (
        start_container("admin", rank_command("job-1", run_dir=run_dir), uid=UID) as one,
        start_container("user", rank_command("job-2", run_dir=run_dir), uid=UID) as other,
    ):
        pids = {"job-1": rank_in(one)[1], "job-2": rank_in(other)[1]}
        assert pids["job-1"] == pids["job-2"]
        assert {rank.identity.job_id: ping(node.agent, rank) for rank in node.poll()} == {
            job: {"ok": True, "pid": pid} for job, pid in pids.items()
        }


def test_a_run_directory_that_a_container_shares_with_the_node_is_looked_at_once() -> None:
    need_namespaces()
    with tempfile.TemporaryDirectory() as shared:
        os.chmod(shared, 0o1777)
        node = Node(Path(shared))
        with start_container("user", rank_command("job-1", run_dir=shared), uid=UID) as container:
            ring, _ = rank_in(container)
            assert (ring.exists(), ring.parent.name) == (True, str(UID)), "named for the uid that it has out here"
            [rank] = node.poll()
            assert ping(node.agent, rank) is not None
            assert node.agent.view().series_dropped == {}


def test_a_rank_behind_a_mount_of_the_users_own_is_seen_by_the_folder_that_it_has_open(
    node: Node, run_dir: Path
) -> None:
    """An overlay may be on the user's FUSE: no name is looked up there. Squashfuse as the root is like that, too."""
    low = "/dev/shm/low"
    setup = (
        f"mkdir -p {low}/a/shm {low}/b; mount -t overlay overlay -o lowerdir={low}/a:{low}/b,userxattr /dev; "
        "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"
    )
    with start_container("user", rank_command("job-1", run_dir=run_dir), uid=UID, setup=setup) as container:
        rank_in(container)
        [rank] = node.poll()
        assert ping(node.agent, rank) is not None


# --- what is cleared


def test_the_ring_of_a_rank_that_ended_is_cleared_in_a_container_that_lives(node: Node, run_dir: Path) -> None:
    with start_container("user", rank_command("job-1", run_dir=run_dir) + "; cat", uid=UID) as container:
        ring, _ = rank_in(container)
        inside = root_of(container) / ring.relative_to("/")
        [rank] = node.poll()
        assert sorted(path.suffix for path in inside.parent.iterdir()) == [".ring", ".sock"]
        os.kill(rank.process.pid, signal.SIGKILL)
        node.poll_until(lambda: not any(inside.parent.iterdir()))
        assert node.poll() == ()


def test_a_container_that_is_gone_leaves_nothing_to_say(
    node: Node, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_container("admin", rank_command("job-1", run_dir=run_dir), uid=UID) as container:
        rank_in(container)
        assert len(node.poll()) == 1
    with caplog.at_level(logging.INFO):
        node.poll_until(lambda: node.agent.view().ranks == ())
        for _ in range(3):
            node.poll()
    ours = [record for record in caplog.records if record.name.startswith("tidegauge")]
    assert ours == []  # others' may come of the garbage collector at any moment
    assert (node.skipped, node.agent.view().collect_success["rings"]) == ({}, True)


# --- what is hostile

RING = f"{UID}/7-5.ring"
OTHERS = "/dev/shm/others"
HOSTILE = {
    "an absolute link to somebody's run directory": ("ln -s {victim} {run}", "symlink"),
    "a relative link out of the root": ("ln -s ../../../../../../..{victim} {run}", "symlink"),
    "a link above the run directory": (f"mkdir {OTHERS}; umount /dev/shm; mount -t tmpfs tmpfs /dev; ln -s / /dev/shm",
                                       "symlink"),
    "a file for a run directory": ("touch {run}", "not_directory"),
    "a link for a user's folder": (f"mkdir {{run}}; ln -s {{victim}}/{VICTIM_UID} {{run}}/{UID}", "symlink"),
    "somebody's folder mounted there": (
        f"mkdir -p {{run}}/{VICTIM_UID}; mount --bind {{victim}}/{VICTIM_UID} {{run}}/{VICTIM_UID}", "mount"),
    "somebody's ring mounted there": (
        f"mkdir -p {{run}}/{UID}; touch {{run}}/{RING}; mount --bind {{victim}}/{VICTIM_UID}/7-5.ring {{run}}/{RING}",
        "mount"),
    "a linked ring": (f"mkdir -p {{run}}/{UID}; ln -s {{victim}}/{VICTIM_UID}/7-5.ring {{run}}/{RING}", "symlink"),
    "a ring with two names": (f"mkdir -p {{run}}/{UID}; touch {OTHERS}; ln {OTHERS} {{run}}/{RING}", "hard_link"),
    "a pipe for a ring": (f"mkdir -p {{run}}/{UID}; mkfifo {{run}}/{RING}", "not_regular"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_agent_refuses_hostile_files_of_a_container(node: Node, run_dir: Path, victim: FakeRank, what: str) -> None:
    setup, reason = HOSTILE[what]
    prepared = setup.format(run=run_dir, victim=victim.path.parents[1])
    with start_container("user", "echo ready; cat", uid=UID, setup=prepared) as container:
        assert container.line() == ["ready"]
        for _ in range(3):
            assert node.poll() == ()
        assert node.skipped == {reason: 1}
    assert victim.path.exists()


def test_a_folder_of_another_owner_than_its_ring_is_refused(node: Node, run_dir: Path) -> None:
    given_away = f"mkdir -p {run_dir}/{UID}; touch {run_dir}/{RING}; chown {VICTIM_UID} {run_dir}/{UID}"
    with start_container("admin", "echo ready; cat", uid=UID, setup=given_away) as container:
        assert container.line() == ["ready"]
        assert node.poll() == ()
        assert node.skipped == {"owner": 1}


def test_a_ring_of_a_process_outside_is_neither_shown_nor_cleared(node: Node, run_dir: Path, victim: FakeRank) -> None:
    """Its run directory is mounted as the container's own: nothing there looks wrong but where its process lives."""
    setup = f"mkdir {run_dir}; mount --bind {victim.path.parents[1]} {run_dir}"
    with start_container("user", "echo ready; cat", uid=UID, setup=setup) as container:
        assert container.line() == ["ready"]
        for _ in range(10):
            assert node.poll() == ()
    assert victim.path.exists()


@pytest.mark.parametrize(
    ("at", "reason"),
    [("/dev", "file_system"), ("{run}", "file_system"), (f"{{run}}/{UID}", "mount"), (f"{{run}}/{RING}", "mount")],
)
def test_a_file_system_that_never_answers_holds_up_nobody(node: Node, run_dir: Path, at: str, reason: str) -> None:
    if not Path("/dev/fuse").exists():
        missing("this kernel has no FUSE")
    mounted_on = at.format(run=run_dir)
    setup = f"mkdir -p {mounted_on}; {INSIDE}/bin/{PYTHON.name} {FUSE} {mounted_on} & true"
    with (
        start_container("admin", "cat", uid=UID, setup=setup) as silent,
        start_container("admin", rank_command("job-1", run_dir=run_dir), uid=UID) as container,
    ):
        assert silent.line() == ["mounted"]
        rank_in(container)
        [rank] = node.poll()
        assert ping(node.agent, rank) is not None
        assert len(node.poll()) == 1
        assert node.skipped == {reason: 1}
