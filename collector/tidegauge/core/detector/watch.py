"""Watches one signal: looks at its floors, remembers the growth that it finds, and withdraws it when it ends."""

from __future__ import annotations

from bisect import bisect_left
from math import inf
from operator import eq
from typing import Any, NamedTuple, Optional

from tidegauge.core.detector.danger import Danger, still_to_come
from tidegauge.core.detector.floors import Floors, Scale
from tidegauge.core.detector.forecast import Pace, pace_of
from tidegauge.core.detector.params import Params
from tidegauge.core.detector.shape import Ended, Growth, floors_above, ladder_of, look, net, usual_reversal
from tidegauge.core.detector.state_dicts import StateDict, plain, set_plain
from tidegauge.core.verdicts import LeakState, Signal
from tidegauge.core.wire import from_wire, to_wire

_NEWEST_FLOORS = 4
"""Floors of the finer scale whose minimum is the newest level."""

_FIRST_FLOORS = 4
"""Growth that begins in so many first floors of a scale that has forgotten began before them, if it was known then."""

_PLATEAU_FLOORS = 4
"""Fewest floors since the onset that show whether growth levels off."""

_STATE = ("suspect_step", "alarm_step", "looks")

SCALAR_BYTES_PER_STEP = 1024
"""Two of the allocator's smallest blocks (512 B)."""

CAUSES: dict[str, str] = {
    "tensors_kept": "Live tensors accumulate steadily: a list, a hook or a graph keeps what each step creates.",
    "staircase": "Live tensors accumulate in regular jumps: something is kept per epoch, evaluation or checkpoint.",
    "scalars_kept": "About one or two smallest blocks (512 B) a step: losses or metrics kept as tensors.",
    "reserved_growth": "The allocator reserves more and more although tensors do not need more: fragmentation, or CUDA "
    "graphs that each keep a private pool. Evidence shows which.",
    "outside_allocator": "Device memory grows outside PyTorch: communicators, contexts or another library.",
    "host_growth": "Host memory of the rank grows: typically a graph kept through an un-detached loss.",
}
"""Every word that `Verdict.cause` can have, and what it means."""


class Finding(NamedTuple):
    """Growth of one signal that was still going on at the last look at one scale."""

    state: LeakState
    signal: Signal
    onset_step: int
    onset_s: float
    gained: float
    """Bytes since the onset."""
    level: float
    """The signal's level at the last look."""
    samples: int
    """Samples since the onset."""
    width: int
    """Samples in a floor of the scale that shows it."""
    stepwise: bool
    """It grows in separate steps, level in between."""
    even: bool
    """It rose many times, and was never far from a straight line."""
    per_step: Optional[Pace]
    """None when the step does not advance."""
    per_second: Optional[Pace]
    """Known only where the step does not advance: else `StepTimes` knows better what a step takes now."""


def finding_of(kept: Any) -> Optional[Finding]:
    """What ``to_wire`` made of a finding, or of ``None``."""
    return None if kept is None else from_wire(Finding, kept)


class _Memory:
    """The finding of one scale, and the number of looks for which it has held."""

    __slots__ = ("agreed", "finding", "missed")

    def __init__(self) -> None:
        self.finding: Optional[Finding] = None
        self.agreed = 0
        self.missed = 0


