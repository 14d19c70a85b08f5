"""The request for evidence from a rank: one request of the command ``evidence`` (docs/probe.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from tidegauge.core.evidence import EvidenceReason
from tidegauge.core.verdicts import LeakState, Signal, Verdict

MAX_EVENTS = 10_000
"""Of the allocator's history in a snapshot: some 10 ms to take (design 4)."""
STAIRCASE = "staircase"
"""``Verdict.cause`` of growth in steps that are far apart."""


class Window(NamedTuple):
    """The length of a recording, and whether a holder search follows."""

    warm_up_steps: int = 4
    """Between switching history on and the first snapshot: what lives within a step has a stack by then."""
    window_steps: int = 30
    enough_s: float = 30.0
    """Five steps will do from then on."""
    most_s: float = 120.0
    """It ends after so long, however slow the steps are."""
    holders: bool = True
    """Whether it is searched for what holds the tensors that grow."""


WINDOWS: Mapping[Signal, Window] = {
    Signal.ALLOCATED: Window(),
    Signal.RESERVED: Window(),
    Signal.NONTORCH: Window(holders=False),
    Signal.HOST: Window(),
}
"""By what grows. A search for holders stops Python for a moment, and is left out where no tensor grows: growth outside
the allocator shows in what the process counts (groups, contexts). Reserved memory may grow around tensors that stay."""
SLOW_STEPS = 8
"""Of a window whose steps are slow: the one under way, one to warm up, five between the snapshots, and one more."""
LONG_WINDOW = Window(window_steps=300, enough_s=300.0, most_s=300.0)
"""Of a staircase: 30 steps would most likely lie between two of its stairs, and show nothing."""


def window_for(verdict: Verdict) -> Window:
    """The window that shows this growth; without any, one as for tensors."""
    if verdict.cause == STAIRCASE:
        return LONG_WINDOW
    window = Window() if verdict.signal is None or verdict.state is LeakState.OK else WINDOWS[verdict.signal]
    step_s = _seconds_per_step(verdict)
    if step_s is None:
        return window
    wanted_s = 1.5 * step_s * SLOW_STEPS
    return window._replace(most_s=min(max(window.most_s, wanted_s), LONG_WINDOW.most_s))


def evidence_request(
    evidence_id: str, reason: EvidenceReason, window: Window, *, max_events: int = MAX_EVENTS
) -> dict[str, Any]:
    """The request. Sent again with the same id it only asks how far the rank is."""
    return {"command": "evidence", "id": evidence_id, "reason": reason.value, "max_events": max_events,
            **window._asdict()}  # fmt: skip


def _seconds_per_step(verdict: Verdict) -> Optional[float]:
    """The duration of a step, from the two rates of the same growth; ``None`` without both."""
    per_step, per_second = verdict.bytes_per_step, verdict.bytes_per_second
    if per_step is None or per_second is None or per_second.likely <= 0.0 or per_step.likely <= 0.0:
        return None
    return per_step.likely / per_second.likely
