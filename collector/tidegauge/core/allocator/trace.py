"""A recorded stream of allocator events: the columns of a snapshot's ``device_traces``, whatever file they came from.

Columns are ``array.array``: compact, of the standard library, and readable without a copy by what is compiled.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, Optional


class Action(IntEnum):
    """The kind of an event, named as ``torch.cuda.memory._snapshot()["device_traces"][d][i]["action"]``."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    WORKSPACE_SNAPSHOT = 9


class BlockState(IntEnum):
    """The state of a block in a segment, named as the snapshot's ``blocks[i]["state"]``, lower case."""

    INACTIVE = 0
    ACTIVE_ALLOCATED = 1
    ACTIVE_PENDING_FREE = 2
    """Freed by its owner; the allocator waits for events of other streams (``record_stream``)."""


class KnownBlock(NamedTuple):
    """A block of a segment, in bytes."""

    address: int
    size_bytes: int
    requested_bytes: int
    """As asked for; 0 where the block is inactive (a snapshot then holds the stale figure of its last use)."""
    state: BlockState
    stack: Optional[int] = None
    """Index into ``Trace.stacks``: where it was allocated."""


class KnownSegment(NamedTuple):
    """A segment as a snapshot lists it: one ``cudaMalloc``, or one contiguous mapped range of an expandable segment."""

    address: int
    total_bytes: int
    stream: int
    is_large: bool
    is_expandable: bool
    pool: tuple[int, int]
    """``segment_pool_id``: (0, 0) is the default pool, others belong to CUDA graphs and ``MemPool``."""
    blocks: tuple[KnownBlock, ...]
    """In order of address, covering the segment. Empty where the file names no blocks."""


class Frame(NamedTuple):
    """A stack frame. Never trusted: a snapshot may contain anything."""

    name: str
    filename: str
    line: int


Stack = tuple[Frame, ...]
"""Innermost first, as torch records it."""


@dataclass(frozen=True)
class Trace:
    """The events of one device in order, with the state and settings known around them.

    The columns have one entry an event. ``address`` of ``OOM`` is what the device had free (``device_free``);
    ``size_bytes`` is as requested for ``ALLOC`` and ``FREE_*``, of the segment for ``SEGMENT_*``, rounded for ``OOM``.
    """

    action: array[int]
    """``Action`` codes, typecode ``B``."""
    address: array[int]
    """Bytes, typecode ``Q``."""
    size_bytes: array[int]
    """Typecode ``Q``."""
    stream: array[int]
    """Index into ``streams``, typecode ``H``."""
    time_us: array[int]
    """Unix microseconds, typecode ``q``; empty where the recording has no clock."""
    pool: array[int]
    """Index into ``pools``, typecode ``H``; empty where the recording names no pools (torch before 2.12)."""
    stack: array[int]
    """Index into ``stacks`` or -1, typecode ``i``; empty where the recording has no stacks."""
    streams: tuple[int, ...] = (0,)
    """The stream handles (``cudaStream_t``) of this recording. Their order matters: it is part of the best fit."""
    pools: tuple[tuple[int, int], ...] = ((0, 0),)
    stacks: tuple[Stack, ...] = ()
    device: int = 0
    torch_version: Optional[str] = None
    """``torch.__version__`` of the process, where the recording says it."""
    alloc_conf: str = ""
    """The allocator settings in force, as in ``PYTORCH_ALLOC_CONF``."""
    cap_bytes: Optional[int] = None
    """What ``set_per_process_memory_fraction`` allowed; ``None``: no cap is known."""
    total_bytes: Optional[int] = None
    """``totalGlobalMem`` of the device, where the recording says it."""
    complete: bool = True
    """Whether the first event is the process's first; otherwise ``start`` is what lived before it."""
    start: tuple[KnownSegment, ...] = ()
    """In the order in which they were made, as far as it is known: from torch 2.13 it decides between equal blocks."""
    end: Optional[tuple[KnownSegment, ...]] = None
    """The segments after the last event; ``None`` where the file does not list them."""
    marks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Places in the trace, as event indices: ``marks["step"]`` is where each training step ended, where it is known."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """What was left out, by reason for people, and how often. Never silently: whoever shows a figure shows these."""
    lost_events: Optional[int] = None
    """Events of this recording that are gone from its beginning; 0 when complete, ``None`` when not known."""
    metadata: array[int] = field(default_factory=lambda: array("i"))
    """Index into ``words`` or -1, typecode ``i``: the event's ``user_metadata``; empty where no event has any."""
    words: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.action)

    def first(self, count: int) -> Trace:
        """Its first ``count`` events, as if the recording had ended there: what held at its end is not known then."""
        return replace(self._part(slice(count)), end=None)

    def since(self, event: int) -> Trace:
        """Its events from ``event`` on, as a ring that has lost those before: what lived at their beginning is to be
        found out anew."""
        return replace(self._part(slice(event, None)), complete=False, start=(), lost_events=None)

    def _part(self, part: slice) -> Trace:
        """The same with a part of the events; what is known of their ends is not changed."""
        return replace(
            self,
            action=self.action[part],
            address=self.address[part],
            size_bytes=self.size_bytes[part],
            stream=self.stream[part],
            time_us=self.time_us[part],
            pool=self.pool[part],
            stack=self.stack[part],
            metadata=self.metadata[part],
            marks={},
        )


class TraceError(ValueError):
    """Events contradict each other or are impossible, so no figure may rest on them. The text is for people."""

    def __init__(self, event: int, reason: str) -> None:
        super().__init__(f"event {event:,}: {reason}")
        self.event = event
        """Index into the trace."""
