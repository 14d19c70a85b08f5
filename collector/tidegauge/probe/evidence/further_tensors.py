"""Tensors that no name of the model's leads to: DDP's buckets, whose addresses only C++ knows, and what the program
holds beside the model. Told in a snapshot by their sizes. Source-compatible with Python 3.9.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_recording import OwnedTensor
from tidegauge.core.snapshot_columns import PackedSnapshot
from tidegauge.core.text import one_line
from tidegauge.probe.evidence.module_paths import MAX_NAME_CHARS
from tidegauge.probe.evidence.snapshot_packing import ACTIVE_ALLOCATED


def further_tensors(
    packed: PackedSnapshot,
    known: Sequence[OwnedTensor],
    others: Mapping[int, tuple[int, str]],
    bucket_bytes: Sequence[int],
    pace: Callable[[], None],
) -> Iterator[OwnedTensor]:
    """Blocks without a stack that nothing of the model's is in: ``others`` that are still there, by their sizes, and as
    many of the size of a bucket of ``DistributedDataParallel`` as there are buckets."""
    left = Counter(bucket_bytes)
    owned = sorted(one.address for one in known)
    for one in packed.devices:
        at = 0
        for address, count in zip(one.segments["address"], one.segments["blocks"]):
            for index in range(at, at + count):
                requested_bytes = one.blocks["requested_bytes"][index]
                is_unknown = one.blocks["state"][index] == ACTIVE_ALLOCATED and one.blocks["stack"][index] < 0
                next_owned = bisect_left(owned, address)
                end = address + one.blocks["size_bytes"][index]
                is_owned = next_owned < len(owned) and owned[next_owned] < end
                if is_unknown and not is_owned:
                    size_bytes, name = others.get(address, (0, ""))
                    if size_bytes == requested_bytes:
                        yield OwnedTensor(address, size_bytes, Category.OTHER, one_line(name[-MAX_NAME_CHARS:]))
                    elif left[requested_bytes] > 0:
                        left[requested_bytes] -= 1
                        yield OwnedTensor(address, requested_bytes, Category.COMMUNICATION)
                address = end
                pace()
            at += count
