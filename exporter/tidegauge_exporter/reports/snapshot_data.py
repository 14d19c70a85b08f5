"""A snapshot as data for the page's script: live memory, the map of segments and blocks, the history, and the stacks.

Each text, frame and stack is there once and is referred to by number, within the bounds of a page.
``report_page/src`` reads the columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidegauge.core.allocator.trace import Action, BlockState, KnownBlock, KnownSegment, Stack, Trace
from tidegauge.core.evidence import StackGrowth
from tidegauge.core.evidence.owners import CodeLine, asking_line, is_library
from tidegauge_exporter.messages.text import tidy

MAX_BLOCKS: Final = 100_000
"""Bound of blocks on the map; of a larger snapshot the largest segments are shown."""
MAX_EVENTS: Final = 100_000
"""Bound of events in the history; the newest are shown."""
GROWN: Final = 3
"""The state, beyond those of ``BlockState``, of a live block made since the early snapshot by a growing stack."""
FIRST_FRAMES: Final = 40
"""Frames that tell stacks apart: evidence keeps no more."""
MAX_STACKS: Final = 5000
"""Bound of different stacks on a page; blocks and events of further ones are shown without a stack."""
MAX_FRAMES: Final = 60
"""Bound of frames of one stack, from its innermost on."""
MAX_TEXT_CHARS: Final = 300
"""Bound of a function's or a file's name. Paths lose their beginning: their end identifies the file."""

NO_STACK: Final = -1

_RESERVES: Final = {
    Action.SEGMENT_ALLOC: 1,
    Action.SEGMENT_MAP: 1,
    Action.SEGMENT_FREE: -1,
    Action.SEGMENT_UNMAP: -1,
}

Weight = tuple[int, int, int]
"""Number of a stack, bytes and blocks."""


class StackNumbers:
    """Numbers of stacks. Names of files and functions, which jobs choose, are made short and visible."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._frames: dict[CodeLine, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._asking: list[int] = []
        """The frame of the user's own code in each stack, or -1."""
        self._table: list[tuple[int, int, int, int]] = []
        """Name, file and line of each frame, and 1 for a library."""

    def number(self, stack: Sequence[CodeLine]) -> int:
        """The number of ``stack``, innermost first; ``NO_STACK`` for an empty one, or without room for another."""
        shown = [_short(line) for line in stack[:MAX_FRAMES]]
        frames = tuple(self._frame(line) for line in shown)
        if not frames:
            return NO_STACK
        known = self._stacks.get(frames)
        if known is not None:
            return known
        if len(self._stacks) >= MAX_STACKS:
            return NO_STACK
        asking = asking_line(shown)
        self._asking.append(NO_STACK if asking is None else self._frame(asking))
        self._stacks[frames] = len(self._stacks)
        return self._stacks[frames]

    def table(self) -> dict[str, Any]:
        """All numbered texts, frames and stacks, for the page."""
        return {
            "texts": list(self._texts),
            "frames": self._table,
            "stacks": list(self._stacks),
            "asking": self._asking,
        }

    def _frame(self, line: CodeLine) -> int:
        known = self._frames.get(line)
        if known is None:
            known = self._frames[line] = len(self._table)
            library = int(is_library(line.filename))
            self._table.append((self._text(line.function), self._text(line.filename), line.line, library))
        return known

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))


def _short(line: CodeLine) -> CodeLine:
    """The line with short, visible texts."""
    return CodeLine(
        _visible(line.filename[-MAX_TEXT_CHARS:]), max(line.line, 0), _visible(line.function[:MAX_TEXT_CHARS])
    )


def _visible(text: str) -> str:
    """The visible text; the check comes first because nearly all of a hundred thousand texts are visible."""
    return text if text.isprintable() else tidy(text, MAX_TEXT_CHARS)


