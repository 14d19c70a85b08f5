"""`RankDetector`: turns one rank's readings into its `Verdict`."""

from __future__ import annotations

from typing import Optional, Union

from tidegauge.core.detector.danger import assumed_limit, head_room, host_room, severity_of
from tidegauge.core.detector.floors import Scale
from tidegauge.core.detector.forecast import Course, Pace, until
from tidegauge.core.detector.params import DEFAULT, Params, of_host, of_largest
from tidegauge.core.detector.signals import Derivation
from tidegauge.core.detector.state_dicts import StateDict, plain, set_plain
from tidegauge.core.detector.step_times import StepTimes
from tidegauge.core.detector.watch import Finding, SignalWatch, cause_of
from tidegauge.core.verdicts import OK, Band, Severity, Signal, Verdict
from tidegauge.core.wire import from_wire, to_wire


class _Reading:
    """The last values seen, for head-room."""

    __slots__ = ("allocated", "host_free", "host_room", "limit", "nontorch", "pieces", "reserved", "step", "time_s")

    def __init__(self) -> None:
        self.allocated = 0
        self.host_free: Optional[int] = None
        self.host_room: Optional[int] = None
        self.pieces: Optional[int] = None
        self.reserved = 0
        self.nontorch = 0
        self.limit: Optional[int] = None
        self.step = 0
        self.time_s = 0.0


