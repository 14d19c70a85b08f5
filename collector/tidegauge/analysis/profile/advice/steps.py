"""A recording seen as training steps: for each backward pass its forward pass, its gradients and its optimizer."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, Optional

from tidegauge.analysis.profile.recording import NamedBlock, NamedRecording
from tidegauge.core.allocator.trace import Stack
from tidegauge.core.profile.categories import Category, StepPhase


class Pass(NamedTuple):
    """One forward and backward pass, as events."""

    forward: int
    """The first event of its forward pass."""
    backward: int
    """The first event of its backward pass."""
    end: int
    """The first event behind its backward pass."""
    optimizer: Optional[tuple[int, int]]
    """First event, and the first behind, of the optimizer's step that follows it; ``None``: it allocates nothing, or
    another backward pass comes before."""
    is_clipped: bool
    """Whether memory is allocated between backward pass and optimizer: by gradient clipping, mostly."""


class RecordedSteps:
    """The passes of a recording, and what is made in them."""

    def __init__(self, recording: NamedRecording) -> None:
        self.recording = recording
        self.events = len(recording.trace)
        self.in_order = sorted(recording.blocks, key=lambda one: one.block.made)
        self._made = [one.block.made for one in self.in_order]
        self._made_but_gradients = [one.block.made for one in self.in_order if one.category is not Category.GRADIENTS]
        self._freed = sorted(one.block.freed for one in self.in_order if one.block.freed is not None)
        self.evaluations: list[list[NamedBlock]] = []
        """What each run of forward passes without a backward pass made, in order."""
        self.passes = list(self._passes_without_evaluation())
        self.parameter_bytes = [one.block.requested_bytes for one in self.of(Category.PARAMETERS)]
        self.parameters_of_size = Counter(self.parameter_bytes)
        self.weight_sizes = {size for whole in self.parameter_bytes for size in (whole, whole // 2)}
        """Of parameters, and of their copies in half the bits."""
        self.optimizers = [one for one in recording.stretches if one.phase is StepPhase.OPTIMIZER]

    def _passes_without_evaluation(self) -> Iterator[Pass]:
        behind = 0
        for one in _passes(self.recording):
            evaluated, begin = self._evaluation(behind, one.backward)
            self._add(evaluated)
            behind = one.end
            yield one._replace(forward=max(one.forward, begin))
        if behind:
            self._add(self._evaluation(behind, self.events)[0])

    def _add(self, evaluated: list[NamedBlock]) -> None:
        if any(one.phase is StepPhase.FORWARD for one in evaluated):
            self.evaluations.append(evaluated)

    def _evaluation(self, begin: int, end: int) -> tuple[list[NamedBlock], int]:
        """What was made and given back from ``begin`` on before the forward pass began whose backward pass is at
        ``end``, and where that forward pass began.

        Each of its operations takes what the one before made, so its blocks overlap, back from the first one that the
        backward pass needs.
        """
        made = [one for one in self.made_in(begin, end) if one.phase in (StepPhase.INPUT, StepPhase.FORWARD)]
        gone = [one for one in made if _is_gone(one, end)]
        kept = (one.block.made for one in made if one.phase is StepPhase.FORWARD and not _is_gone(one, end))
        begins = min(kept, default=end)
        for one in reversed(gone):
            if one.block.made < begins and not _is_gone(one, begins):
                begins = one.block.made
        return [one for one in gone if one.block.made < begins], begins

    def of(self, *categories: Category) -> list[NamedBlock]:
        """In the order in which they were made."""
        return [one for one in self.in_order if one.category in categories]

    def made_in(self, begin: int, end: int) -> list[NamedBlock]:
        """The blocks made from event ``begin`` on and before ``end``, in order."""
        return self.in_order[bisect_left(self._made, begin) : bisect_left(self._made, end)]

    def further_parts(self, gradient: NamedBlock, begin: int, end: int) -> Iterator[NamedBlock]:
        """What is added in place to the gradient of a parameter that is used twice (an embedding that is the head as
        well): scratch memory of its size, made from event ``begin`` on and before ``end``."""
        size = gradient.block.requested_bytes
        for one in self.made_in(max(begin, gradient.block.made + 1), end):
            if one.category is Category.TEMPORARIES and one.block.requested_bytes == size:
                yield one

    def stack_of(self, one: NamedBlock) -> Stack:
        """Where it was allocated; empty where that was not recorded."""
        return self.recording.trace.stacks[one.block.stack] if one.block.stack >= 0 else ()

    def next_made(self, event: int) -> int:
        """The first event from ``event`` on that allocates."""
        at = self.made_before(event)
        return self._made[at] if at < len(self._made) else self.events

    def frees_between(self, begin: int, end: int) -> bool:
        """Whether a block is given back after event ``begin`` and before ``end``."""
        return bisect_right(self._freed, begin) < bisect_left(self._freed, end)

    def made_before(self, event: int) -> int:
        """How many blocks were made before ``event``."""
        return bisect_left(self._made, event)

    def made_forward(self, one: Pass) -> list[NamedBlock]:
        """What the forward pass of ``one`` allocated and did not leave behind, in order."""
        made = self.made_in(one.forward, one.backward)
        return [
            block
            for block in made
            if block.category in (Category.ACTIVATIONS, Category.TEMPORARIES) and not self._outlives(block, one)
        ]

    def activations(self, one: Pass) -> list[NamedBlock]:
        """What the forward pass of ``one`` keeps for its backward pass, in order."""
        return [block for block in self.made_forward(one) if block.category is Category.ACTIVATIONS]

    def gradients(self, one: Pass) -> list[NamedBlock]:
        """Made in the backward pass of ``one``, in order."""
        made = self.made_in(one.backward, one.end)
        return [block for block in made if block.category is Category.GRADIENTS]

    def _outlives(self, block: NamedBlock, one: Pass) -> bool:
        freed = block.block.freed
        return one is not self.passes[-1] if freed is None else freed >= one.end

    def next_but_gradients(self, event: int) -> int:
        """The first event behind ``event`` that allocates anything but a gradient."""
        at = bisect_left(self._made_but_gradients, event + 1)
        return self._made_but_gradients[at] if at < len(self._made_but_gradients) else self.events


def _is_gone(one: NamedBlock, at: int) -> bool:
    return one.block.freed is not None and one.block.freed <= at


def _passes(recording: NamedRecording) -> Iterator[Pass]:
    stretches = recording.stretches
    last = -1
    for number in range(recording.backward_passes):
        own = [at for at, one in enumerate(stretches) if one.backward_pass == number]
        before = [one for one in stretches[last + 1 : own[0]] if one.phase is StepPhase.FORWARD]
        last = own[-1]
        following = []
        for one in stretches[last + 1 :]:
            if one.phase in (StepPhase.INPUT, StepPhase.FORWARD) or one.backward_pass >= 0:
                break
            following.append(one)
        steps = [one for one in following if one.phase is StepPhase.OPTIMIZER]
        begin = stretches[own[0]].begin
        yield Pass(
            forward=before[0].begin if before else begin,
            backward=begin,
            end=stretches[last].end,
            optimizer=(steps[0].begin, steps[-1].end) if steps else None,
            is_clipped=any(one.phase is StepPhase.BEFORE_OPTIMIZER for one in following[:1]) and bool(steps),
        )
