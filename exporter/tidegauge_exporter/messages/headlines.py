"""The one line that says it all, for a header, a notification and a line in a list."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidegauge.core.incidents import Closure, Incident, IncidentCause, IncidentState
from tidegauge.core.incidents.wording import name_job
from tidegauge.core.verdicts import Band, Severity
from tidegauge_exporter.messages.text import clock_band, time_left

OPEN_SIGNS: Final = {
    Severity.CRITICAL: "\N{LARGE RED CIRCLE}",
    Severity.WARNING: "\N{LARGE ORANGE CIRCLE}",
    Severity.NOTE: "\N{LARGE YELLOW CIRCLE}",
}
RECOVERING_SIGN: Final = "\N{LARGE BLUE CIRCLE}"
RECOVERED_SIGN: Final = "\N{LARGE GREEN CIRCLE}"
ENDED_SIGN: Final = "\N{MEDIUM WHITE CIRCLE}"

NOUNS: Final = {
    IncidentCause.LEAK: "Memory leak",
    IncidentCause.FRAGMENTATION: "Growth of reserved memory",
    IncidentCause.CUDA_GRAPHS: "Memory growth in pools of CUDA graphs",
    IncidentCause.OUTSIDE_ALLOCATOR: "Memory growth outside PyTorch",
    IncidentCause.HOST_MEMORY: "Leak of host memory",
    IncidentCause.OUT_OF_MEMORY: "Out of memory",
    IncidentCause.SHARE_EXCEEDED: "GPU share exceeded",
}


_GROWTH: Final = {IncidentCause.LEAK: "Memory growth", IncidentCause.HOST_MEMORY: "Growth of host memory"}
"""Of what is called a leak once it is critical."""


def noun(incident: Incident) -> str:
    """What it is about, in a headline: "Memory leak"; "Memory growth" while it never was critical."""
    cause, worst = incident.key.cause, incident.worst_severity or incident.severity
    return NOUNS[cause] if worst is Severity.CRITICAL else _GROWTH.get(cause, NOUNS[cause])


def sign(incident: Incident) -> str:
    """State and severity as a colour."""
    if incident.state is IncidentState.OPEN:
        return OPEN_SIGNS[incident.severity]
    if incident.state is IncidentState.RECOVERING:
        return RECOVERING_SIGN
    return ENDED_SIGN if incident.closure is Closure.JOB_ENDED else RECOVERED_SIGN


def headline(incident: Incident, whose: str | None, end: str | None) -> str:
    """ "Memory leak in ada's job 4711: out of memory 06:14-06:22 UTC"; ``end`` is when, as a text, if it has one.
    ``whose=None``: the job is named beside it."""
    what = noun(incident) + ("" if whose is None else f" in {whose}")
    if incident.state is IncidentState.RECOVERING:
        return f"Stopped for now: {_lowered(what)}"
    if incident.state is IncidentState.CLOSED:
        return f"{'Job ended' if incident.closure is Closure.JOB_ENDED else 'Over'}: {_lowered(what)}"
    if incident.key.cause is IncidentCause.OUT_OF_MEMORY:
        oom = incident.findings[0].oom if incident.findings else None
        return what if oom is None else f"{what} at step {oom.step:,}"
    return what if end is None else f"{what}: out of memory {end}"


def owners_job(incident: Incident) -> str:
    """ "ada's job 4711", to others."""
    return f"{incident.user_name}'s {name_job(incident.called)}"


def your_job(incident: Incident) -> str:
    """ "your job 4711", to its owner."""
    return f"your {name_job(incident.called)}"


def end_by_clock(incident: Incident, now_unix_s: float) -> str | None:
    """ "06:14-06:22 UTC": for what is read hours later. ``None`` while no end is in sight."""
    left = seconds_left(incident, now_unix_s)
    if left is None:
        return None
    return clock_band(left, now_unix_s) or f"in {time_left(left)}"


def end_by_time_left(incident: Incident, now_unix_s: float) -> str | None:
    """ "in 14-22 min": for what is read at once."""
    left = seconds_left(incident, now_unix_s)
    if left is None:
        return None
    words = time_left(left)
    return words if words.startswith("any") else f"in {words}"


def seconds_left(incident: Incident, now_unix_s: float) -> Band | None:
    """From now, where the incident counts from its last figures; ``None`` while no end is in sight."""
    forecast = incident.seconds_to_oom
    if not incident.key.cause.is_growth or incident.state is not IncidentState.OPEN:
        return None
    if forecast is None or forecast.low == float("inf") or incident.severity is Severity.NOTE:
        return None
    passed_s = max(now_unix_s - incident.updated_unix_s, 0.0)
    return Band(*(max(seconds - passed_s, 0.0) for seconds in forecast))


def as_of(incident: Incident, now_unix_s: float) -> Incident:
    """The incident with its time to out-of-memory counted from now, for sentences about it."""
    left = seconds_left(incident, now_unix_s)
    return incident if left is None else replace(incident, seconds_to_oom=left)


def _lowered(text: str) -> str:
    """In the middle of a sentence; "GPU" stays as it is."""
    return text if text[:2].isupper() else text[:1].lower() + text[1:]