class RankDetector:
    """Watches one device of one rank during one attempt; make a new one after a restart.

    Feed it one sample per training step at the step's boundary or, where no step hook fires, one per tick with a
    sample counter as `step`. State is constant in size; a call costs about a microsecond except at looks, whose
    number grows with the logarithm of the samples.
    """

    def __init__(self, params: Params = DEFAULT) -> None:
        self._params = params
        self._derive = Derivation(params)
        self._allocated = SignalWatch(Signal.ALLOCATED, params)
        self._need = SignalWatch(Signal.ALLOCATED, of_largest(params))
        """Of the largest need so far, which grows alone where a step keeps nothing but needs more and more in between.
        One value is fed for each floor of `_allocated`."""
        self._reserved = SignalWatch(Signal.RESERVED, params)
        self._nontorch = SignalWatch(Signal.NONTORCH, params)
        self._host = SignalWatch(Signal.HOST, of_host(params))
        self._last = _Reading()
        self._times = StepTimes()
        self._needs = Course()
        """What the device must have for the rank, which meets the limit, and not what the rank keeps: the most that
        tensors took at once (`torch.cat` into itself takes twice its size), and the pieces in between that a flush
        does not give back (small tensors kept among large ones pin the rest of a segment)."""
        self._most_reserved = Course()
        self._host_rooms = Course()
        """What the host had for the rank, with what it held itself."""
        self._verdict = OK
        self._told: Optional[tuple[SignalWatch, Finding, Severity]] = None
        """What `_verdict` tells of."""

    def state_dict(self) -> StateDict:
        """All that it remembers, for ``load_state_dict`` of a new detector with the same parameters."""
        told = None
        if self._told is not None:
            watch, finding, severity = self._told
            told = [self._watches.index(watch), to_wire(finding), severity.value]
        return {
            "last": plain(self._last, self._last.__slots__),
            "parts": [part.state_dict() for part in self._parts],
            "told": told,
            "verdict": to_wire(self._verdict),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Go on where another one was. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for what is no such state;
        then this detector is of no further use."""
        set_plain(self._last, self._last.__slots__, state["last"])
        for part, kept in zip(self._parts, state["parts"]):
            part.load_state_dict(kept)
        self._verdict = from_wire(Verdict, state["verdict"])
        if state["told"] is not None:
            watch, finding, severity = state["told"]
            self._told = (self._watches[watch], from_wire(Finding, finding), Severity(severity))

    @property
    def _watches(self) -> tuple[SignalWatch, ...]:
        return (self._allocated, self._need, self._reserved, self._nontorch, self._host)

    @property
    def _parts(self) -> tuple[Union[SignalWatch, Derivation, StepTimes, Course], ...]:
        return (*self._watches, self._derive, self._times, self._needs, self._most_reserved, self._host_rooms)

    @property
    def verdict(self) -> Verdict:
        """The state after the last sample: what the last look found, with what is left as of now."""
        return self._verdict if self._told is None else self._state(*self._told)

    def update(
        self,
        *,
        step: int,
        time_s: float,
        allocated_bytes: int,
        reserved_bytes: int,
        nontorch_bytes: Optional[int] = None,
        host_bytes: Optional[int] = None,
        allocated_peak_bytes: Optional[int] = None,
        inactive_split_bytes: Optional[int] = None,
        limit_bytes: Optional[int] = None,
        host_free_bytes: Optional[int] = None,
    ) -> Verdict:
        """Take one sample; returns the verdict of the last look (the same object until the next one; `verdict` counts
        down meanwhile).

        `nontorch_bytes`: NVML's bytes for the process less `reserved_bytes`, as read (it may jump and be negative).
        `allocated_peak_bytes`: the allocator's peak since any moment before this sample. `inactive_split_bytes`:
        free pieces of segments that are in use. `limit_bytes`: the most that
        reserved and nontorch together may reach. `host_free_bytes`: what `host_bytes` may still grow by before the
        kernel kills a process. `None` is not known.
        """
        last = self._last
        last.allocated = allocated_bytes
        last.reserved = reserved_bytes
        last.limit = limit_bytes
        last.host_free = host_free_bytes
        last.step = step
        last.time_s = time_s
        self._times.tick(step, time_s)
        derive = self._derive
        slack = derive.unexplained_reserved(allocated_bytes, reserved_bytes, allocated_peak_bytes)
        pieces = inactive_split_bytes
        last.pieces = None if pieces is None else derive.pieces_beside_peak(pieces, reserved_bytes)
        changed = False
        floors = self._allocated.floors
        due = floors.push(allocated_bytes, step, time_s)
        if due is not None:
            self._needs.record(step, self._needed)
            self._most_reserved.record(step, derive.most_reserved)
            changed = self._allocated.review(due, self._head(Signal.ALLOCATED).likely, step)
        if floors.filled == 0:
            due = self._need.floors.push(self._needed, step, time_s)
            if due is not None and self._allocated.finding is None:
                changed = self._review_need(due, step) or changed
        due = self._reserved.floors.push(slack, step, time_s)
        if due is not None and self._reserved.review(due, self._head(Signal.RESERVED).likely, step):
            changed = True
        if nontorch_bytes is not None:
            last.nontorch = derive.nontorch_proven(allocated_bytes, reserved_bytes, nontorch_bytes, time_s)
            due = self._nontorch.floors.push(last.nontorch, step, time_s)
            if due is not None and self._nontorch.review(due, self._head(Signal.NONTORCH).likely, step):
                changed = True
        if host_bytes is not None:
            due = self._host.floors.push(host_bytes, step, time_s)
            if due is not None and host_free_bytes is not None:
                last.host_room = host_free_bytes + host_bytes
                self._host_rooms.record(step, last.host_room)
            if due is not None and self._host.review(due, self._head(Signal.HOST).likely, step):
                changed = True
        if changed or (self._told is not None and self._danger_is_over()):
            self._verdict = self._conclude()
        return self._verdict

    def look_now(self) -> Verdict:
        """Look again now instead of when the next look is due: at the end of a recording, or before an action.

        Not for every sample: each look is a chance for a false alarm.
        """
        for watch in self._watches:
            watch.review(watch.floors.scales, self._head(watch.signal).likely, self._last.step)
        self._verdict = self._conclude()
        return self._verdict

    def _head(self, signal: Signal) -> Band:
        last = self._last
        if signal is Signal.HOST:
            return host_room(last.host_free)
        limit = last.limit
        if limit is None:
            limit = assumed_limit(self._params, reserved=last.reserved, nontorch=last.nontorch)
        return head_room(
            signal, limit, peak=self._derive.peak, next_peak=last.allocated + self._derive.transient,
            pieces=last.pieces, reserved=last.reserved, nontorch=last.nontorch,
        )  # fmt: skip

    def _review_need(self, due: list[Scale], step: int) -> bool:
        """Look at the largest need, once it has eaten half of the head-room that there was at first: before that its
        growth is not told. True when something may have changed."""
        head = self._head(Signal.ALLOCATED).likely
        gained = self._needed - self._needs.at(0)
        if gained < self._params.danger_share * (gained + head):
            self._need.floors.look_from = self._needed + self._params.look_eaten * head
            return False
        return self._need.review(due, head, step)

    @property
    def _needed(self) -> int:
        """Bytes that the device must have for tensors and the pieces between them."""
        return self._derive.peak + (self._last.pieces or 0)

    def _danger_is_over(self) -> bool:
        """Whether growth that was reported as critical has fallen since, before the next look is due."""
        if self._told is None or self._told[2] is not Severity.CRITICAL:
            return False
        watch, finding, _ = self._told
        return watch.floors.filled == 0 and watch.has_fallen(finding)

    def _knows_limit(self, signal: Signal) -> bool:
        return (self._last.host_free if signal is Signal.HOST else self._last.limit) is not None

    def _conclude(self) -> Verdict:
        """The verdict on the signal that matters most: surest first, then most severe, then most bytes gained."""
        best: Optional[tuple[tuple[int, int, float], SignalWatch, Finding, Severity]] = None
        for watch in self._watches:
            finding = watch.finding
            if finding is None:
                continue
            severity = self._severity(watch, finding)
            if watch is self._need and (severity is not Severity.CRITICAL or self._allocated.finding is not None):
                continue  # largest batches come one after the other in healthy jobs, too
            key = (finding.state.level, severity.level, finding.gained)
            if best is None or key > best[0]:
                best = (key, watch, finding, severity)
        if best is None:
            self._told = None
            return OK
        self._told = best[1:]
        return self._state(*self._told)

    def _room(self, finding: Finding) -> Band:
        """Bytes until the process must fail, were only this growth to go on."""
        head = self._head(finding.signal)
        if finding.signal is not Signal.RESERVED or self._last.pieces is None:
            return head
        stuck = max(finding.gained - self._last.pieces, 0.0) if finding.even else 0.0
        unused = max(self._last.reserved - self._needed, 0)  # at worst nobody can give it back
        return Band(max(head.low - max(stuck, unused), 0.0), max(head.likely - stuck, 0.0), max(head.high - stuck, 0.0))

    def _pace(self, finding: Finding) -> Optional[Pace]:
        """Per step, or per second where the step does not advance: of the need, where that grows faster than what is
        kept."""
        if finding.per_step is None:
            return finding.per_second
        pace = finding.per_step
        if finding.signal not in (Signal.ALLOCATED, Signal.RESERVED) or pace.rate.likely <= 0:
            return pace
        factor = self._needs.per_step(finding.onset_step) / pace.rate.likely
        if finding.signal is Signal.RESERVED and self._last.pieces is not None and not finding.even:
            return pace.slower(min(max(factor, 0.0), 1.0))  # of what is reserved, a flush gives back the rest
        return pace.faster(factor) if factor > 1 and finding.signal is Signal.ALLOCATED else pace

    def _kept(self, finding: Finding) -> float:
        """Bytes of the growth that a flush does not give back: of what is reserved the pieces, or all that grows evenly
        (private pools)."""
        if finding.signal is not Signal.RESERVED or self._last.pieces is None or finding.even:
            return finding.gained
        return min(finding.gained, float(self._last.pieces))

    def _left(self, finding: Finding, head: Band) -> tuple[Optional[Band], Optional[Band]]:
        """Steps and seconds until `head` is eaten; each `None` where it is not known."""
        pace = self._pace(finding)
        if pace is None:
            return None, None
        left = until(head, pace)
        if finding.per_step is None:
            return None, left
        step_s = self._times.per_step_s()
        if step_s is None:
            return left, None
        return left, Band(left.low * step_s.low, left.likely * step_s.likely, left.high * step_s.high)

    def _is_new(self, watch: SignalWatch, finding: Finding) -> bool:
        """The job needs more than it ever did before the growth: what falls and comes back has been survived before,
        and what grows below a peak that stays has eaten nothing."""
        enough = self._params.net_new_min * finding.gained
        if finding.signal is Signal.ALLOCATED:
            new = float(self._needed - self._needs.at(finding.onset_step))
            return new >= min(enough, self._head(finding.signal).likely)
        if finding.signal is Signal.RESERVED:
            return self._derive.most_reserved - self._most_reserved.at(finding.onset_step) >= enough
        return finding.level - watch.highest_before(finding.onset_step, finding.width) >= enough

    def _is_own_doing(self, finding: Finding, head: float) -> bool:
        """The growth takes more than a little of what there would be, had others not taken it: of the host since it
        began, of the device the allocator's idle cache where it is outside the allocator. A device's limit may have
        fallen because somebody set a cap, which is no excuse."""
        taken = 0.0
        if finding.signal is Signal.HOST and self._last.host_room is not None:
            taken = max(self._host_rooms.at(finding.onset_step) - self._last.host_room, 0.0)
        elif finding.signal is Signal.NONTORCH:
            taken = max(self._head(Signal.ALLOCATED).likely - head, 0.0)
        return finding.gained >= self._params.own_share_min * (finding.gained + head + taken)

    def _severity(self, watch: SignalWatch, finding: Finding) -> Severity:
        head = self._room(finding)
        step = finding.per_step
        known = self._knows_limit(finding.signal)
        if finding.signal is Signal.HOST and not known:
            head = Band(*[float(self._params.typical_limit_bytes)] * 3)
        steps, seconds = self._left(finding, head)
        seconds_left: Optional[float] = None
        seconds_seen = self._last.time_s - finding.onset_s
        if seconds is not None:
            seconds_left = seconds.likely
        elif steps is not None:
            seconds_left = steps.likely * self._params.typical_step_s
            seconds_seen = (self._last.step - finding.onset_step) * self._params.typical_step_s
        severity = severity_of(
            gained=self._kept(finding),
            head=head.likely,
            seconds_seen=seconds_seen,
            seconds_left=seconds_left,
            bytes_per_step=None if step is None else step.rate.likely,
            limit_known=known,
            params=watch.params,
        )
        if severity is not Severity.CRITICAL:
            watch.danger.withdraw()
            return severity
        if watch.has_fallen(finding):
            watch.danger.withdraw()
            return Severity.WARNING
        sure = self._kept(finding) >= watch.params.danger_share_soon * (self._kept(finding) + head.likely)
        reaches = (
            self._is_new(watch, finding)
            and self._is_own_doing(finding, head.likely)
            and watch.still_to_come(finding) >= max(head.likely, 1.0)
        )
        return severity if watch.danger.judged(reaches, sure=sure, look=watch.looks) else Severity.WARNING

    def _state(self, watch: SignalWatch, finding: Finding, severity: Severity) -> Verdict:
        steps = seconds = eaten = None
        if self._knows_limit(finding.signal):
            head = self._room(finding)
            steps, seconds = self._left(finding, head)
            kept = self._kept(finding)
            eaten = kept / (kept + head.likely) if kept + head.likely > 0 else 1.0
        return Verdict(
            state=finding.state,
            severity=severity,
            signal=finding.signal,
            cause=cause_of(finding),
            onset_step=finding.onset_step,
            suspect_step=watch.suspect_step,
            alarm_step=watch.alarm_step,
            bytes_per_step=None if finding.per_step is None else finding.per_step.rate,
            bytes_per_second=self._per_second(finding),
            grown_bytes=int(finding.gained),
            steps_to_oom=steps,
            seconds_to_oom=seconds,
            headroom_eaten=eaten,
        )

    def _per_second(self, finding: Finding) -> Optional[Band]:
        """Bytes per second at the present speed."""
        if finding.per_step is None:
            return None if finding.per_second is None else finding.per_second.rate
        step_s = self._times.per_step_s()
        if step_s is None:
            return None
        rate = finding.per_step.rate
        return Band(rate.low / step_s.high, rate.likely / step_s.likely, rate.high / step_s.low)
