"""The purpose of each block: by its pool, the tensors of known purpose in it, its stack, and the phases of its life."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Optional

from tidegauge.analysis.profile.lives import BEFORE, BlockLife
from tidegauge.analysis.profile.phases import Stretch, phase_of_stack, stretch_numbers
from tidegauge.core.allocator.trace import Stack
from tidegauge.core.evidence.owners import CUBLAS_WORKSPACE_BYTES
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.core.profile.step_profile import OwnedMemory

MAX_BATCHES_AHEAD = 2
"""A variable keeps a batch until the next one is there, a prefetcher one more."""
_DISTRIBUTED = ("/torch/distributed/", "/torch/nn/parallel/distributed.py")
_UNSHARDED = ("/_fsdp_param.py", "/_flat_param.py")
"""Files of FSDP2 and FSDP1 that allocate whole parameters."""
_RESIZED = "_alloc_padded_unsharded_flat_param"
"""FSDP1 resizes their storage in here."""
_FUNC = "/torch/_functorch/eager_transforms.py"
"""``torch.func.grad`` and its like: their backward pass keeps what a further derivative needs."""
_NEXT_STEP = (StepPhase.INPUT, StepPhase.FORWARD)
_MODULES, _MODULE = "/torch/nn/modules/", "/torch/nn/modules/module.py"


class Purposes:
    """Tells the category of blocks of one recording."""

    def __init__(
        self,
        stacks: Sequence[Stack],
        stretches: Sequence[Stretch],
        blocks: Sequence[BlockLife],
        owned: Iterable[OwnedMemory],
        owned_before: Iterable[OwnedMemory] = (),
        steps: Sequence[int] = (),
        stepping_threads: int = 1,
    ) -> None:
        """``steps`` are the stretches' ``closure_steps``."""
        self._owned, self._owned_before = (
            sorted(tensors, key=lambda one: one.address) for tensors in (owned, owned_before)
        )
        self._stacks = stacks
        self._stretches = stretches
        self._numbers = stretch_numbers(stretches)
        self._steps = steps or [-1] * len(stretches)
        self._overlap = stepping_threads > 1 and any(one.category is Category.OPTIMIZER_STATE for one in self._owned)
        """Whether a step may go on in another thread's phase, and what is freed is no state, which is known."""
        self._inputs, self._optimizers = (
            [number for number, one in enumerate(stretches) if one.phase is phase]
            for phase in (StepPhase.INPUT, StepPhase.OPTIMIZER)
        )
        self._by_stack = [*map(_by_stack, stacks), None]
        self._last_stretch = {one.backward_pass: number for number, one in enumerate(stretches)}
        """Of each backward pass."""
        self._last_ended = max(
            (at for number, at in self._last_stretch.items() if number >= 0 and at + 1 < len(stretches)), default=-1
        )
        """The last stretch of the last backward pass that something follows."""
        self._last_made: dict[int, int] = {}
        """The last allocation of each backward pass."""
        for block in blocks:
            if block.made != BEFORE:
                number = stretches[self._numbers[block.made]].backward_pass
                if number >= 0:
                    self._last_made[number] = max(block.made, self._last_made.get(number, 0))
        self._first_made: dict[tuple[int, int], int] = {}
        """The first allocation of each stack and size."""
        for block in sorted(blocks, key=lambda block: block.made):
            if block.made != BEFORE:
                self._first_made.setdefault((block.stack, block.requested_bytes), block.made)
        of_func = [any(frame.filename.endswith(_FUNC) for frame in stack) for stack in stacks] + [False]
        self._func_stretches = frozenset(
            self._numbers[block.made] for block in blocks if block.made != BEFORE and of_func[block.stack]
        )
        self._parameter_bytes = Counter(
            block.requested_bytes
            for block in blocks
            if Category.PARAMETERS in (self._owned_as(block), self._by_stack[block.stack])
        )
        """How many parameters have each size."""
        self._gradients = self._freed_by_zero_grad(blocks)

    def phase_at(self, event: int) -> StepPhase:
        """The phase of an event."""
        return StepPhase.UNKNOWN if event == BEFORE else self._stretches[self._numbers[event]].phase

    def category(self, block: BlockLife) -> Category:
        if block.in_private_pool:
            return Category.CUDA_GRAPHS
        owned_as = self._owned_as(block)
        if owned_as is not None:
            return owned_as
        shown = self._by_stack[block.stack]
        if shown is Category.COMMUNICATION and self._outlives_its_backward_pass(block):
            return Category.GRADIENTS  # FSDP makes them where it scatters them
        if shown is not None:
            return shown
        if block.made == BEFORE:
            return self._of_before(block)
        made = self._numbers[block.made]
        phase = self._stretches[made].phase
        if phase is StepPhase.UNKNOWN:
            return Category.UNKNOWN if block.stack < 0 else Category.OTHER
        if self._is_temporary(block, made):
            return Category.GRADIENTS if block.made in self._gradients else Category.TEMPORARIES
        if phase is StepPhase.OPTIMIZER:
            return Category.OPTIMIZER_STATE
        if _may_be_workspace(block) and self._is_kept(block, made) and not self._is_made_again(block):
            return Category.WORKSPACES
        if phase is StepPhase.INPUT:
            return Category.INPUTS if self._is_batch(block, made) else Category.OTHER
        if phase is StepPhase.FORWARD:
            return self._of_forward(made)
        if phase is StepPhase.BACKWARD:
            return Category.ACTIVATIONS if self._is_for_derivative(block, made) else Category.GRADIENTS
        return Category.ACTIVATIONS if phase is StepPhase.RECOMPUTATION else Category.OTHER

    def _owned_as(self, block: BlockLife) -> Optional[Category]:
        owner = self.owner(block)
        return None if owner is None else owner.category

    def owner(self, block: BlockLife) -> Optional[OwnedMemory]:
        """The first tensor of known purpose that it had in it at either end of the recording."""
        if block.freed is None:
            owned = self._owned
        elif block.made == BEFORE:
            owned = self._owned_before
        else:
            return None
        at = bisect_left(owned, (block.address,))
        is_in = at < len(owned) and owned[at].address < block.address + block.size_bytes
        return owned[at] if is_in else None

    def _of_before(self, block: BlockLife) -> Category:
        if block.stack >= 0 and phase_of_stack(self._stacks[block.stack]) is StepPhase.OPTIMIZER:
            return Category.OPTIMIZER_STATE
        if _may_be_workspace(block):
            return Category.WORKSPACES
        return Category.UNKNOWN if block.stack < 0 else Category.OTHER

    def _of_forward(self, made: int) -> Category:
        if made + 1 < len(self._stretches):
            is_for_backward = self._stretches[made + 1].phase.is_backward
        else:
            is_for_backward = bool(self._last_made)
        return Category.ACTIVATIONS if is_for_backward else Category.OTHER

    def _is_batch(self, block: BlockLife, made: int) -> bool:
        """Whether it was given back, or may still be, once later batches had come."""
        later = self._inputs[bisect_right(self._inputs, made) :][:MAX_BATCHES_AHEAD]
        if len(later) < MAX_BATCHES_AHEAD:
            return True
        return block.freed is not None and self._numbers[block.freed] <= later[-1]

    def _is_temporary(self, block: BlockLife, made: int) -> bool:
        """Whether it was given back in the phase that it was made in; a backward pass goes on after recomputation, an
        optimizer's step after the closure that it calls."""
        if block.freed is None:
            return False
        freed = self._numbers[block.freed]
        if freed == made:
            return True
        stretch = self._stretches[made]
        if stretch.phase is StepPhase.OPTIMIZER:
            return self._overlap or self._steps[made] == self._steps[freed] >= 0
        return stretch.phase is StepPhase.BACKWARD and self._stretches[freed].backward_pass == stretch.backward_pass

    def _freed_by_zero_grad(self, blocks: Iterable[BlockLife]) -> frozenset[int]:
        """Events that made gradients which were given back after their backward pass, although no other phase shows:
        by ``zero_grad`` behind an optimizer that allocates nothing. Of each size there are no more than parameters:
        those that were given back last, as the backward pass itself gives back the parts that it adds up for a
        parameter that is used twice."""
        found: dict[tuple[int, int], list[int]] = {}
        for block in sorted(blocks, key=lambda block: -(block.freed or 0)):
            if block.made == BEFORE or block.freed is None or block.requested_bytes not in self._parameter_bytes:
                continue
            made = self._numbers[block.made]
            number = self._stretches[made].backward_pass
            if self._is_temporary(block, made) and self._may_end_with_zero_grad(made):
                same = found.setdefault((number, block.requested_bytes), [])
                if block.freed > self._last_made[number] and len(same) < self._parameter_bytes[block.requested_bytes]:
                    same.append(block.made)
        return frozenset(made for same in found.values() for made in same)

    def _may_end_with_zero_grad(self, made: int) -> bool:
        stretch = self._stretches[made]
        if stretch.phase is not StepPhase.BACKWARD:
            return False
        last = self._last_stretch[stretch.backward_pass]
        return last + 1 == len(self._stretches) or self._stretches[last + 1].phase in _NEXT_STEP

    def _outlives_its_backward_pass(self, block: BlockLife) -> bool:
        number = -1 if block.made == BEFORE else self._stretches[self._numbers[block.made]].backward_pass
        if number < 0:
            return False
        last = self._last_stretch[number]
        if block.freed is not None:
            return self._numbers[block.freed] > last
        return last == self._last_ended  # else it is kept for good

    def _is_for_derivative(self, block: BlockLife, made: int) -> bool:
        """Whether ``torch.func`` keeps it from its backward pass for a further derivative. A gradient that it returns
        is of a parameter's size; where none is known, nothing is told apart."""
        if made - 1 not in self._func_stretches or not self._parameter_bytes:
            return False
        return block.requested_bytes not in self._parameter_bytes

    def _is_made_again(self, block: BlockLife) -> bool:
        """Whether its stack made one of its size before a backward pass that ended since: a workspace is made once."""
        first = self._first_made[block.stack, block.requested_bytes]
        ended = (last for number, last in self._last_stretch.items() if number >= 0)
        return any(self._numbers[first] <= last < self._numbers[block.made] for last in ended)

    def _is_kept(self, block: BlockLife, made: int) -> bool:
        """Whether it outlives the recording although its own step ended within it."""
        if not self._last_made:  # inference: nothing is kept for a backward pass
            return block.freed is None
        return block.freed is None and max((self._last_ended, *self._optimizers[-1:])) > made


def _by_stack(stack: Stack) -> Optional[Category]:
    """The category that a stack shows whatever the phase; ``None``: none."""
    python = [frame for frame in stack if frame.filename.endswith(".py")]
    if not python:
        return None
    innermost = python[0].filename
    if innermost.endswith(_UNSHARDED) or any(frame.name == _RESIZED for frame in python):
        return Category.PARAMETERS
    if any(part in innermost for part in _DISTRIBUTED):
        return Category.COMMUNICATION
    is_made = _MODULES in innermost and python[0].name == "__init__"
    is_moved = any(frame.name == "_apply" and frame.filename.endswith(_MODULE) for frame in python)
    return Category.PARAMETERS if is_made or is_moved else None


def _may_be_workspace(block: BlockLife) -> bool:
    return block.requested_bytes in CUBLAS_WORKSPACE_BYTES