class SignalWatch:
    """State machine of one signal: quiet, suspected, leak, and back when the growth ends or is taken back."""

    __slots__ = (
        "_least_bytes", "_memories", "alarm_step", "danger", "finding", "floors", "looks", "params", "signal",
        "suspect_step",
    )  # fmt: skip

    def __init__(self, signal: Signal, params: Params) -> None:
        self.signal = signal
        self.floors = Floors(params)
        self.finding: Optional[Finding] = None
        """The surest finding of all scales; of equals, the longest."""
        self.suspect_step: Optional[int] = None
        self.alarm_step: Optional[int] = None
        self.danger = Danger()
        self.looks = 0
        """Looks so far."""
        self.params = params
        self._memories: dict[int, _Memory] = {}
        self._least_bytes = {
            Signal.ALLOCATED: params.allocated_min_bytes,
            Signal.RESERVED: params.reserved_min_bytes,
            Signal.NONTORCH: params.nontorch_min_bytes,
            Signal.HOST: params.host_min_bytes,
        }[signal]

    def state_dict(self) -> StateDict:
        memories = {
            str(width): [to_wire(memory.finding), memory.agreed, memory.missed]
            for width, memory in self._memories.items()
        }
        return {
            **plain(self, _STATE),
            "floors": self.floors.state_dict(),
            "danger": self.danger.state_dict(),
            "finding": to_wire(self.finding),
            "memories": memories,
        }

    def load_state_dict(self, state: StateDict) -> None:
        set_plain(self, _STATE, state)
        self.floors.load_state_dict(state["floors"])
        self.danger.load_state_dict(state["danger"])
        self.finding = finding_of(state["finding"])
        for width, (finding, agreed, missed) in state["memories"].items():
            memory = self._memories[int(width)] = _Memory()
            memory.finding, memory.agreed, memory.missed = finding_of(finding), agreed, missed

    def review(self, due: list[Scale], head: float, step: int) -> bool:
        """Look at the scales that are due. `head`: bytes left to the limit. True when `finding` may be another one."""
        self.looks += 1
        for scale in due or self._looked_at_early():
            scale.new = 0
            scale.pending = False
            self._review_scale(scale, head)
        self._look_again_from(head)
        before = self.finding
        found = [memory.finding for memory in self._memories.values() if memory.finding is not None]
        self.finding = max(found, key=lambda finding: (finding.state.level, finding.samples), default=None)
        if self.finding is None:
            self.suspect_step = self.alarm_step = None
            self.danger.withdraw()
        else:
            self.suspect_step = step if self.suspect_step is None else self.suspect_step
            if self.finding.state is LeakState.LEAK and self.alarm_step is None:
                self.alarm_step = step
        return before is not None or self.finding is not None

    def _looked_at_early(self) -> list[Scale]:
        """Scales to look at because much more of the head-room is eaten: all, until a leak is established; then the
        one that shows it."""
        if self.alarm_step is None or self.finding is None:
            return self.floors.scales
        return [scale for scale in self.floors.scales if scale.width == self.finding.width]

    def _look_again_from(self, head: float) -> None:
        """The next look comes at the latest when another `look_eaten` of the head-room is eaten."""
        scale = self.floors.scales[0]
        if not scale.mins:
            return
        lowest, level = min(scale.mins), max(scale.mins)
        room = max(scale.mins[-1] - lowest + head, 1.0)
        eaten = max((level - lowest) / room + self.params.look_eaten, self.params.look_eaten_min)
        self.floors.look_from = lowest + eaten * room

    def highest_before(self, onset_step: int, width: int) -> float:
        """The highest floor that ended before `onset_step`, of scales whose floors have `width` samples and more."""
        scales = [scale for scale in self.floors.scales if scale.width >= width]
        before = [scale.mins[: bisect_left(scale.steps, onset_step)] for scale in scales]
        return max((max(mins) for mins in before if mins), default=-inf)

    def _is_new(self, found: Growth, scale: Scale) -> bool:
        """A quarter of it lies above all floors before it: else memory falls and comes back."""
        before = self.highest_before(scale.steps[found.start], scale.width)
        return found.ladder[found.end] - before >= self.params.net_new_min * found.gained

    def has_fallen(self, finding: Finding) -> bool:
        """Whether more than half of the growth was given back since: the newest floors of the finest scale, which are
        closed long before those of the scale that shows it, say so without exception."""
        newest = self.floors.scales[0].mins[-_NEWEST_FLOORS:]
        return max(newest, default=inf) < finding.level - finding.gained / 2

    def still_to_come(self, finding: Finding) -> float:
        """Bytes that the signal is expected to gain yet: see `danger`. Growth too young for the longest view to show
        is expected to go on."""
        scale = next(scale for scale in self.floors.scales if not scale.forgotten)
        if bisect_left(scale.steps, finding.onset_step) >= len(scale.steps) - _PLATEAU_FLOORS:
            return inf
        return still_to_come(scale.mins, self.params, raised=self.danger.raised)

    def _review_scale(self, scale: Scale, head: float) -> None:
        finer = self._finer(scale)
        if finer is not None and not finer.forgotten:
            return  # it sees as much of the past, and sharper
        if scale.forgotten and self._established_by_longer(scale):
            self._memories.pop(scale.width, None)
            return
        memory = self._memories.get(scale.width)
        if memory is None:
            if not self._could_matter(scale, head):
                return
            memory = self._memories[scale.width] = _Memory()
        found = look(scale.mins, self._least_bytes, self.params)
        if isinstance(found, Growth) and (
            (finer is not None and self._has_paused(found, scale, finer))
            or (scale.forgotten and self._is_a_tooth(found))
        ):
            found = Ended(found.gained, doubtful=False)
        state = self._state_of(found, scale, head) if isinstance(found, Growth) else LeakState.OK
        if state is not LeakState.LEAK and self._catch(scale, head):
            return
        if isinstance(found, Growth) and state is not LeakState.OK:
            memory.missed = 0
            memory.agreed = memory.agreed + 1 if state is LeakState.LEAK else 0
            if memory.agreed < self.params.leak_looks and self.alarm_step is None:
                scale.pending = memory.agreed > 0
                state = LeakState.SUSPECTED
            memory.finding = self._describe(found, scale, state)
            return
        memory.missed += 1
        uncertain = found is None or (isinstance(found, Ended) and found.doubtful)
        if uncertain and self._still_held(memory, scale):
            return
        del self._memories[scale.width]

    def _catch(self, scale: Scale, head: float) -> bool:
        """Most of the head-room is eaten, in whatever shape."""
        found = net(scale.mins, head, self.params)
        if found is None or (self.signal is Signal.HOST and found.gained < self._least_bytes):
            return False  # others fill the host, too: where they left nothing, any creep would be most of what is left
        memory = self._memories.setdefault(scale.width, _Memory())
        memory.missed = 0
        memory.agreed += 1
        nearly_all = found.gained >= self.params.danger_share_soon * (found.gained + head)
        sure = nearly_all or memory.agreed >= self.params.leak_looks or self.alarm_step is not None
        memory.finding = self._describe(found, scale, LeakState.LEAK if sure else LeakState.SUSPECTED)
        return True

    def _established_by_longer(self, scale: Scale) -> bool:
        """A scale with a longer view holds a leak: the shorter view has nothing to add."""
        return any(
            width > scale.width and memory.finding is not None and memory.finding.state is LeakState.LEAK
            for width, memory in self._memories.items()
        )

    def _finer(self, scale: Scale) -> Optional[Scale]:
        for finer in self.floors.scales:
            if finer.width * self.params.scale_ratio == scale.width:
                return finer
        return None

    def _has_paused(self, found: Growth, scale: Scale, finer: Scale) -> bool:
        """The next finer scale sees the end of a growth sooner than the scale that sees all of the growth."""
        newest = min(finer.mins[-_NEWEST_FLOORS:])
        quiet = floors_above(finer.mins, newest - found.gained * 0.5 / self.params.levels) - _NEWEST_FLOORS
        return quiet * finer.width > (found.pause_limit + 1) * scale.width

    def _is_a_tooth(self, found: Growth) -> bool:
        """What a scale that has forgotten the start sees as growth may be one of many teeth to the longest view."""
        for scale in self.floors.scales:
            if not scale.forgotten and len(scale.mins) >= self.params.coarse_floors_min:
                ladder = ladder_of(scale.mins, len(scale.mins) - 1)
                return found.gained < self.params.tooth_ratio * usual_reversal(scale.mins, ladder, self.params)
        return False

    def _could_matter(self, scale: Scale, head: float) -> bool:
        """Cheap exit for the fine scales of a long run: too short a past to be suspected, and no head-room eaten."""
        covered = len(scale.mins) * scale.width
        if covered >= self.params.suspect_history_share * self.floors.samples:
            return True
        gained = scale.mins[-1] - scale.mins[0]
        return gained >= self.params.urgent_share * (gained + head)

    def _state_of(self, found: Growth, scale: Scale, head: float) -> LeakState:
        """The certainty that the shape and the length of the growth give."""
        params = self.params
        samples = (len(scale.mins) - found.start) * scale.width
        history = self.floors.samples - samples
        share = params.host_urgent_share if self.signal is Signal.HOST else params.urgent_share
        urgent = found.gained >= share * (found.gained + head) and self._is_new(found, scale)
        lasted_s = scale.times[-1] - scale.times[found.start]
        if self.signal is Signal.HOST and lasted_s < params.host_min_s and not urgent:
            return LeakState.OK
        if self.alarm_step is not None:
            return LeakState.LEAK  # established before, and it goes on
        if found.reversal_ratio >= params.reversal_ratio_leak and samples >= params.leak_samples:
            wanted = params.leak_history_share * history
            if found.quiet * scale.width < params.start_share * samples:
                wanted = max(float(params.leak_steps_from_start), history)
            # A recording of every k-th step has fewer samples of as long a growth.
            length = max(samples, scale.steps[-1] - scale.steps[found.start])
            if length >= wanted or urgent:
                return LeakState.LEAK
        if samples >= params.suspect_samples and samples >= params.suspect_history_share * history:
            return LeakState.SUSPECTED
        return LeakState.OK

    def _still_held(self, memory: _Memory, scale: Scale) -> bool:
        """An established growth survives a few looks that miss it, as long as half of it was not given back."""
        held = memory.finding
        return (
            held is not None
            and held.state is LeakState.LEAK
            and memory.missed <= self.params.keep_looks
            and min(scale.mins[-2:]) >= held.level - held.gained / 2
        )

    def _describe(self, found: Growth, scale: Scale, state: LeakState) -> Finding:
        first, last = found.start, found.end + 1
        points = slice(first, last, max(1, (last - first) // self.params.forecast_points))
        levels = found.ladder[points]
        pace = pace_of(levels)
        per_step = pace.per(scale.steps[points])
        at_start = first <= 1 and not scale.forgotten
        onset_step, onset_s = self.floors.first if at_start else (scale.steps[first], scale.times[first])
        gained, before = found.gained, self.finding
        if before is not None and scale.forgotten and before.onset_step < scale.steps[0] and first <= _FIRST_FLOORS:
            # The scale has forgotten where it began; what was found before has not.
            onset_step, onset_s = before.onset_step, before.onset_s
            gained = max(gained, found.ladder[found.end] - (before.level - before.gained))
        return Finding(
            state=state,
            signal=self.signal,
            onset_step=onset_step,
            onset_s=onset_s,
            gained=gained,
            level=found.ladder[found.end],
            samples=(len(scale.mins) - first) * scale.width,
            width=scale.width,
            stepwise=_is_stepwise(found),
            even=_is_even(found, self.params),
            per_step=per_step,
            per_second=pace.per(scale.times[points]) if per_step is None else None,
        )


def _is_even(found: Growth, params: Params) -> bool:
    """Many rises, and all of it close to the straight line from first to last."""
    ladder = found.ladder[found.start : found.end + 1]
    gained, last = ladder[-1] - ladder[0], len(ladder) - 1
    if gained <= 0 or len(set(ladder)) <= params.even_rises:
        return False
    return all(
        abs(value - ladder[0] - gained * at / last) <= params.even_share * gained for at, value in enumerate(ladder)
    )


def _is_stepwise(found: Growth) -> bool:
    """Three quarters of the floors did not rise, and little noise that could make it look so."""
    if found.reversal_ratio < 50:
        return False
    ladder = found.ladder[found.start :]
    level: int = sum(map(eq, ladder[1:], ladder))
    return level >= 0.75 * (len(ladder) - 1)


def cause_of(finding: Finding) -> str:
    """The word for what was found. It says how memory grows; which line does it is for the snapshots to say."""
    if finding.signal is Signal.RESERVED:
        return "reserved_growth"
    if finding.signal is Signal.NONTORCH:
        return "outside_allocator"
    if finding.signal is Signal.HOST:
        return "host_growth"
    pace = finding.per_step
    if pace is not None and pace.rate.likely <= SCALAR_BYTES_PER_STEP:
        return "scalars_kept"
    return "staircase" if finding.stepwise else "tensors_kept"
