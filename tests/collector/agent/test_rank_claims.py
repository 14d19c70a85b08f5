"""What a process gains by rewriting its ring: no neighbour, nobody's name, no crowd of ranks, none of our memory."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_node import GIB, UUID0, UUID1, FakeNode, FakeRank, gpu_reading, identity
from tidegauge.agent.ranks.names import MAX_LABELS, MAX_NAMES
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, ProcessId, RankKey
from tidegauge.core.incidents.observations import is_neighbour
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.samples import Sample
from tidegauge.core.views import RankView

Says = Callable[[int], dict[str, object]]

DEVICES = 12
PID = 4242
SOMEBODY_ELSE = 1 << 20
ON_OWN_CARD = (gpu_reading(UUID0, 0, processes={PID: 7 * GIB}), gpu_reading(UUID1, 1, processes={99: 30 * GIB}))
GONE_FROM_IT = (gpu_reading(UUID0, 0), gpu_reading(UUID1, 1, processes={99: 30 * GIB}))


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "run", readings=ON_OWN_CARD)


def only_rank(node: FakeNode) -> RankView:
    [rank] = node.agent.view().ranks
    return rank


def is_seen_as_neighbour(node: FakeNode) -> bool:
    rank = only_rank(node).summary()
    return rank.uuid == UUID1 and is_neighbour(rank, Tenant(SOMEBODY_ELSE))


def reserve_most(node: FakeNode, rank: FakeRank, device: int, reserved: float) -> None:
    rank.record(device=device, reserved=int(reserved))
    node.poll()


def test_rank_claim_of_another_gpu_makes_no_neighbour_of_a_rank_that_left_its_own(node: FakeNode) -> None:
    """Each of its devices had a figure of the card that it was on; each in turn is shown on the victim's."""
    rank = node.start_rank(devices=DEVICES, who=identity(device_uuids=(UUID0,) * DEVICES))
    reserved = float(1 << 20)
    for device in range(DEVICES):
        reserved *= 1.3
        for _ in range(3):
            reserve_most(node, rank, device, reserved)
        assert only_rank(node).nontorch_bytes is not None
    node.gpus.readings = GONE_FROM_IT
    rank.publish(identity(device_uuids=(UUID1,) * DEVICES))
    seen = []
    for device in range(DEVICES):
        reserved *= 1.3
        reserve_most(node, rank, device, reserved)
        seen.append((only_rank(node).uuid, is_seen_as_neighbour(node)))
    assert seen == [(UUID1, False)] * DEVICES


def test_a_figure_stays_with_the_gpu_that_it_was_read_on(node: FakeNode) -> None:
    """Listed on both cards it may choose by its claim where it is shown; what it holds is what it holds there."""
    rank = node.start_rank()
    for _ in range(3):
        rank.record()
        node.poll()
    assert only_rank(node).nontorch_bytes == GIB
    node.gpus.readings = (ON_OWN_CARD[0], gpu_reading(UUID1, 1, processes={PID: 9 * GIB}))
    rank.publish(identity(device_uuids=(UUID1,)))
    seen = []
    for _ in range(2):
        rank.record()
        node.poll()
        seen.append((only_rank(node).uuid, only_rank(node).nontorch_bytes))
    assert seen == [(UUID1, None), (UUID1, 3 * GIB)]


def test_another_device_of_a_rank_is_measured_from_when_it_is_shown(tmp_path: Path) -> None:
    readings = (gpu_reading(UUID0, 0, processes={PID: 7 * GIB}), gpu_reading(UUID1, 1, processes={PID: 13 * GIB}))
    node = FakeNode(tmp_path / "run", readings=readings)
    rank = node.start_rank(devices=2, who=identity(device_uuids=(UUID0, UUID1)))
    for _ in range(3):
        reserve_most(node, rank, 0, 6 * GIB)
    assert (only_rank(node).gpu, only_rank(node).nontorch_bytes) == (0, GIB)
    for _ in range(3):
        reserve_most(node, rank, 1, 12 * GIB)
    assert (only_rank(node).gpu, only_rank(node).nontorch_bytes) == (1, GIB)


# --- names


@pytest.mark.skipif(os.getuid() != 0, reason="needs files of two users")
def test_rank_claim_with_a_guessable_name_does_not_hide_the_owners_rank(node: FakeNode) -> None:
    who = identity(job_id=JobId("torchrun-node-a-29500"))
    victim = node.start_rank(process=ProcessId(10, 300), who=who)
    thief = node.start_rank_of(4321, ProcessId(9, 200), who=who)
    for _ in range(3):
        victim.record(reserved=GIB)
        thief.record(reserved=70 * GIB)
        node.poll()
    told = node.agent.summary(node_id="n1", incarnation="i1", metrics_address=None).ranks
    assert {(rank.process, rank.uid) for rank in told} == {(victim.process, victim.uid), (thief.process, 4321)}


