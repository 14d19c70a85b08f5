"""A recording as data for the profile page's script: the life of each block, the segments, and the stacks.

From these columns ``profile/recording.js`` tells what is allocated at any event, and what a range of events leaves
behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegauge.core.allocator.trace import Action, Trace
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.reports.snapshot_data import StackNumbers, code_lines

if TYPE_CHECKING:
    from tidegauge.analysis.profile.recording import NamedBlock, NamedRecording

MAX_EVENTS: Final = 100_000
"""Bound of events on a page. Of a longer recording it has the newest, or those around the peak if it is older."""
MAX_BLOCKS: Final = 200_000
"""Bound of blocks on a page; a recording with more of them in its events has a page without them."""
MAX_NAME_CHARS: Final = 400
NEVER: Final = 0
"""As a duration in events: beyond the last one."""
_BEFORE: Final = -1


class SegmentLife(NamedTuple):
    """Memory that the allocator had from the device, from one event to another."""

    address: int
    size_bytes: int
    made: int
    """Its event; -1: it was there."""
    freed: int | None
    stream: int


def recording_data(recording: NamedRecording, *, peak_event: int) -> dict[str, Any] | None:
    """Columns in order of allocation. ``None``: more blocks than a page has room for."""
    first, end = _window(len(recording.trace), peak_event)
    blocks = [one for one in recording.blocks if _is_in(one.block.made, one.block.freed, first, end)]
    if len(blocks) > MAX_BLOCKS:
        return None
    blocks.sort(key=lambda one: one.block.made)
    segments = [one for one in segment_lives(recording.trace) if _is_in(one.made, one.freed, first, end)]
    places = [one.address for one in segments] + [one.block.address for one in blocks]
    base = min(places, default=0)
    stacks, modules = StackNumbers(), _Numbers()
    numbers: dict[int, int] = {-1: -1}
    for one in blocks:
        if one.block.stack not in numbers:
            numbers[one.block.stack] = stacks.number(code_lines(recording.trace.stacks[one.block.stack]))
    return {
        "first": first,
        "end": end,
        "peak": peak_event,
        "categories": [category.value for category in Category],
        "phases": [phase.value for phase in StepPhase],
        "stretches": [
            [max(one.begin, first), list(StepPhase).index(one.phase)]
            for one in recording.stretches
            if one.begin < end and one.end > first
        ],
        "base": f"{base:x}",
        "blocks": _block_columns(blocks, first, base, numbers, modules),
        "segments": {
            "address": [one.address - base for one in segments],
            "bytes": [one.size_bytes for one in segments],
            "made": [_since(one.made, first) for one in segments],
            "freed": [_duration(one.made, one.freed, first) for one in segments],
            "stream": [one.stream for one in segments],
        },
        "modules": [tidy(path, MAX_NAME_CHARS) for path in modules.known],
        "stacks": stacks.table(),
        "left_out": len(recording.trace) - (end - first),
    }


def _block_columns(
    blocks: Iterable[NamedBlock], first: int, base: int, numbers: dict[int, int], modules: _Numbers
) -> dict[str, list[int]]:
    categories = {category: place for place, category in enumerate(Category)}
    columns: dict[str, list[int]] = {
        name: [] for name in ("made", "lives", "address", "asked", "rounding", "category", "module", "stack")
    }
    before = _BEFORE
    for block, category, _, module, _ in blocks:
        made = _since(block.made, first)
        row = (
            made - before,
            _duration(block.made, block.freed, first),
            block.address - base,
            block.requested_bytes,
            block.size_bytes - block.requested_bytes,
            categories[category],
            _BEFORE if module is None else modules.number(module),
            numbers[block.stack],
        )
        before = made
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    return columns


def segment_lives(trace: Trace) -> list[SegmentLife]:
    """The segments of a trace that begins with its ``start``, and the mapped ranges of expandable ones."""
    alive = {one.address: SegmentLife(one.address, one.total_bytes, _BEFORE, None, one.stream) for one in trace.start}
    gone: list[SegmentLife] = []
    for event, action in enumerate(trace.action):
        address, size_bytes = trace.address[event], trace.size_bytes[event]
        if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            alive[address] = SegmentLife(address, size_bytes, event, None, trace.streams[trace.stream[event]])
        elif action == Action.SEGMENT_FREE and address in alive:
            gone.append(alive.pop(address)._replace(freed=event))
        elif action == Action.SEGMENT_UNMAP:
            _unmap(alive, gone, address, address + size_bytes, event)
    return sorted([*gone, *alive.values()])


def _unmap(alive: dict[int, SegmentLife], gone: list[SegmentLife], begin: int, end: int, event: int) -> None:
    """A range of an expandable segment goes back; what is beside it stays."""
    for one in [one for one in alive.values() if one.address < end and one.address + one.size_bytes > begin]:
        del alive[one.address]
        left, right = max(one.address, begin), min(one.address + one.size_bytes, end)
        gone.append(one._replace(address=left, size_bytes=right - left, freed=event))
        for start, stop in ((one.address, left), (right, one.address + one.size_bytes)):
            if stop > start:
                alive[start] = one._replace(address=start, size_bytes=stop - start)


def _window(events: int, peak_event: int) -> tuple[int, int]:
    """The first event that a page shows, and the one behind the last."""
    first = max(min(events - MAX_EVENTS, peak_event - MAX_EVENTS // 2), 0)
    return first, min(first + MAX_EVENTS, events)


def _is_in(made: int, freed: int | None, first: int, end: int) -> bool:
    return made < end and (freed is None or freed >= first)


def _since(event: int, first: int) -> int:
    """-1: before the first event shown."""
    return max(event - first, _BEFORE)


def _duration(made: int, freed: int | None, first: int) -> int:
    return NEVER if freed is None else freed - first - _since(made, first)


class _Numbers:
    """Numbers of texts in order of their first use."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.known.setdefault(text, len(self.known))
