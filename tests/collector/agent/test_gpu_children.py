"""Processes on a GPU that a rank brought forth: on whom they are counted, and what stays with the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fake_node import GIB, UUID0, UUID1, FakeNode, gpu_reading, identity
from tidegauge.agent.processes.procfs import DATA_WORKER, ProcFs
from tidegauge.core.ids import GlobalRank, ProcessId
from tidegauge.core.views import RankView

RANK, WORKER, STRANGER, SHELL = (ProcessId(pid, 7) for pid in (4242, 5001, 6001, 1))


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """One rank, a worker of its, and a stranger, all on one card; the worker on another as well."""
    first = gpu_reading(UUID0, 0, processes={RANK.pid: 7 * GIB, WORKER.pid: 2 * GIB, STRANGER.pid: 3 * GIB})
    node = FakeNode(tmp_path / "run", readings=[first, gpu_reading(UUID1, 1, processes={WORKER.pid: GIB})])
    node.start_rank(process=RANK).record()
    node.procs.others |= {WORKER, STRANGER}
    node.procs.parents = {WORKER: (ProcessId(4999, 3), RANK, SHELL), STRANGER: (SHELL,)}
    return node


def only_rank(node: FakeNode) -> RankView:
    [rank] = node.agent.view().ranks
    return rank


def test_a_child_that_holds_gpu_memory_is_counted_on_its_rank(node: FakeNode) -> None:
    node.procs.data_workers.add(WORKER)
    node.poll()
    rank = only_rank(node)
    assert (rank.gpu_children, rank.children_bytes, rank.data_workers) == (1, 3 * GIB, 1)
    assert node.agent.summary(node_id="n", incarnation="i", metrics_address=None).ranks[0].children_bytes == 3 * GIB


def test_gpu_child_memory_is_not_counted_as_another_process(node: FakeNode) -> None:
    node.poll()
    assert [gpu.other_processes_bytes for gpu in node.agent.view().gpus] == [3 * GIB, 0]


def test_a_child_of_another_name_is_a_child_all_the_same(node: FakeNode) -> None:
    node.poll()
    assert (only_rank(node).gpu_children, only_rank(node).data_workers) == (1, 0)


def test_a_rank_without_children_has_none(node: FakeNode) -> None:
    node.procs.parents = {}
    node.poll()
    rank = only_rank(node)
    assert (rank.gpu_children, rank.children_bytes) == (0, 0)


def test_gpu_child_memory_is_unknown_if_nvml_omits_it(node: FakeNode) -> None:
    node.gpus.readings = (gpu_reading(processes={RANK.pid: GIB, WORKER.pid: None}),)
    node.poll()
    assert (only_rank(node).gpu_children, only_rank(node).children_bytes) == (1, None)
    node.gpus.failing = True
    node.poll()
    assert (only_rank(node).gpu_children, only_rank(node).children_bytes) == (0, None)


def test_a_rank_that_another_rank_started_is_no_child(node: FakeNode) -> None:
    node.start_rank(process=WORKER, who=identity(rank=GlobalRank(1))).record()
    node.procs.others.discard(WORKER)
    node.poll()
    first, second = node.agent.view().ranks
    assert (first.gpu_children, second.gpu_children) == (0, 0)


def test_a_worker_that_writes_a_ring_of_its_own_is_still_a_child(node: FakeNode) -> None:
    """The probe comes along with the environment, and claims the parent's rank."""
    node.procs.others.discard(WORKER)
    node.start_rank(process=WORKER, who=identity(device_uuids=(UUID0,))).tick()
    for _ in range(3):
        node.poll()
    rank = only_rank(node)
    assert (rank.process, rank.gpu_children) == (RANK, 1)


def test_a_worker_with_a_ring_on_another_card_is_counted_on_its_rank(node: FakeNode) -> None:
    node.gpus.readings = (
        gpu_reading(UUID0, 0, processes={RANK.pid: 7 * GIB}),
        gpu_reading(UUID1, 1, processes={WORKER.pid: GIB}),
    )
    node.procs.others.discard(WORKER)
    node.start_rank(process=WORKER, who=identity(device_uuids=(UUID1,))).tick()
    for _ in range(3):
        node.poll()
    trains = next(rank for rank in node.agent.view().ranks if rank.process == RANK)
    assert (trains.gpu_children, trains.children_bytes) == (1, GIB)


def test_when_its_rank_has_ended_it_is_a_stranger(node: FakeNode) -> None:
    node.poll()
    del node.procs.facts[RANK]
    node.poll()
    node.poll()
    assert [gpu.other_processes_bytes for gpu in node.agent.view().gpus] == [12 * GIB, GIB]


def test_a_pid_that_another_process_has_now_is_looked_at_anew(node: FakeNode) -> None:
    node.poll()
    node.procs.others = {ProcessId(WORKER.pid, 99), STRANGER}
    node.poll()
    assert only_rank(node).gpu_children == 0
    assert node.agent.view().gpus[0].other_processes_bytes == 5 * GIB


def test_gpu_children_ancestry_is_resolved_once(node: FakeNode) -> None:
    node.poll()
    walks = node.procs.walks
    for _ in range(5):
        node.poll()
    assert node.procs.walks - walks <= 2  # the stranger, whose rank may only have become known meanwhile


def test_a_child_whose_parent_ended_stays_its_ranks(node: FakeNode) -> None:
    node.poll()
    node.procs.parents[WORKER] = (SHELL,)
    node.poll()
    assert only_rank(node).gpu_children == 1


# --- the real /proc


def test_proc_knows_who_has_a_pid_now() -> None:
    procs = ProcFs()
    found = procs.process_at(os.getpid())
    assert found is not None
    assert found.pid == os.getpid()
    assert procs.usage(found) is not None
    assert procs.process_at(1 << 22) is None


NAMED = f"""
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"{DATA_WORKER}", 0, 0, 0)
print("ready", flush=True)
sys.stdin.read()
"""
SPAWNED = "import sys; import multiprocessing.spawn; print('ready', flush=True); sys.stdin.read()"
PLAIN = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.mark.parametrize(("code", "looks_so"), [(NAMED, True), (SPAWNED, True), (PLAIN, False)])
def test_proc_tells_a_data_worker_by_what_it_calls_itself(code: str, looks_so: bool) -> None:
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        procs = ProcFs()
        process = procs.process_at(child.pid)
        assert process is not None
        assert procs.looks_like_data_worker(process) is looks_so
        assert not procs.looks_like_data_worker(ProcessId(process.pid, process.start_ticks + 1))
        child.communicate()
