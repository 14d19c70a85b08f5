"""What the agent tells of a rank's cap and of its last OutOfMemoryError."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_node import GIB, FakeNode, FakeRank, gpu_reading, identity
from tidegauge.core.samples import EventCode, OomRecord, RecordKind
from tidegauge.core.views import RankSummary


def out_of_memory(rank: FakeRank, *, device: int = 0, wanted_bytes: int = 2 * GIB) -> OomRecord:
    sample = rank.record(
        kind=RecordKind.EVENT, event=EventCode.OUT_OF_MEMORY, device=device, step=7, allocated=5 * GIB,
        reserved=6 * GIB, event_a=wanted_bytes, event_b=1 * GIB, event_c=20 * GIB,
    )  # fmt: skip
    return OomRecord(sample.wall_ns / 1e9, 7, wanted_bytes, 1 * GIB, 20 * GIB, 5 * GIB, 6 * GIB)


def fraction_set(rank: FakeRank, millionths: int) -> None:
    rank.record(kind=RecordKind.EVENT, event=EventCode.FRACTION_SET, event_a=millionths)


def summary(node: FakeNode) -> RankSummary:
    node.poll()
    (rank,) = node.agent.summary(node_id="n1", incarnation="i1", metrics_address=None).ranks
    assert (rank.cap_fraction, rank.last_oom) == (
        node.agent.view().ranks[0].cap_fraction, node.agent.view().ranks[0].last_oom
    )  # fmt: skip
    return rank


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "run", readings=[gpu_reading()])


def test_a_rank_that_never_ran_out_has_no_record_of_it(node: FakeNode) -> None:
    node.start_rank().record()
    assert summary(node).last_oom is None


def test_the_last_out_of_memory_error_is_told_until_the_rank_is_forgotten(node: FakeNode) -> None:
    rank = node.start_rank()
    rank.record()
    out_of_memory(rank, wanted_bytes=1)
    last = out_of_memory(rank)
    for step in range(8, 12):
        rank.record(step=step)
    assert summary(node).last_oom == last
    node.end(rank)
    told = summary(node)
    assert (told.alive, told.last_oom) == (False, last)


def test_last_oom_includes_free_private_pool_bytes_of_the_same_error(node: FakeNode) -> None:
    rank = node.start_rank(devices=2)
    rank.record()
    first = out_of_memory(rank)
    rank.record(kind=RecordKind.EVENT, event=EventCode.POOLS_AT_OOM, step=7, event_a=3 * GIB)
    assert summary(node).last_oom == first._replace(private_free_bytes=3 * GIB)
    assert summary(node).last_oom == first._replace(private_free_bytes=3 * GIB), "it stays"
    assert out_of_memory(rank) == summary(node).last_oom, "another error"
    other = out_of_memory(rank, device=1)
    assert summary(node).last_oom == other, "on another device"


def test_the_latest_of_several_devices_counts(node: FakeNode) -> None:
    rank = node.start_rank(devices=2)
    rank.record(device=0)
    rank.record(device=1)
    out_of_memory(rank, device=0, wanted_bytes=1)
    last = out_of_memory(rank, device=1, wanted_bytes=2)
    assert summary(node).last_oom == last


def test_a_clock_of_the_job_that_is_ahead_is_not_believed(node: FakeNode) -> None:
    rank = node.start_rank()
    rank.record()
    rank.record(kind=RecordKind.EVENT, event=EventCode.OUT_OF_MEMORY, wall_ns=int(9e18))
    oom = summary(node).last_oom
    assert oom is not None
    assert oom.at_unix_s == node.clock.unix_s()


def test_the_cap_is_what_the_probe_set_last(node: FakeNode) -> None:
    rank = node.start_rank(who=identity(limit_fraction=0.5))
    rank.record()
    assert summary(node).cap_fraction == 0.5, "as the rank claims"
    fraction_set(rank, 250_000)
    told = summary(node)
    assert (told.cap_fraction, told.limit_bytes) == (0.25, 20 * GIB)


def test_a_fraction_of_one_is_no_cap(node: FakeNode) -> None:
    rank = node.start_rank(who=identity(limit_fraction=0.5))
    rank.record()
    fraction_set(rank, 1_000_000)
    told = summary(node)
    assert (told.cap_fraction, told.limit_bytes) == (None, 80 * GIB)


def test_a_cap_in_the_allocators_own_settings_is_one(node: FakeNode) -> None:
    conf = "per_process_memory_fraction:0.25"
    rank = node.start_rank(who=identity(alloc_conf=conf, torch_version="2.13.0+cu130"))
    rank.record()
    told = summary(node)
    assert (told.cap_fraction, told.limit_bytes) == (0.25, 20 * GIB)
    fraction_set(rank, 500_000)
    assert summary(node).cap_fraction == 0.5, "a later call wins"
