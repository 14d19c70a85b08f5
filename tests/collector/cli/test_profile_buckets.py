"""DDP's gradient buckets are C++'s: they are found in a snapshot by the sizes that DDP logs."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from tidegauge.cli.profile.block import bucket_memory, bucket_sizes
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.step_profile import OwnedMemory

MIB = 1 << 20
BASE = 0x7F0000000000


def snapshot(*blocks: tuple[int, int, str, bool]) -> dict[str, Any]:
    """Blocks behind one another: (size, requested, state, whether it has a stack)."""
    made = [
        {"size": size, "requested_size": requested, "state": state, "frames": [{"name": "f"}] * has_stack}
        for size, requested, state, has_stack in blocks
    ]
    return {"segments": [{"address": BASE, "blocks": made}]}


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
    owned = [OwnedMemory(BASE + 512, Category.PARAMETERS)]
    found = bucket_memory(recorded, owned, {4 * MIB - 100: 1, 7: 3})
    assert found == [OwnedMemory(BASE + 12 * MIB, Category.COMMUNICATION)]
    assert bucket_memory(recorded, owned, {}) == []


class _Wrapped:
    def __init__(self, **log: object) -> None:
        self._log = log

    def _get_ddp_logging_data(self) -> dict[str, object]:
        return self._log


def test_sizes_are_those_of_the_buckets_that_ddp_made_again_after_its_first_step() -> None:
    distributed = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 2)
    torch = SimpleNamespace(
        distributed=distributed, nn=SimpleNamespace(parallel=SimpleNamespace(DistributedDataParallel=_Wrapped))
    )
    models = [
        _Wrapped(bucket_sizes="50380800", rebuilt_bucket_sizes="4198400, 29388800, 4198400"),
        _Wrapped(bucket_sizes="512"),
        _Wrapped(),
    ]
    assert bucket_sizes(torch) == Counter({4198400: 2, 29388800: 1, 512: 1})
    distributed.is_initialized = lambda: False
    assert not bucket_sizes(torch)
    assert len(models) == 3
