"""A node agent of root's, and users who do their worst in the run directory: it goes on, and sees whom it ought to."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_node import FakeClock, FakeRank, identity
from integration.needs import missing
from integration.security.users import ADA, MALLORY, Machine, machine, open_files, private_bytes
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.orders import Order, OrderTo
from tidegauge.core.run_dirs import ring_name, socket_name

pytestmark = pytest.mark.timeout(300)
MIB = 1 << 20
POLLS = 3000


@pytest.fixture
def node() -> Iterator[Machine]:
    if os.geteuid() != 0:
        missing("it takes root to be several users")
    with machine() as one:
        yield one


def ping(node: Machine, pid: int, uid: int, *, timeout_s: float = 30.0) -> object:
    process = next(view.process for view in node.agent.view().ranks if view.process.pid == pid)
    result = node.agent.carry_out(Order("1", OrderTo.RANK, process, uid, {"command": "ping"}, timeout_s))
    return result.reply if result.error is None else result.error


def test_names_that_change_their_meaning_while_they_are_looked_at_lead_nowhere(node: Machine, tmp_path: Path) -> None:
    ada = node.act(ADA, "trains", "adas-job", 0)
    stolen = node.run_dir.parent / "stolen"
    root_ring = FakeRank(tmp_path, FakeClock(), who=identity(job_id=JobId("stolen-from-root")))
    root_ring.record()
    shutil.copy(root_ring.path, stolen)
    stolen.chmod(0o600)
    os.utime(stolen, ns=(1, 1))
    mallory = node.act(MALLORY, "swaps", stolen, node.run_dir / str(ADA))
    ranks = node.poll_until(lambda ranks: ada.pid in ranks, "the rank that trains is seen")
    steps = [ranks[ada.pid].step]
    shown: set[str] = set()
    for _ in range(POLLS):
        ranks = node.poll()
        assert ranks[ada.pid].uid == ADA
        steps.append(ranks[ada.pid].step)
        shown |= {f"{view.identity.job_id} of {view.uid} as {pid}" for pid, view in ranks.items()}
    # Either may have stood still all the while.
    node.poll_until(lambda ranks: ranks[ada.pid].step > steps[0], "the rank trains")
    node.poll_until(lambda _: bool({"symlink", "not_regular"} & node.skipped.keys()), "the traps are met")
    assert mallory.lives, "the attack ended before the test did"
    assert shown <= {f"adas-job of {ADA} as {ada.pid}", f"mallory-job of {MALLORY} as {mallory.pid}"}
    assert steps == sorted(steps)
    assert ping(node, ada.pid, ADA) == {"ok": True, "step": pytest.approx(steps[-1], abs=10_000)}
    assert stolen.exists()
    assert stat.S_ISREG(stolen.stat().st_mode)


def test_a_ring_that_is_cut_grown_and_scribbled_over_while_it_is_read_costs_nobody_anything(node: Machine) -> None:
    ada = node.act(ADA, "trains", "adas-job", 0)
    mallory = node.act(MALLORY, "cuts")
    node.poll_until(lambda ranks: ada.pid in ranks, "the rank that trains is seen")
    before_files, before_bytes = open_files(), private_bytes()
    for _ in range(POLLS):
        assert ada.pid in node.poll()
    node.poll_until(lambda _: sum(node.skipped.values()) > 0, "the cuts are met")
    assert mallory.lives
    assert open_files() <= before_files + 4
    assert private_bytes() <= before_bytes + 32 * MIB


def test_a_flood_of_names_hides_nobody_and_is_paid_for_by_bounds(node: Machine) -> None:
    """100,000 rings of processes that never were, some of 4 TiB, and 20,000 folders of users who never were."""
    early = node.act(ADA, "trains", "early", 0)
    node.poll_until(lambda ranks: early.pid in ranks, "who was there before is seen")
    before_files, before_bytes = open_files(), private_bytes()
    mallory = node.act(MALLORY, "floods", 100_000, 20_000)
    late = node.act(ADA + 1, "trains", "late", 0)
    ranks = node.poll_until(lambda ranks: late.pid in ranks, "who comes after the flood is seen")
    assert early.pid in ranks
    for _ in range(20):
        assert {early.pid, late.pid} <= node.poll().keys()
    assert mallory.lives
    assert node.skipped["owner"] > 1000
    node.poll_until(lambda _: "too_many" in node.skipped, "the flooded folder is looked into, as far as its bound")
    assert open_files() <= before_files + 600, "what is open of one user is bounded"
    assert private_bytes() <= before_bytes + 128 * MIB


def test_a_ring_may_not_say_who_its_process_is(node: Machine) -> None:
    """A file that bears the name of another user's process, in one's own folder and word for word like theirs."""
    ada = node.act(ADA, "trains", "adas-job", 0)
    ranks = node.poll_until(lambda ranks: ada.pid in ranks, "the rank is seen")
    process = ranks[ada.pid].process
    folder = node.run_dir / str(MALLORY)
    folder.mkdir(mode=0o700)
    copy = folder / ring_name(process)
    shutil.copy(node.run_dir / str(ADA) / ring_name(process), copy)
    for path in (folder, copy):
        os.chown(path, MALLORY, MALLORY)
    for _ in range(3):
        ranks = node.poll()
    assert {pid: view.uid for pid, view in ranks.items()} == {ada.pid: ADA}
    assert node.skipped == {"owner": 1}


def test_a_ring_of_a_process_that_ended_does_not_become_who_gets_its_pid(node: Machine) -> None:
    """The start time tells one process from the next of the same pid; a claim of it has to be true."""
    ada = node.act(ADA, "trains", "adas-job", 0)
    ranks = node.poll_until(lambda ranks: ada.pid in ranks, "the rank is seen")
    before = ProcessId(ada.pid, ranks[ada.pid].process.start_ticks - 100)
    old = FakeRank(node.run_dir, FakeClock(), process=before, uid=ADA, who=identity(job_id=JobId("of-the-dead")))
    old.record()
    os.chown(old.path, ADA, ADA)
    for _ in range(3):
        ranks = node.poll()
    assert [view.identity.job_id for view in ranks.values()] == ["adas-job"]


@pytest.mark.parametrize("how", ["drips", "endless", "deep", "hangs up", "silent"])
def test_a_rank_that_answers_with_malice_costs_its_order_and_nobody_elses(how: str, node: Machine) -> None:
    ada = node.act(ADA, "trains", "adas-job", 0)
    mallory = node.act(MALLORY, "answers", how)
    node.poll_until(lambda ranks: {ada.pid, mallory.pid} <= ranks.keys(), "both are seen")
    for _ in range(2):
        assert isinstance(ping(node, mallory.pid, MALLORY, timeout_s=1.0), str), "there is no answer, and why is said"
        answer = ping(node, ada.pid, ADA)
        assert isinstance(answer, dict), answer
        assert ada.pid in node.poll()


def test_agent_sends_no_command_to_a_socket_of_another_user(node: Machine) -> None:
    """An order names the uid that the coordinator decided about; a socket of anybody else gets not a byte."""
    ada = node.act(ADA, "trains", "adas-job", 0)
    node.poll_until(lambda ranks: ada.pid in ranks, "the rank is seen")
    assert "belongs to uid 4100, not to 4200: nothing was sent" in str(ping(node, ada.pid, MALLORY))


def test_a_crowd_at_a_ranks_socket_does_not_stop_its_training(node: Machine) -> None:
    """Of the rank's own user: no other may connect at all. Root gets its answer as soon as there is a place."""
    ada = node.act(ADA, "trains", "adas-job", 0)
    ranks = node.poll_until(lambda ranks: ada.pid in ranks, "the rank is seen")
    socket = node.run_dir / str(ADA) / socket_name(ranks[ada.pid].process)
    outsider = node.act(MALLORY, "pesters", socket)
    crowd = [node.act(ADA, "pesters", socket) for _ in range(2)]
    before = ranks[ada.pid].step
    ranks = node.poll_until(lambda ranks: ranks[ada.pid].step > before + 200, "it trains on")
    assert ada.lives
    assert outsider.lives
    for one in crowd:
        one.close()
    gone = "it answers when the crowd is gone"
    node.poll_until(lambda _: isinstance(ping(node, ada.pid, ADA, timeout_s=5.0), dict), gone)
