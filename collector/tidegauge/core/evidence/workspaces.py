"""cuBLAS workspaces: PyTorch keeps one for each pair of stream and handle, for ever, so their number is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, Optional

from tidegauge.core.evidence.owners import CUBLAS_WORKSPACE_BYTES

POOL_STREAMS = 32
"""``torch.cuda.Stream()`` hands out so many of a device and a priority, in turn (``kStreamsPerPool``)."""
MAX_HANDLES = 2
"""On one stream: of the training thread and of autograd's."""
MIN_NEW_STREAMS = 2
_DEFAULT_STREAM = 0

BlockOnStream = tuple[int, int]
"""Bytes as they were asked for, and the stream whose memory it is."""


class Workspaces(NamedTuple):
    """Workspaces in a snapshot that has more of them than an earlier one."""

    block_bytes: int
    blocks: int
    streams: int
    grown_bytes: int
    most_blocks: int
    """With a stream pool that is handed out in full."""


def grown_workspaces(early: Iterable[BlockOnStream], late: Iterable[BlockOnStream]) -> Optional[Workspaces]:
    """Blocks of the size of a workspace, of which ever more streams have one or two; ``None``: there are no such, or
    more streams have one than PyTorch's pool hands out."""
    before, after = _by_size(early), _by_size(late)
    found = [_grown(size, before.get(size, Counter()), blocks) for size, blocks in after.items()]
    return max((one for one in found if one is not None), key=lambda one: one.grown_bytes, default=None)


def _by_size(blocks: Iterable[BlockOnStream]) -> dict[int, Counter[int]]:
    by_size: dict[int, Counter[int]] = {}
    for size_bytes, stream in blocks:
        if size_bytes in CUBLAS_WORKSPACE_BYTES:
            by_size.setdefault(size_bytes, Counter())[stream] += 1
    return by_size


def _grown(size_bytes: int, before: Counter[int], after: Counter[int]) -> Optional[Workspaces]:
    pool = Counter({stream: count for stream, count in after.items() if stream != _DEFAULT_STREAM})
    grown = sum(after.values()) - sum(before.values())
    new_streams = len(after.keys() - before.keys())
    if new_streams < MIN_NEW_STREAMS or grown > MAX_HANDLES * new_streams:
        return None
    if len(pool) > POOL_STREAMS or max(after.values()) > MAX_HANDLES:
        return None
    most = after[_DEFAULT_STREAM] + max(pool.values()) * POOL_STREAMS
    return Workspaces(size_bytes, sum(after.values()), len(after), grown * size_bytes, most)
