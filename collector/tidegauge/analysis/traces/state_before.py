"""What lived before a trace's first event: the state at its end, played backwards through the events.

PyTorch's history is a ring that does not say what it has lost. But a snapshot lists every block at its end, and each
event undoes: before an ``alloc`` its block was free, before a ``free_completed`` it was there. What is left when the
first event is undone was there before it. Nothing left: the trace is complete.

What stays unknown: how long free blocks had been free, for the garbage collector; in which order they were made, for
ties from torch 2.12 on (``segment_order`` finds out what can be); and what ``block_sizes`` says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.traces.block_sizes import HeldBlock, Lived, with_all_blocks
from tidegauge.analysis.traces.mapped_ranges import MappedRanges
from tidegauge.core.allocator.conf import parse_settings
from tidegauge.core.allocator.settings import AllocatorSettings
from tidegauge.core.allocator.trace import Action, BlockState, KnownSegment, Trace
from tidegauge.core.allocator_sizes import SMALL_SEGMENT_BYTES


def with_start(trace: Trace) -> Trace:
    """The trace with ``complete``, ``start`` and ``lost_events`` as its end and its events tell.

    Raises ``BadTraceError`` where they contradict each other, with the event: a history without some actions
    (``skip_actions``), switched off in between, or changed.
    """
    if trace.end is None:
        raise BadTraceError("does not list the segments at its end, so what lived before its first event is not known")
    past = _Past(trace)
    for event in range(len(trace) - 1, -1, -1):
        past.undo(event)
    start = with_all_blocks(past.held(), trace, _settings(trace))
    if not start:
        return replace(trace, complete=True, start=(), lost_events=0)
    return replace(trace, complete=False, start=start, lost_events=None)


def _settings(trace: Trace) -> AllocatorSettings:
    try:
        return parse_settings(trace.alloc_conf, trace.torch_version)
    except ValueError as error:
        raise BadTraceError(f"was recorded under settings that are not known here: {error}") from error


class _Past:
    """The allocator's state before an event, for one event after the other, the last first."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._live: dict[int, Lived] = {}
        self._fixed: dict[int, KnownSegment] = {}
        self._mapped = MappedRanges()
        for segment in trace.end or ():
            self._add_segment(segment)

    def _add_segment(self, segment: KnownSegment) -> None:
        if segment.is_expandable:
            self._mapped.add(segment, kind_is_known=True)
        else:
            self._fixed[segment.address] = segment._replace(blocks=())
        for block in segment.blocks:
            if block.state is not BlockState.INACTIVE:
                self._live[block.address] = Lived(block.requested_bytes, block.size_bytes, block.state, block.stack)

    def undo(self, event: int) -> None:
        """Go back before ``event``."""
        trace = self._trace
        action, address, size_bytes = trace.action[event], trace.address[event], trace.size_bytes[event]
        if action == Action.ALLOC:
            gone = self._live.pop(address, None)
            if gone is None or gone.state is not BlockState.ACTIVE_ALLOCATED:
                self._contradiction(event, "the block is freed twice, or not there, in what comes after")
        elif action == Action.FREE_REQUESTED:
            pending = self._live.get(address)
            if pending is None or pending.state is not BlockState.ACTIVE_PENDING_FREE:
                self._contradiction(event, "the block's free is not completed in what comes after")
            self._live[address] = pending._replace(state=BlockState.ACTIVE_ALLOCATED)
        elif action == Action.FREE_COMPLETED:
            if address in self._live:
                self._contradiction(event, "the block is still there in what comes after")
            self._live[address] = Lived(size_bytes, None, BlockState.ACTIVE_PENDING_FREE, None)
        elif action == Action.SEGMENT_ALLOC:
            segment = self._fixed.pop(address, None)
            if segment is None or segment.total_bytes != size_bytes:
                self._contradiction(event, "the segment is not there, or has another size, in what comes after")
        elif action == Action.SEGMENT_FREE:
            if address in self._fixed:
                self._contradiction(event, "the segment is still there in what comes after")
            self._fixed[address] = self._segment(event, is_expandable=False)
        elif action == Action.SEGMENT_MAP:
            if not self._mapped.remove(address, size_bytes):
                self._contradiction(event, "the range is not mapped in what comes after")
        elif action == Action.SEGMENT_UNMAP and not self._mapped.add(
            self._segment(event, is_expandable=True), kind_is_known=False
        ):
            self._contradiction(event, "the range is still mapped in what comes after")

    def _segment(self, event: int, *, is_expandable: bool) -> KnownSegment:
        """The segment that was given back at ``event``: small ones are of 2 MiB, large ones at least of 10."""
        trace = self._trace
        return KnownSegment(
            address=trace.address[event],
            total_bytes=trace.size_bytes[event],
            stream=trace.streams[trace.stream[event]],
            is_large=trace.size_bytes[event] > SMALL_SEGMENT_BYTES,
            is_expandable=is_expandable,
            pool=trace.pools[trace.pool[event]] if trace.pool else (0, 0),
            blocks=(),
        )

    def _contradiction(self, event: int, what: str) -> NoReturn:
        action = Action(self._trace.action[event]).name.lower()
        raise BadTraceError(
            f"event {event:,} of device {self._trace.device} ({action} at {self._trace.address[event]:#x}) does not "
            f"fit: {what}. The history lacks events: it was recorded without some actions, or switched off in between"
        )

    def held(self) -> list[HeldBlock]:
        """The segments before the first event, by address, each with the blocks that lived in it."""
        blocks = sorted(self._live.items())
        done = 0
        held: list[HeldBlock] = []
        for segment in sorted((*self._fixed.values(), *self._mapped.segments())):
            end = segment.address + segment.total_bytes
            if held and held[-1].end > segment.address:
                raise BadTraceError(f"two segments overlap at {segment.address:#x} before the first event")
            first = done
            while done < len(blocks) and blocks[done][0] < end:
                done += 1
            held.append(HeldBlock(segment, dict(blocks[first:done])))
        if done < len(blocks):
            raise BadTraceError(
                f"before the first event of device {self._trace.device} a block lived at {blocks[done][0]:#x}, outside "
                "all segments: the history lacks events, or they were changed"
            )
        return held
