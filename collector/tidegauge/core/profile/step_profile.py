"""The memory profile of one rank's recording, as it is shown, stored and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Optional

from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.profile.advice import StepAdvice
from tidegauge.core.profile.categories import Category, StepPhase

FORMAT_VERSION = 1
"""Another one where older readers would misread it. A further field with a default needs none: who does not know it
passes it over."""
MAX_TIMELINE_POINTS = 480
MAX_MODULES = 1_000


class OwnedMemory(NamedTuple):
    """A tensor of known purpose at the end of a recording: a parameter of the model, say."""

    address: int
    """Of its storage; its block may hold others as well."""
    category: Category
    module: Optional[str] = None
    """The path of the module that it belongs to."""
    name: Optional[str] = None
    """What the program calls it, where it belongs to no model: ``Ema.shadow['head.weight']``."""


class SeenGradient(NamedTuple):
    """A gradient that was there at some time, and may be gone at the end of a recording."""

    address: int
    """Of its storage."""
    unix_us: int
    module: str
    """The path of its parameter's module."""


class ProfileMoment(NamedTuple):
    """All memory that was allocated just after one event of a recording."""

    event: int
    """Index into the recording; -1: before its first event."""
    phase: StepPhase
    allocated_bytes: int
    """As ``memory_stats()["allocated_bytes.all.current"]``: the sum over ``by_category``."""
    by_category: Mapping[Category, int]
    """As asked for; what the allocator adds is ``ROUNDING``. Categories without any bytes are left out."""

    @property
    def largest_first(self) -> list[tuple[Category, int]]:
        return sorted(self.by_category.items(), key=lambda one: -one[1])

    @property
    def unknown_share(self) -> float:
        """Of the allocated bytes, those of which neither line nor purpose is known."""
        return self.by_category.get(Category.UNKNOWN, 0) / self.allocated_bytes if self.allocated_bytes else 0.0


class ProfileLine(NamedTuple):
    """Blocks at the peak that one line of the user's code asked for, for one purpose."""

    held_bytes: int
    blocks: int
    category: Category
    phase: StepPhase
    """In which it asked for most of these bytes."""
    line: Optional[CodeLine]
    """``None``: no stack was recorded, as in the backward pass, which autograd's own thread does."""
    caller: Optional[CodeLine]
    """The next line of the user's further out, by which most of it came."""
    before_bytes: Optional[int] = None
    """Of ``held_bytes``, what was there before the recording began; ``None`` in profiles of an older agent."""
    name: Optional[str] = None
    """What the program calls it, where no stack was recorded: ``Ema.shadow``, for all that is in there."""


class ModuleMemory(NamedTuple):
    """What one module of the model holds at the peak, as asked for: what it allocated and what belongs to it."""

    path: str
    """The class of the model, and the module's path in it: ``Net.layers.0.mlp``."""
    own: Mapping[Category, int]
    total: Mapping[Category, int]
    """With the modules below it."""

    @property
    def own_bytes(self) -> int:
        return sum(self.own.values())

    @property
    def total_bytes(self) -> int:
        return sum(self.total.values())


class PhasePeak(NamedTuple):
    """The highest memory of one phase."""

    phase: StepPhase
    peak_bytes: int
    event: int


class Timeline(NamedTuple):
    """Allocated bytes over the recording, at ``MAX_TIMELINE_POINTS`` moments at most: the highest of each stretch."""

    events: tuple[int, ...]
    phases: tuple[StepPhase, ...]
    by_category: Mapping[Category, tuple[int, ...]]
    """One entry a moment; at each, the categories sum to what was allocated."""


@dataclass(frozen=True)
class StepProfile:
    """The memory profile of one device's recording."""

    device: int
    torch_version: Optional[str]
    events: int
    backward_passes: int
    """That began in the recording: one a training step, with gradient accumulation or several losses more."""
    peak: ProfileMoment
    phases: tuple[PhasePeak, ...]
    """In the order of a step; only those that the recording has."""
    lines: tuple[ProfileLine, ...]
    """Of the blocks at the peak, as asked for; the largest first. Their sum is all but ``ROUNDING``."""
    timeline: Timeline
    reserved_bytes: int
    """At its highest."""
    is_exact: bool
    """Whether the allocator's model came to the recorded addresses, so that ``ROUNDING`` is exact; else it is that of
    PyTorch's rules alone."""
    is_complete: bool = True
    """Whether the recording has all events of the process; else a higher peak may lie before it."""
    modules: tuple[ModuleMemory, ...] = ()
    """A tree: each module before those below it. What no module made, such as inputs and what the backward pass
    allocates, is not in it. Empty where the recording has no modules."""
    modules_missing: Optional[str] = None
    """Why there are none, or not all, for people."""
    skipped_events: int = 0
    """Left out, as their actions are not known: those of a newer PyTorch, say."""
    unallocated_bytes: Optional[int] = None
    """Of ``reserved_bytes``, what was never allocated while so much was reserved; ``None`` in profiles of an older
    agent."""
    advice: Optional[StepAdvice] = None
    """What would help; ``None`` where it was not asked for, and in profiles of an older agent."""
    version: int = FORMAT_VERSION

    @property
    def outside_modules_bytes(self) -> int:
        """At the peak, as asked for, in no module."""
        inside = sum(one.total_bytes for one in self.modules if "." not in one.path)
        return self.peak.allocated_bytes - self.peak.by_category.get(Category.ROUNDING, 0) - inside