def test_a_process_is_a_handful_of_ranks_at_most(node: FakeNode) -> None:
    rank = node.start_rank(slurm_job_id="77")
    seen = set()
    for number in range(50):
        rank.publish(identity(rank=GlobalRank(number), world_size=50))
        rank.record()
        node.poll()
        seen.add(only_rank(node).key)
    assert len(seen) == MAX_NAMES
    assert only_rank(node).identity.rank == MAX_NAMES - 1
    assert node.agent.view().claims_overruled["rank"] == 1


def test_a_name_that_a_process_had_is_no_new_one(node: FakeNode) -> None:
    rank = node.start_rank(slurm_job_id="77")
    for number in (*range(MAX_NAMES), 0):
        rank.publish(identity(rank=GlobalRank(number), world_size=50, limit_fraction=0.5))
        rank.record()
        node.poll()
    assert (only_rank(node).identity.rank, only_rank(node).identity.limit_fraction) == (0, 0.5)
    assert "rank" not in node.agent.view().claims_overruled


def test_rank_claims_count_changes_of_attempt_and_local_rank_as_names(node: FakeNode) -> None:
    rank = node.start_rank()
    seen = set()
    for number in range(20):
        rank.publish(identity(attempts_each=1 + number % 7, local_rank=LocalRank(number)))
        rank.record()
        node.poll()
        who = only_rank(node).identity
        seen.add((who.attempts_each, who.local_rank))
    assert len(seen) == MAX_NAMES


def test_beyond_its_last_name_all_else_that_a_process_says_is_believed(node: FakeNode) -> None:
    """A framework that ranks its processes anew registers its callback for checkpoints all the same."""
    rank = node.start_rank(slurm_job_id="77")
    for number in range(MAX_NAMES + 1):
        rank.publish(identity(rank=GlobalRank(number), world_size=50, limit_fraction=0.5))
        rank.record()
        node.poll()
    rank.publish(identity(rank=GlobalRank(1), local_rank=LocalRank(9), world_size=2, checkpoint="callback"))
    rank.record()
    node.poll()
    who = only_rank(node).identity
    assert (who.rank, who.local_rank, who.world_size) == (MAX_NAMES - 1, LocalRank(0), MAX_NAMES)
    assert (who.checkpoint, who.limit_fraction) == ("callback", None)


@pytest.mark.parametrize(
    "says",
    [
        lambda number: {"device_uuids": (DeviceUuid(f"GPU-{number:032x}"),)},
        lambda number: {"alloc_conf": f"max_split_size_mb:{number + 20}"},
        lambda number: {"torch_version": f"2.{number}"},
        lambda number: {"job_name": f"job {number}"},
        lambda number: {"profile": f"level{number}"},
        lambda number: {"world_size": 1 + number},
    ],
)
def test_rank_claims_bound_label_changes_of_a_process(node: FakeNode, says: Says) -> None:
    """Each change makes all its series new ones."""
    rank = node.start_rank(slurm_job_id="77")
    seen = set()
    for number in range(3 * MAX_LABELS):
        rank.publish(identity(**says(number)))
        rank.record()
        node.poll()
        seen.add(only_rank(node).identity._replace(limit_fraction=None))
    assert len(seen) == MAX_LABELS
    assert node.agent.view().claims_overruled["labels"] == 1


def test_a_new_ring_of_the_same_process_brings_no_new_names(node: FakeNode) -> None:
    seen: set[RankKey] = set()
    for number in range(3 * MAX_NAMES):
        who = identity(rank=GlobalRank(number), world_size=50)
        rank = node.start_rank(who=who)
        rank.record()
        node.poll()
        node.poll()
        seen.update(view.key for view in node.agent.view().ranks)
        rank.path.unlink()
        node.poll()
    assert len(seen) == MAX_NAMES


# --- a rank that is not judged any more


def test_a_rank_that_is_not_judged_any_more_keeps_no_records(node: FakeNode) -> None:
    rank = node.start_rank(devices=2)
    rank.record()
    node.poll()
    node.detectors[0].fails = True
    kept = []
    for _ in range(10):
        for _ in range(5):
            rank.record()
            rank.record(device=1)
        node.poll()
        kept.append(sum(isinstance(each, Sample) for each in gc.get_objects()))
    assert kept[-1] <= kept[1]
    assert only_rank(node).step == 51
