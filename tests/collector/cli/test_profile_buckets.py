"""DDP's gradient buckets are C++'s: found in a snapshot by the sizes that DDP logs, of all that a process has."""

from __future__ import annotations

from types import SimpleNamespace

from tidegauge.cli.profile.block import parallel_models
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_recording import OwnedTensor
from tidegauge.core.snapshot_columns import PackedSnapshot
from tidegauge.probe.evidence.further_tensors import further_tensors
from tidegauge.probe.evidence.snapshot_packing import pack_columns
from tidegauge.probe.pacing import Pacer
from tidegauge.probe.runtime.rank_snapshot import RawSnapshot

MIB = 1 << 20
BASE = 0x7F0000000000
FRAME = {"name": "f", "filename": "train.py", "line": 1}


def snapshot(*blocks: tuple[int, int, str, bool]) -> PackedSnapshot:
    """Blocks behind one another: (size, requested, state, whether it has a stack)."""
    made = [
        {"size": size, "requested_size": requested, "state": state, "frames": [FRAME] * has_stack}
        for size, requested, state, has_stack in blocks
    ]
    size = sum(block[0] for block in blocks)
    segment = {"device": 0, "address": BASE, "total_size": size, "stream": 0, "segment_type": "large", "blocks": made}
    return pack_columns(RawSnapshot({"segments": [segment]}, {}, 0.0), Pacer())


def found_in(packed: PackedSnapshot, known: list[OwnedTensor], *sizes: int) -> list[OwnedTensor]:
    return list(further_tensors(packed, known, {}, sizes, lambda: None))


def test_as_many_blocks_of_a_size_as_there_are_buckets_are_communication() -> None:
    live, free = "active_allocated", "inactive"
    recorded = snapshot(
        (4 * MIB, 4 * MIB - 100, live, False),  # a parameter of the same size
        (4 * MIB, 4 * MIB - 100, live, True),
        (4 * MIB, 4 * MIB - 100, free, False),
        (4 * MIB, 4 * MIB - 100, live, False),
        (4 * MIB, 4 * MIB - 100, live, False),
        (4 * MIB, 4 * MIB - 50, live, False),
    )
    owned = [OwnedTensor(BASE + 512, MIB, Category.PARAMETERS)]
    found = found_in(recorded, owned, 4 * MIB - 100, 7, 7, 7)
    assert found == [OwnedTensor(BASE + 12 * MIB, 4 * MIB - 100, Category.COMMUNICATION)]
    assert found_in(recorded, owned) == []


class _Wrapped:
    pass


def test_models_in_data_parallel_are_found_though_nobody_gives_them() -> None:
    distributed = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 2)
    torch = SimpleNamespace(
        distributed=distributed, nn=SimpleNamespace(parallel=SimpleNamespace(DistributedDataParallel=_Wrapped))
    )
    model = _Wrapped()
    assert parallel_models(torch) == [model]
    distributed.is_initialized = lambda: False
    assert parallel_models(torch) == []