class PoolRow(NamedTuple):
    """Memory of the segments of one pool and stream, in bytes."""

    pool: tuple[int, int]
    stream: int
    segments: int
    reserved_bytes: int
    live_bytes: int
    pending_bytes: int
    """Bytes freed by their owners that wait for another stream."""
    largest_free_bytes: int

    @property
    def free_bytes(self) -> int:
        return self.reserved_bytes - self.live_bytes - self.pending_bytes


def code_lines(stack: Stack) -> tuple[CodeLine, ...]:
    return tuple(CodeLine(frame.filename, frame.line, frame.name) for frame in stack)


def pool_rows(segments: Sequence[KnownSegment]) -> list[PoolRow]:
    """Rows by pool and stream, the largest first."""
    groups: dict[tuple[tuple[int, int], int], list[KnownSegment]] = defaultdict(list)
    for segment in segments:
        groups[segment.pool, segment.stream].append(segment)
    rows = [_pool_row(pool, stream, group) for (pool, stream), group in groups.items()]
    return sorted(rows, key=lambda row: -row.reserved_bytes)


def _pool_row(pool: tuple[int, int], stream: int, segments: Sequence[KnownSegment]) -> PoolRow:
    sizes = {state: [block.size_bytes for block in _blocks(segments) if block.state is state] for state in BlockState}
    return PoolRow(
        pool,
        stream,
        len(segments),
        sum(segment.total_bytes for segment in segments),
        sum(sizes[BlockState.ACTIVE_ALLOCATED]),
        sum(sizes[BlockState.ACTIVE_PENDING_FREE]),
        max(sizes[BlockState.INACTIVE], default=0),
    )


def live_weights(trace: Trace, stacks: StackNumbers) -> list[Weight]:
    """Live blocks of a snapshot by stack, the largest first."""
    numbers = _numbered(trace, stacks)
    held: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for block in _live(trace):
        both = held[numbers(block.stack)]
        both[0] += block.size_bytes
        both[1] += 1
    return sorted(((stack, both[0], both[1]) for stack, both in held.items()), key=lambda weight: -weight[1])


def growth_weights(growth: Iterable[StackGrowth], stacks: StackNumbers) -> list[Weight]:
    """Growth, or live memory, by stack."""
    return [(stacks.number(one.stack), one.grown_bytes, one.blocks) for one in growth if one.grown_bytes > 0]


def memory_map(
    late: Trace, early: Trace | None, growth: Sequence[StackGrowth], stacks: StackNumbers
) -> dict[str, Any] | None:
    """Columns of segments and blocks in order of pool, stream and address; ``None`` without any."""
    shown = _largest(late.end or ())
    if not shown:
        return None
    shown.sort(key=lambda segment: (segment.pool, segment.stream, segment.address))
    numbers = _numbered(late, stacks)
    grown = _grown(late, early, growth)
    streams = {stream: place for place, stream in enumerate(dict.fromkeys(one.stream for one in shown))}
    pools = {pool: place for place, pool in enumerate(dict.fromkeys(one.pool for one in shown))}
    blocks = [block for segment in shown for block in segment.blocks]
    return {
        "streams": [str(stream) for stream in streams],
        "pools": [list(pool) for pool in pools],
        "segments": {
            "address": [f"{segment.address:x}" for segment in shown],
            "bytes": [segment.total_bytes for segment in shown],
            "stream": [streams[segment.stream] for segment in shown],
            "pool": [pools[segment.pool] for segment in shown],
            "large": [int(segment.is_large) for segment in shown],
            "expandable": [int(segment.is_expandable) for segment in shown],
            "blocks": [len(segment.blocks) for segment in shown],
        },
        "blocks": {
            "bytes": [block.size_bytes for block in blocks],
            "state": [GROWN if grown(block) else int(block.state) for block in blocks],
            "stack": [numbers(block.stack) for block in blocks],
        },
        "compared": early is not None,
        "left_out": len(late.end or ()) - len(shown),
    }


