"""Groups a snapshot's blocks by allocating stack, for comparisons and flame graphs."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidegauge.core.allocator.trace import Action, BlockState, Frame, Stack, Trace
from tidegauge.core.evidence.held_memory import DEFAULT_POOL
from tidegauge.core.evidence.owners import CodeLine

Lines = tuple[CodeLine, ...]
"""A stack, innermost first; empty where none was recorded."""

NO_STACK_KEY = 0

_GENERATED = re.compile(r"^<|[/\\]torchinductor_[^/\\]*[/\\]")
"""Files that a compiler makes: ``<eval_with_key>.17``, ``/tmp/torchinductor_ada/c5/c5x...py``."""
_NUMBERED = re.compile(r"((?:__compiled_fn|__resume_at|torch_dynamo_resume_in)_\w{0,80}?)_?\d[\w-]*")
_MAX_FUNCTION_CHARS = 200
"""Characters of a function's name. Longer ones are nobody's, and would be looked at for long."""


class UsedBlock(NamedTuple):
    """A block in use, in bytes."""

    stack: Lines
    key: int
    """The same for stacks that differ in nothing but what changes when code is compiled again (``StackKeys``)."""
    wanted_bytes: int
    """As the code asked for it; the block's size where the snapshot does not say that."""
    size_bytes: int
    """What the allocator counts as allocated: of two blocks for the same request one may be larger."""
    address: int


class StackWeight(NamedTuple):
    """The bytes that one stack holds or requested."""

    stack: Lines
    weight_bytes: int
    blocks: int


class StackKeys:
    """Numbers the stacks of one or several snapshots: hashing a stack for each of its blocks would take too long."""

    def __init__(self) -> None:
        self._numbers: dict[Lines, int] = {(): NO_STACK_KEY}
        self._frames: dict[CodeLine, CodeLine] = {}

    def number(self, stack: Lines) -> int:
        for frame in stack:
            if frame not in self._frames:
                self._frames[frame] = _lasting(frame)
        return self._numbers.setdefault(tuple(map(self._frames.__getitem__, stack)), len(self._numbers))


def live_blocks(trace: Trace, keys: StackKeys) -> Iterator[UsedBlock]:
    """The blocks in use at the end of ``trace``. Those that wait for other streams have been freed by their owners."""
    lines = _lines(trace)
    numbers = [keys.number(stack) for stack in lines]
    for segment in trace.end or ():
        for block in segment.blocks:
            if block.state is BlockState.ACTIVE_ALLOCATED:
                number = -1 if block.stack is None else block.stack
                wanted_bytes = block.requested_bytes or block.size_bytes
                yield UsedBlock(lines[number], numbers[number], wanted_bytes, block.size_bytes, block.address)


def live_weights(trace: Trace) -> list[StackWeight]:
    """Bytes live at the end of ``trace`` by stack, the largest first."""
    blocks = (block for segment in trace.end or () for block in segment.blocks)
    live = (block for block in blocks if block.state is BlockState.ACTIVE_ALLOCATED)
    return _summed(trace, ((-1 if block.stack is None else block.stack, block.size_bytes) for block in live))


def allocated_weights(trace: Trace) -> list[StackWeight]:
    """Bytes requested in the whole of ``trace`` by stack, freed since or not, the largest first."""
    asked = (event for event, action in enumerate(trace.action) if action == Action.ALLOC)
    return _summed(trace, ((trace.stack[event] if trace.stack else -1, trace.size_bytes[event]) for event in asked))


def pool_weights(trace: Trace) -> list[StackWeight]:
    """Bytes reserved by stack in the whole of ``trace`` for private pools that exist at its end, the largest first."""
    own = sorted(segment for segment in trace.end or () if segment.pool != DEFAULT_POOL)
    starts = [segment.address for segment in own]

    def is_own(address: int) -> bool:
        inside = bisect_right(starts, address) - 1
        return inside >= 0 and address < starts[inside] + own[inside].total_bytes

    made = (event for event, action in enumerate(trace.action) if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    of_pools = (event for event in made if is_own(trace.address[event]))
    return _summed(trace, ((trace.stack[event] if trace.stack else -1, trace.size_bytes[event]) for event in of_pools))


def _lasting(frame: CodeLine) -> CodeLine:
    """The same for code that was compiled again: generated files lose name and line, generated names a number."""
    function = frame.function
    if len(function) <= _MAX_FUNCTION_CHARS:
        function = _NUMBERED.sub(r"\1", function)
    if _GENERATED.search(frame.filename):
        return CodeLine("<generated>", 0, function)
    return frame if function == frame.function else frame._replace(function=function)


def _lines(trace: Trace) -> list[Lines]:
    """The lines of each stack of ``trace``, and an empty stack at the end, which -1 finds."""
    return [*code_lines(trace.stacks), ()]


def code_lines(stacks: Iterable[Stack]) -> list[Lines]:
    """Each frame made once: stacks share most of theirs."""
    known: dict[Frame, CodeLine] = {}
    return [
        tuple(
            [
                known.get(frame) or known.setdefault(frame, CodeLine(frame.filename, frame.line, frame.name))
                for frame in stack
            ]
        )
        for stack in stacks
    ]


def _summed(trace: Trace, blocks: Iterable[tuple[int, int]]) -> list[StackWeight]:
    """``blocks``: stack and bytes of each."""
    sums: dict[int, list[int]] = {}
    for number, size_bytes in blocks:
        one = sums.setdefault(number, [0, 0])
        one[0] += size_bytes
        one[1] += 1
    lines = _lines(trace)
    weights = [StackWeight(lines[number], *one) for number, one in sums.items()]
    return sorted(weights, key=lambda one: (-one.weight_bytes, one.stack))
