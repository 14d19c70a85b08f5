"""Makes the memory profile of a recorded trace: the peak's composition, peaks by phase, lines, and a timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from tidegauge.analysis.profile.lives import BEFORE
from tidegauge.analysis.profile.modules import module_tree
from tidegauge.analysis.profile.recording import NamedBlock, NamedRecording, recording_of
from tidegauge.analysis.snapshots.live_stacks import Lines, code_lines
from tidegauge.core.allocator.trace import Trace
from tidegauge.core.evidence.owners import CodeLine, CodeRoots, asking_line, calling_line
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.core.profile.step_profile import (
    MAX_TIMELINE_POINTS,
    OwnedMemory,
    PhasePeak,
    ProfileLine,
    ProfileMoment,
    SeenGradient,
    StepProfile,
    Timeline,
)

_CATEGORIES = tuple(Category)
_PLACE = {category: place for place, category in enumerate(_CATEGORIES)}


class _Moment(NamedTuple):
    event: int
    phase: StepPhase
    allocated_bytes: int
    sums: tuple[int, ...]
    """By category, in the order of ``_CATEGORIES``."""


def profile_of(
    trace: Trace,
    *,
    owned: Iterable[OwnedMemory] = (),
    owned_before: Iterable[OwnedMemory] = (),
    roots: Optional[CodeRoots] = None,
    gradients: Iterable[SeenGradient] = (),
    modules_missing: Optional[str] = None,
) -> StepProfile:
    """As ``recording_of`` and ``profile_of_recording``."""
    recording = recording_of(trace, owned=owned, owned_before=owned_before, gradients=gradients)
    return profile_of_recording(recording, roots=roots, modules_missing=modules_missing)


def profile_of_recording(
    recording: NamedRecording, *, roots: Optional[CodeRoots] = None, modules_missing: Optional[str] = None
) -> StepProfile:
    """The profile of a recording. ``roots`` tell the user's lines from those of libraries; ``modules_missing`` is why
    the recording has no modules."""
    trace, named = recording.trace, recording.blocks
    moments = list(_moments(named, recording.phase_at))
    # Steps are alike: of equal peaks, one without leftovers of the step before the recording.
    peak = max(moments, key=lambda moment: (moment.allocated_bytes, -moment.sums[_PLACE[Category.UNKNOWN]]))
    at_peak = [one for one in named if one.block.is_alive_at(peak.event)]
    return StepProfile(
        device=trace.device,
        torch_version=trace.torch_version,
        events=len(trace),
        backward_passes=recording.backward_passes,
        peak=ProfileMoment(peak.event, peak.phase, peak.allocated_bytes, _without_none(peak.sums)),
        phases=tuple(_phase_peaks(moments)),
        lines=tuple(_lines(at_peak, [*code_lines(trace.stacks), ()], roots)),
        timeline=_timeline(moments),
        reserved_bytes=recording.reserved_bytes,
        skipped_events=sum(trace.skipped.values()),
        unallocated_bytes=recording.unallocated_bytes,
        is_exact=recording.is_exact,
        is_complete=trace.complete,
        modules=module_tree((one.module, one.category, one.block.requested_bytes) for one in at_peak if one.module),
        modules_missing=modules_missing,
    )


def _moments(named: Sequence[NamedBlock], phase_at: Callable[[int], StepPhase]) -> Iterator[_Moment]:
    """What is allocated before the first event, and after each at which that changes."""
    changes: dict[int, list[tuple[NamedBlock, int]]] = {BEFORE: []}
    for one in named:
        changes.setdefault(one.block.made, []).append((one, 1))
        if one.block.freed is not None:
            changes.setdefault(one.block.freed, []).append((one, -1))
    sums, allocated_bytes = [0] * len(_CATEGORIES), 0
    rounding = _PLACE[Category.ROUNDING]
    for event in sorted(changes):
        for one, sign in changes[event]:
            allocated_bytes += sign * one.block.size_bytes
            sums[_PLACE[one.category]] += sign * one.block.requested_bytes
            sums[rounding] += sign * (one.block.size_bytes - one.block.requested_bytes)
        yield _Moment(event, phase_at(event), allocated_bytes, tuple(sums))


def _without_none(sums: Sequence[int]) -> dict[Category, int]:
    return {category: bytes_ for category, bytes_ in zip(_CATEGORIES, sums) if bytes_}


def _phase_peaks(moments: Sequence[_Moment]) -> Iterator[PhasePeak]:
    highest: dict[StepPhase, _Moment] = {}
    for moment in moments:
        known = highest.get(moment.phase)
        if known is None or moment.allocated_bytes > known.allocated_bytes:
            highest[moment.phase] = moment
    for phase in StepPhase:
        if phase in highest:
            yield PhasePeak(phase, highest[phase].allocated_bytes, highest[phase].event)


def _timeline(moments: Sequence[_Moment]) -> Timeline:
    width = max(1, -(-len(moments) // MAX_TIMELINE_POINTS))
    shown = [
        max(moments[begin : begin + width], key=lambda moment: moment.allocated_bytes)
        for begin in range(0, len(moments), width)
    ]
    columns = zip(*(moment.sums for moment in shown))
    return Timeline(
        events=tuple(moment.event for moment in shown),
        phases=tuple(moment.phase for moment in shown),
        by_category={category: column for category, column in zip(_CATEGORIES, columns) if any(column)},
    )


def _lines(named: Sequence[NamedBlock], lines: Sequence[Lines], roots: Optional[CodeRoots]) -> list[ProfileLine]:
    asked = {stack: asking_line(lines[stack], roots) for stack in {one.block.stack for one in named}}
    groups: dict[tuple[Optional[CodeLine], Category, Optional[str]], list[NamedBlock]] = {}
    for one in named:
        line = asked[one.block.stack]
        # Its container's, as `Ema.shadow['head.weight']`: of an average of the weights there are as many as of those.
        name = one.name.partition("[")[0] if line is None and one.name else None
        groups.setdefault((line, one.category, name), []).append(one)
    found = []
    for (line, category, name), group in groups.items():
        phases: Counter[StepPhase] = Counter()
        callers: Counter[CodeLine] = Counter()
        for one in group:
            phases[one.phase] += one.block.requested_bytes
            caller = calling_line(line, lines[one.block.stack], roots)
            if caller is not None:
                callers[caller] += one.block.requested_bytes
        found.append(
            ProfileLine(
                held_bytes=sum(one.block.requested_bytes for one in group),
                blocks=len(group),
                category=category,
                phase=phases.most_common(1)[0][0],
                line=line,
                caller=callers.most_common(1)[0][0] if callers else None,
                before_bytes=sum(one.block.requested_bytes for one in group if one.block.made == BEFORE),
                name=name,
            )
        )
    return sorted(found, key=lambda one: (-one.held_bytes, one.category.value, one.line or CodeLine("", 0, "")))