def history(trace: Trace, stacks: StackNumbers) -> dict[str, Any] | None:
    """The events as changes of allocated and of reserved bytes, and what both were before the first of them.

    Counted back from the blocks and segments at the end, in bytes as requested. ``None`` without events.
    """
    if not len(trace):
        return None
    first = max(len(trace) - MAX_EVENTS, 0)
    frees = Action.FREE_REQUESTED if Action.FREE_REQUESTED in trace.action else Action.FREE_COMPLETED
    signs = {Action.ALLOC: 1, frees: -1}
    told = {*signs, *_RESERVES, Action.OOM}
    kept = [place for place in range(first, len(trace)) if trace.action[place] in told]
    allocated = [_change(trace, place, signs) for place in kept]
    reserved = [_change(trace, place, _RESERVES) for place in kept]
    live_bytes = sum(block.requested_bytes or block.size_bytes for block in _live(trace))
    held_bytes = sum(segment.total_bytes for segment in trace.end or ())
    numbers = _numbered(trace, stacks)
    return {
        "time_us": _gaps([trace.time_us[place] for place in kept]) if trace.time_us else None,
        "allocated": allocated,
        "reserved": reserved,
        "stack": [numbers(trace.stack[place]) for place in kept] if trace.stack else None,
        "ooms": [at for at, place in enumerate(kept) if trace.action[place] == Action.OOM],
        "allocated_before": max(live_bytes - sum(allocated), 0),
        "reserved_before": max(held_bytes - sum(reserved), 0),
        "left_out": first,
    }


def _change(trace: Trace, place: int, signs: Mapping[Action, int]) -> int:
    """The bytes that an event adds."""
    return signs.get(Action(trace.action[place]), 0) * trace.size_bytes[place]


def _gaps(times_us: Sequence[int]) -> list[int]:
    """Microseconds since the previous event, 0 after a clock was set back."""
    return [max(here - before, 0) for before, here in zip([*times_us[:1], *times_us[:-1]], times_us, strict=True)]


def _largest(segments: Sequence[KnownSegment]) -> list[KnownSegment]:
    """The segments with as many blocks as a page shows, the largest ones."""
    shown, left = [], MAX_BLOCKS
    for segment in sorted(segments, key=lambda one: -one.total_bytes):
        left -= max(len(segment.blocks), 1)
        if left < 0:
            break
        shown.append(segment)
    return shown


def _grown(late: Trace, early: Trace | None, growth: Sequence[StackGrowth]) -> Callable[[KnownBlock], bool]:
    """The predicate of blocks that are live, were not at the early snapshot, and come from a growing stack."""
    if early is None:
        return lambda _: False
    before = {(block.address, block.size_bytes, _beginning(early, block)) for block in _live(early)}
    growing = {one.stack[:FIRST_FRAMES] for one in growth if one.grown_bytes > 0}

    def grown(block: KnownBlock) -> bool:
        if block.state is not BlockState.ACTIVE_ALLOCATED:
            return False
        beginning = _beginning(late, block)
        return beginning in growing and (block.address, block.size_bytes, beginning) not in before

    return grown


def _beginning(trace: Trace, block: KnownBlock) -> tuple[CodeLine, ...]:
    return () if block.stack is None else code_lines(trace.stacks[block.stack][:FIRST_FRAMES])


def _numbered(trace: Trace, stacks: StackNumbers) -> Callable[[int | None], int]:
    """The page's number of a stack of ``trace``, each computed once."""
    known: dict[int | None, int] = {None: NO_STACK, -1: NO_STACK}

    def number(stack: int | None) -> int:
        if stack not in known:
            assert stack is not None
            known[stack] = stacks.number(code_lines(trace.stacks[stack]))
        return known[stack]

    return number


def _live(trace: Trace) -> Iterator[KnownBlock]:
    return (block for block in _blocks(trace.end or ()) if block.state is BlockState.ACTIVE_ALLOCATED)


def _blocks(segments: Iterable[KnownSegment]) -> Iterator[KnownBlock]:
    return (block for segment in segments for block in segment.blocks)
