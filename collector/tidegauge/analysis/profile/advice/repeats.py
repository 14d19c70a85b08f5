"""Finds the blocks of a model that are called one after the other, by the stacks of what they allocate.

A recording has no names of modules, but each call of one leaves ``Module._call_impl`` in the stack: what lies outside
of that frame is the place of the call. A loop over layers calls from one place again and again, so the stacks behind it
repeat. Layers that are called from several places are joined where the same line of the same file is reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from tidegauge.analysis.profile.recording import NamedBlock
from tidegauge.core.allocator.trace import Frame, Stack
from tidegauge.core.profile.categories import Category

_LAYERS, _MODULE = "/torch/nn/modules/", "/torch/nn/modules/module.py"
MIN_CALLS = 2
MAX_KEPT_LAST = 8
"""Results of the last operation of a block that are looked at for its output: a norm has three."""


class Call(NamedTuple):
    """One call of a block in one forward pass."""

    made: Sequence[NamedBlock]
    """All that its forward pass allocated, in order."""
    output: Optional[NamedBlock]
    """The one of them that is the input of what follows; ``None``: the recording ends before."""

    @property
    def kept(self) -> list[NamedBlock]:
        """What it keeps for its backward pass, its output aside."""
        return [one for one in self.made if one.category is Category.ACTIVATIONS and one is not self.output]

    @property
    def last(self) -> int:
        """The last event at which it allocated."""
        return self.made[-1].block.made


class RepeatedBlocks(NamedTuple):
    """Calls of blocks of one kind in one forward pass."""

    kind: Stack
    """Tells them from blocks of other kinds: the same in every pass."""
    site: Stack
    """From the frame that calls most of them outwards."""
    calls: list[Call]
    """In order."""


def repeated_blocks(made: Sequence[NamedBlock], stacks: Sequence[Stack]) -> Iterator[RepeatedBlocks]:
    """All kinds of blocks that were called twice or more, of what one forward pass made, in order. Blocks within blocks
    are kinds of their own."""
    sites: dict[Stack, list[tuple[NamedBlock, Stack]]] = {}
    for one in made:
        stack = stacks[one.block.stack] if one.block.stack >= 0 else ()
        for at in _places(stack):
            sites.setdefault(stack[at:], []).append((one, stack[:at]))
    kinds: dict[Stack, list[tuple[Stack, list[Call]]]] = {}
    for site, own in sites.items():
        callee = _callee(own[0][1])
        if callee is not None:
            # Layers of torch's own are everywhere: those of one place alone are of one kind.
            kind = site if _LAYERS in callee.filename else (callee,)
            kinds.setdefault(kind, []).append((site, _calls(own)))
    for kind, found in kinds.items():
        calls = sorted((call for _, some in found for call in some), key=lambda call: call.last)
        if len(calls) >= MIN_CALLS:
            yield RepeatedBlocks(kind, max(found, key=lambda one: len(one[1]))[0], calls)


def _callee(inner: Stack) -> Optional[Frame]:
    """The outermost frame of a module that is called."""
    return next((frame for frame in reversed(inner) if not _is_module(frame)), None)


def _places(stack: Stack) -> Iterator[int]:
    """Of each call of a module in a stack, the place of the frame that calls it."""
    for at, frame in enumerate(stack):
        if frame.name == "_call_impl" and _is_module(frame):
            caller = next((place for place in range(at + 1, len(stack)) if not _is_module(stack[place])), None)
            if caller is not None:
                yield caller


def _is_module(frame: Frame) -> bool:
    return frame.filename.endswith(_MODULE)


def _calls(made: Sequence[tuple[NamedBlock, Stack]]) -> list[Call]:
    """The calls from one place: as many as the stacks behind it repeat."""
    stacks = [stack for _, stack in made]
    begins = list(range(0, len(made), _period(stacks)))
    firsts = [at for at, stack in enumerate(stacks) if stack == stacks[0] and (not at or stack != stacks[at - 1])]
    if len(firsts) > len(begins) and len(set(map(_function, stacks))) == 1 and _are_alike(stacks, firsts):
        begins = firsts
    calls = []
    for begin, end in zip(begins, [*begins[1:], len(made)]):
        blocks = [block for block, _ in made[begin:end]]
        calls.append(Call(blocks, blocks[_output(stacks[begin:end], blocks)]))
    if len(calls) > 1 and len(calls[-1].made) < len(calls[0].made) and stacks[-1] != stacks[begins[1] - 1]:
        calls[-1] = calls[-1]._replace(output=None)
    return calls


def _are_alike(stacks: Sequence[Stack], begins: Sequence[int]) -> bool:
    """Whether parts that begin alike are calls of one function that differ a little, as those of a ResNet do, some of
    which have a shortcut, or those of a transformer whose attention is of a window in some: the lines that all have
    come in the same order, and are more than half of each one's. How often a line comes is not compared: whether a
    convolution takes scratch memory is up to its sizes."""
    parts = [list(dict.fromkeys(stacks[begin:end])) for begin, end in zip(begins, [*begins[1:], len(stacks)])]
    common = set(parts[0]).intersection(*parts[1:])
    shared = [stack for stack in parts[0] if stack in common]
    if any(shared != [stack for stack in part if stack in common] for part in parts):
        return False
    return all(2 * len(shared) > len(part) for part in parts)


def _function(stack: Stack) -> tuple[str, str]:
    callee = _callee(stack)
    return ("", "") if callee is None else (callee.filename, callee.name)


def _period(stacks: Sequence[Stack]) -> int:
    """After how many stacks they repeat; the last time may be cut short, where the recording ends."""
    numbers: dict[Stack, int] = {}
    sequence = [numbers.setdefault(stack, len(numbers)) for stack in stacks]
    # The failure function of Knuth, Morris and Pratt: the longest proper prefix that is a suffix as well.
    border = [0] * len(sequence)
    for at in range(1, len(sequence)):
        length = border[at - 1]
        while length and sequence[at] != sequence[length]:
            length = border[length - 1]
        border[at] = length + (sequence[at] == sequence[length])
    period = len(sequence) - border[-1]
    return period if 3 * period <= 2 * len(sequence) else len(sequence)


def _output(stacks: Sequence[Stack], blocks: Sequence[NamedBlock]) -> int:
    """Which of a call's blocks is its output: the largest that its last operation made, of equal ones the last."""
    last = [at for at in range(max(0, len(stacks) - MAX_KEPT_LAST), len(stacks)) if stacks[at] == stacks[-1]]
    begin = len(stacks)
    while begin - 1 in last:
        begin -= 1
    return max(range(begin, len(stacks)), key=lambda at: (blocks[at].block.size_bytes, at))
