"""Verdicts of the leak detector on one rank, in the terms that agent, exporter, policy and people use."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Optional


class Signal(str, Enum):
    """The series of bytes that grows."""

    ALLOCATED = "allocated"
    """Live tensors: ``allocated_bytes.all.current`` at step boundaries."""
    RESERVED = "reserved"
    """Held by the caching allocator beyond what tensors explain: fragmentation, private pools of CUDA graphs."""
    NONTORCH = "nontorch"
    """NVML's bytes for the process minus reserved: CUDA context, NCCL, cuBLAS, other libraries."""
    HOST = "host"
    """Host memory of the rank's process tree: anonymous and shared, what several processes share once."""


class LeakState(str, Enum):
    """The detector's certainty. The order is the order of alarm; ``tidegauge_rank_leak_state`` exports ``level``."""

    OK = "ok"
    SUSPECTED = "suspected"
    """A trend that is worth evidence (escalation), not yet worth an action."""
    LEAK = "leak"
    """Growth that goes on, established; told as "growing" until its severity is critical."""

    @property
    def level(self) -> int:
        """0 ok, 1 suspected, 2 leak: growing, dangerous or not."""
        return ("ok", "suspected", "leak").index(self.value)


class Severity(str, Enum):
    """The severity of growth, given the memory of the GPU that it runs on."""

    NOTE = "note"
    """True, but it would take weeks to matter."""
    WARNING = "warning"
    """It runs out of memory within days if it goes on."""
    CRITICAL = "critical"
    """Dangerous: it has eaten half of the memory that was free when it began, and goes on."""

    @property
    def level(self) -> int:
        """1 note, 2 warning, 3 critical; 0 is for no severity at all."""
        return 1 + ("note", "warning", "critical").index(self.value)


def alarm_level(state: LeakState, severity: Optional[Severity]) -> tuple[int, int]:
    """How alarming a verdict is, to compare it with others: by its state, then by its severity, 0 for none."""
    return state.level, 0 if severity is None else severity.level


def state_word(state: LeakState, severity: Optional[Severity], *, has_steps: bool = True) -> str:
    """The word for people: growth is a leak once it is dangerous; before any step, "ok" would promise too much."""
    if state is LeakState.OK and not has_steps:
        return "no steps"
    return "growing" if state is LeakState.LEAK and severity is not Severity.CRITICAL else state.value


SEVERITY_MARKS = {Severity.NOTE: "!", Severity.WARNING: "!!", Severity.CRITICAL: "!!!"}
"""Beside a state in tables: a degree that nobody needs to tell by its colour."""


class Band(NamedTuple):
    """An estimate with its range: ``low <= likely <= high``.

    Of a time to out-of-memory, docs/detector.md counts how often memory ran out before ``low``; ``high`` may be
    infinite.
    """

    low: float
    likely: float
    high: float


class Verdict(NamedTuple):
    """State of the detector after the last sample of one rank. ``None`` means unknown or not applicable."""

    state: LeakState
    severity: Optional[Severity] = None
    signal: Optional[Signal] = None
    cause: Optional[str] = None
    """A short stable word for the kind of growth, such as ``tensors_kept``, ``staircase``, ``reserved_growth``,
    ``outside_allocator``, ``host_growth``: listed in docs/detector.md."""
    onset_step: Optional[int] = None
    """The step at which the growth began."""
    suspect_step: Optional[int] = None
    """The first step at which this growth was suspected (evidence would be collected)."""
    alarm_step: Optional[int] = None
    """The first step at which the growth was established: state LEAK. Policy is asked once it is critical."""
    bytes_per_step: Optional[Band] = None
    bytes_per_second: Optional[Band] = None
    grown_bytes: Optional[int] = None
    """How much of ``signal`` has been gained since ``onset_step``."""
    steps_to_oom: Optional[Band] = None
    """Steps until the limit that really applies (fraction cap, card, other processes); ``None`` without a limit."""
    seconds_to_oom: Optional[Band] = None
    headroom_eaten: Optional[float] = None
    """Share of the bytes that were free when the growth began that it has taken, 0 to 1; ``None`` without a limit."""


OK = Verdict(LeakState.OK)
"""Nothing to say."""
