"""A recorded trace with the purpose of each of its blocks: what profile and advice are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Optional

from tidegauge.analysis.profile.lives import BlockLife, lives_of
from tidegauge.analysis.profile.modules import ModulesOfBlocks
from tidegauge.analysis.profile.phases import Stretch, closure_steps, stretches_of
from tidegauge.analysis.profile.purposes import Purposes
from tidegauge.core.allocator.results import Replay
from tidegauge.core.allocator.trace import Trace
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.core.profile.step_profile import OwnedMemory, SeenGradient


class NamedBlock(NamedTuple):
    """A block and its purpose."""

    block: BlockLife
    category: Category
    phase: StepPhase
    """In which it was made."""
    module: Optional[str] = None
    """The path of the module that it belongs to, or that made it."""
    name: Optional[str] = None
    """What the program calls it."""


class NamedRecording(NamedTuple):
    """All blocks of a trace."""

    trace: Trace
    stretches: list[Stretch]
    blocks: list[NamedBlock]
    is_exact: bool
    """As ``Lives.is_exact``."""
    reserved_bytes: int
    """At its highest."""
    unallocated_bytes: int
    """As ``Lives.unallocated_bytes``."""
    phase_at: Callable[[int], StepPhase]
    """The phase of an event."""
    closure_steps: list[int]
    """As ``phases.closure_steps``, of the stretches."""
    replayed: Replay
    """As ``Lives.replayed``."""

    @property
    def backward_passes(self) -> int:
        return max(stretch.backward_pass for stretch in self.stretches) + 1


def recording_of(
    trace: Trace,
    *,
    owned: Iterable[OwnedMemory] = (),
    owned_before: Iterable[OwnedMemory] = (),
    gradients: Iterable[SeenGradient] = (),
    stepping_threads: int = 1,
) -> NamedRecording:
    """Names the blocks of a trace that begins with its ``start`` (``traces.reading.open_trace``).

    ``owned`` are tensors of known purpose at its end, ``owned_before`` at its beginning; ``gradients`` tell the modules
    of those that are gone by then; ``stepping_threads`` stepped optimizers in it. Raises ``TraceError`` where events
    contradict each other.
    """
    stretches = stretches_of(trace)
    steps = closure_steps(trace, stretches)
    lives = lives_of(trace)
    purposes = Purposes(trace.stacks, stretches, lives.blocks, owned, owned_before, steps, stepping_threads)
    modules = ModulesOfBlocks(trace, gradients)
    blocks = [_named(block, purposes, modules) for block in lives.blocks]
    return NamedRecording(
        trace,
        stretches,
        blocks,
        lives.is_exact,
        lives.reserved_bytes,
        lives.unallocated_bytes,
        purposes.phase_at,
        steps,
        lives.replayed,
    )


def _named(block: BlockLife, purposes: Purposes, modules: ModulesOfBlocks) -> NamedBlock:
    category = purposes.category(block)
    owner = purposes.owner(block)
    module = modules.module(block, category, owner)
    return NamedBlock(block, category, purposes.phase_at(block.made), module, None if owner is None else owner.name)
