"""What a device of a rank is judged by: steps while they come in runs, the time where they are rare or stop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidegauge.agent.ranks.device_series import DeviceSeries
from tidegauge.core.detector import RankDetector
from tidegauge.core.samples import TICKS_ALONE_S, EventCode, RecordKind, Sample
from tidegauge.core.verdicts import LeakState, Severity, Signal, Verdict

MIB, GIB = 1 << 20, 1 << 30
TICK_S = 0.5
LIMIT_BYTES = 24 * GIB
MODEL_BYTES = 4 * GIB


class Program:
    """A rank that trains and pauses; each returns the verdicts of the polls meanwhile, one a record."""

    def __init__(self) -> None:
        self.series = DeviceSeries(0, RankDetector)
        self.bytes = MODEL_BYTES
        self.step = 0
        self._seq = 0
        self._now_s = 1000.0

    def train(self, steps: int, *, every_s: float = 0.25, keeps: int = 0) -> list[Verdict]:
        """``keeps``: bytes a step."""
        return [verdict for _ in range(steps) for verdict in self._step(every_s, keeps)]

    def pause(self, seconds: float, *, keeps: int = 0) -> list[Verdict]:
        """No step ends: it evaluates, answers requests, collects experience. ``keeps``: bytes a second."""
        return list(self._ticks(seconds, keeps))

    def let_go(self) -> None:
        self.bytes = MODEL_BYTES

    def _step(self, every_s: float, keeps: int) -> Iterator[Verdict]:
        ticking_s = TICK_S * (max(every_s - TICK_S, 0.0) // TICK_S)
        yield from self._ticks(ticking_s, 0)
        self.step += 1
        self.bytes += keeps
        yield self._record(RecordKind.STEP, every_s - ticking_s)

    def _ticks(self, seconds: float, keeps: int) -> Iterator[Verdict]:
        for _ in range(int(seconds / TICK_S)):
            self.bytes += int(keeps * TICK_S)
            yield self._record(RecordKind.TICK, TICK_S)

    def _record(self, kind: RecordKind, after_s: float) -> Verdict:
        self._seq += 1
        self._now_s += after_s
        # In the middle of something, a batch or a request is there as well: 0 to 63 MiB.
        batch = (self._seq * 7919 % 64) * MIB if kind is RecordKind.TICK else 0
        now, mono_ns = self.bytes + batch, int(self._now_s * 1e9)
        self.series.take(
            Sample(
                seq=self._seq, kind=kind, event=EventCode.NONE, device=0, wall_ns=mono_ns, mono_ns=mono_ns,
                step=self.step, raw_steps=self.step, phase=0,
                allocated_bytes=now, reserved_bytes=now + GIB, active_bytes=now, inactive_split_bytes=0,
                requested_bytes=now, allocated_peak_bytes=self.bytes + 64 * MIB, reserved_peak_bytes=now + GIB,
                active_peak_bytes=None, inactive_split_peak_bytes=None, requested_peak_bytes=None,
                alloc_retries=0, ooms=0, device_allocs=1, device_frees=0, segments=1, blocks=1,
            )
        )  # fmt: skip
        self.series.judge(host=None, limit_bytes=LIMIT_BYTES)
        return self.series.verdict


@pytest.fixture
def program() -> Program:
    return Program()


def states(verdicts: list[Verdict]) -> set[LeakState]:
    return {verdict.state for verdict in verdicts}


def test_a_leak_of_an_evaluation_that_follows_on_training_is_found_and_is_dangerous_before_the_end(
    program: Program,
) -> None:
    assert states(program.train(2000)) == {LeakState.OK}
    growing = program.pause(900, keeps=8 * MIB)[-1]
    assert (growing.state, growing.signal) == (LeakState.LEAK, Signal.ALLOCATED)
    assert (growing.severity, growing.onset_step, growing.bytes_per_step) == (Severity.WARNING, None, None)
    assert growing.seconds_to_oom is not None
    left_s = (LIMIT_BYTES - GIB - program.bytes) / (8 * MIB)
    assert growing.seconds_to_oom.low <= left_s <= growing.seconds_to_oom.high
    assert program.pause(900, keeps=8 * MIB)[-1].severity is Severity.CRITICAL


def test_an_evaluation_that_keeps_nothing_is_not_accused_and_training_goes_on_unaccused(program: Program) -> None:
    for _ in range(3):
        assert states(program.train(2000)) == {LeakState.OK}
        assert states(program.pause(1800)) == {LeakState.OK}


def test_a_pause_that_is_over_soon_is_not_judged(program: Program) -> None:
    program.train(2000)
    assert states(program.pause(TICKS_ALONE_S - 10, keeps=16 * MIB)) == {LeakState.OK}


@pytest.mark.parametrize("rollout_s", [150, 240, 300, 1200])
def test_rollouts_that_leak_between_rare_steps_are_found_and_stay_found(program: Program, rollout_s: int) -> None:
    told = []
    program.train(1)
    while program.bytes < LIMIT_BYTES / 2:
        told += program.pause(rollout_s, keeps=2 * MIB)
        told += program.train(1, every_s=TICK_S)
    first = next(at for at, verdict in enumerate(told) if verdict.state is LeakState.LEAK)
    assert first * TICK_S < 700
    assert states(told[first:]) == {LeakState.LEAK}


def test_rollouts_that_are_let_go_before_each_burst_of_steps_are_not_dangerous(program: Program) -> None:
    for _ in range(12):
        told = program.pause(420, keeps=16 * MIB)
        assert Severity.CRITICAL not in {verdict.severity for verdict in told}
        program.let_go()
        program.train(64)
    assert states(told) == {LeakState.OK}, "what came back so often is no growth"


def test_device_series_forgets_memory_loaded_before_the_first_step(program: Program) -> None:
    told = program.pause(600, keeps=20 * MIB)
    assert LeakState.LEAK in states(told), "nobody knows yet that it is loading"
    assert states(program.train(5000)) == {LeakState.OK}


def test_training_that_leaks_after_ten_minutes_without_steps_is_judged_by_steps_alone(program: Program) -> None:
    program.pause(600)
    verdict = program.train(1000, keeps=4 * MIB)[-1]
    assert (verdict.state, verdict.signal, verdict.onset_step) == (LeakState.LEAK, Signal.ALLOCATED, 1)
    assert verdict.bytes_per_step is not None


def test_device_series_forgets_evaluation_growth_once_training_resumes(program: Program) -> None:
    program.train(2000)
    assert program.pause(900, keeps=8 * MIB)[-1].state is LeakState.LEAK
    program.let_go()
    told = program.train(int(TICKS_ALONE_S / 0.25) + 2)
    assert told[-1].state is LeakState.OK
    assert states(program.train(4000)) == {LeakState.OK}


def test_a_leak_of_the_training_is_told_of_during_an_evaluation_until_it_is_given_back(program: Program) -> None:
    training = program.train(2000, keeps=4 * MIB)[-1]
    assert training.state is LeakState.LEAK
    assert program.pause(1800)[-1] == training
    program.let_go()
    assert program.pause(60)[-1].state is LeakState.OK


@pytest.mark.parametrize("every_s", [1.0, 100.0])
def test_steps_in_a_run_are_given_to_one_detector_and_the_ticks_between_to_none(every_s: float) -> None:
    made: list[RankDetector] = []

    def factory() -> RankDetector:
        made.append(RankDetector())
        return made[-1]

    program = Program()
    program.series = DeviceSeries(0, factory)
    program.train(4)
    program.train(60, every_s=every_s)
    assert len(made) == 1
