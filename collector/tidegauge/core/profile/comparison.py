"""Compares two memory profiles: of two runs, commits, settings or ranks. Pure.

The gap of the peaks is told by category, by module and by line: each adds up to it, to the byte, the latter two without
rounding.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Optional

from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.core.profile.step_profile import ProfileLine, StepProfile


class CategoryChange(NamedTuple):
    """The bytes of one category at the two peaks."""

    category: Category
    before_bytes: int
    after_bytes: int

    @property
    def grown_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


class LineChange(NamedTuple):
    """The bytes that one function asked for, for one purpose, at the two peaks."""

    category: Category
    line: Optional[CodeLine]
    """Of the second profile, where it is there, else of the first; of several lines of one function, the one that
    holds most. ``None``: no stack was recorded."""
    before_bytes: int
    after_bytes: int
    before_blocks: int
    after_blocks: int
    in_backward: bool = False
    """Whether autograd's own thread allocated it, which has no line."""

    @property
    def grown_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


class ModuleChange(NamedTuple):
    """What one module holds of its own at the two peaks."""

    path: Optional[str]
    """``None``: what belongs to no module."""
    before_bytes: int
    after_bytes: int

    @property
    def grown_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


class PhaseChange(NamedTuple):
    """The highest memory of one phase; ``None``: a profile has no such phase."""

    phase: StepPhase
    before_bytes: Optional[int]
    after_bytes: Optional[int]


class ProfileComparison(NamedTuple):
    """The second profile against the first, in bytes; positive values are more."""

    before_peak_bytes: int
    after_peak_bytes: int
    categories: tuple[CategoryChange, ...]
    """All that either peak has; the largest change first."""
    lines: tuple[LineChange, ...]
    """Those that changed; the largest change first."""
    phases: tuple[PhaseChange, ...]
    modules: tuple[ModuleChange, ...] = ()
    """Those that changed; the largest change first. Empty where not both profiles have modules."""

    @property
    def grown_bytes(self) -> int:
        return self.after_peak_bytes - self.before_peak_bytes

    @property
    def grown_share(self) -> float:
        """Of the first peak; infinite where that is empty and the second is not."""
        if self.before_peak_bytes:
            return self.grown_bytes / self.before_peak_bytes
        return float("inf") if self.after_peak_bytes else 0.0


def compare_profiles(before: StepProfile, after: StepProfile) -> ProfileComparison:
    """What fills the second peak more, or less, than the first.

    Lines are matched by file name, function and number; those that are not the same in both by file name and function,
    as numbers and folders are others in another commit or checkout.
    """
    held = [profile.peak.by_category for profile in (before, after)]
    categories = [
        CategoryChange(category, held[0].get(category, 0), held[1].get(category, 0))
        for category in Category
        if any(category in one for one in held)
    ]
    peaks = [{one.phase: one.peak_bytes for one in profile.phases} for profile in (before, after)]
    return ProfileComparison(
        before_peak_bytes=before.peak.allocated_bytes,
        after_peak_bytes=after.peak.allocated_bytes,
        categories=tuple(sorted(categories, key=lambda one: -abs(one.grown_bytes))),
        lines=tuple(_line_changes(before, after)),
        phases=tuple(
            PhaseChange(phase, peaks[0].get(phase), peaks[1].get(phase))
            for phase in StepPhase
            if phase is not StepPhase.UNKNOWN and any(phase in one for one in peaks)
        ),
        modules=tuple(_module_changes(before, after)) if before.modules and after.modules else (),
    )


def _module_changes(before: StepProfile, after: StepProfile) -> list[ModuleChange]:
    early, late = (
        {None: profile.outside_modules_bytes, **{one.path: one.own_bytes for one in profile.modules}}
        for profile in (before, after)
    )
    changes = [ModuleChange(path, early.get(path, 0), late.get(path, 0)) for path in {**late, **early}]
    changed = [one for one in changes if one.grown_bytes]
    return sorted(changed, key=lambda one: (-abs(one.grown_bytes), one.path or ""))


_Place = tuple[Category, str, str, int]
"""Category, file name without its folder, function, line: 0 where it is not the same in both profiles."""
_AUTOGRAD = ("", "backward")
"""Of lines that autograd's thread does not have."""


def _line_changes(before: StepProfile, after: StepProfile) -> list[LineChange]:
    in_both = {_place(line) for line in before.lines} & {_place(line) for line in after.lines}
    names: dict[_Place, Optional[CodeLine]] = {}
    sums: list[tuple[Counter[_Place], Counter[_Place]]] = []
    for profile in (after, before):  # a line of the second one names a function that both have
        held: Counter[_Place] = Counter()
        blocks: Counter[_Place] = Counter()
        for line in profile.lines:  # the largest first
            place = _place(line)
            key = place if place in in_both else (*place[:3], 0)
            names.setdefault(key, line.line)
            held[key] += line.held_bytes
            blocks[key] += line.blocks
        sums.append((held, blocks))
    (late, late_blocks), (early, early_blocks) = sums
    changes = [
        LineChange(key[0], line, early[key], late[key], early_blocks[key], late_blocks[key], key[1:3] == _AUTOGRAD)
        for key, line in names.items()
        if early[key] != late[key]
    ]
    return sorted(changes, key=lambda one: (-abs(one.grown_bytes), one.category.value, one.line or CodeLine("", 0, "")))


def _place(line: ProfileLine) -> _Place:
    if line.line is None:
        return line.category, *(_AUTOGRAD if line.phase is StepPhase.BACKWARD else ("", "")), 0
    filename = line.line.filename.replace("\\", "/").rpartition("/")[2]
    return line.category, filename, line.line.function, line.line.line
