"""Headlines of incidents, for headers, notifications and lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidegauge.core.incidents import Closure, Incident, IncidentCause, IncidentState
from tidegauge.core.incidents.oom_ends import oom_end
from tidegauge.core.incidents.wording import capitalised, do, does, name_job, wanted_and_free
from tidegauge.core.jobs.rank_groups import launch_in_replica
from tidegauge.core.verdicts import Band, Severity
from tidegauge_exporter.messages.text import clock_band, time_left
from tidegauge_exporter.messages.values import ToldReplicas

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
    IncidentCause.FRAGMENTATION: "Reserved memory growth",
    IncidentCause.CUDA_GRAPHS: "CUDA graph pool growth",
    IncidentCause.OUTSIDE_ALLOCATOR: "Memory growth outside PyTorch",
    IncidentCause.HOST_MEMORY: "Host memory leak",
    IncidentCause.OUT_OF_MEMORY: "Out of memory",
    IncidentCause.SHARE_EXCEEDED: "GPU share exceeded",
}


MAX_REPLICAS_NAMED: Final = 4

_GROWTH: Final = {IncidentCause.LEAK: "Memory growth", IncidentCause.HOST_MEMORY: "Host memory growth"}
"""Names of causes that are called a leak once they are critical."""


def noun(incident: Incident) -> str:
    """The subject of a headline: "Memory leak"; "Memory growth" while it never was critical."""
    cause, worst = incident.key.cause, incident.worst_severity or incident.severity
    return NOUNS[cause] if worst is Severity.CRITICAL else _GROWTH.get(cause, NOUNS[cause])


def sign(incident: Incident) -> str:
    """The sign that shows state and severity as a colour."""
    if oom_end(incident) is not None:
        return OPEN_SIGNS[Severity.CRITICAL]
    if incident.state is IncidentState.OPEN:
        return OPEN_SIGNS[incident.severity]
    if incident.state is IncidentState.RECOVERING:
        return RECOVERING_SIGN
    return ENDED_SIGN if incident.closure is Closure.JOB_ENDED else RECOVERED_SIGN


def headline(incident: Incident, whose: str | None, end: str | None) -> str:
    """ "Memory leak in ada's job 4711: out of memory 06:14-06:22 UTC"; ``end`` is when, as a text, if it has one.
    ``whose=None``: the job is named beside it."""
    crashed = crash(incident, whose)
    if crashed is not None:
        return crashed
    what = noun(incident) + ("" if whose is None else f" in {whose}")
    if incident.state is IncidentState.RECOVERING:
        return f"Stopped for now: {_lowered(what)}"
    if incident.state is IncidentState.CLOSED:
        ended = "Job ended" if incident.closure is Closure.JOB_ENDED else "Resolved"
        return f"{ended}: {_lowered(what)}"
    if incident.key.cause is IncidentCause.OUT_OF_MEMORY:
        oom = incident.findings[0].oom if incident.findings else None
        return what if oom is None else f"{what} at step {oom.step:,}"
    return what if end is None else f"{what}: out of memory {end}"


def crash(incident: Incident, whose: str | None) -> str | None:
    """ "ada's job 4711 crashed: CUDA OOM at step 3,816 on rank 1 (wanted 20.0 MiB, 10.0 MiB free)"."""
    end = oom_end(incident)
    if end is None:
        return None
    ranks = f"rank {end.rank}{f' and {end.others} more' if end.others else ''}"
    error = f"CUDA OOM at step {end.oom.step:,}"
    if end.ended_job:
        who, error = whose or "", f"{error} on {ranks}"
    else:  # the job itself goes on
        who = f"{ranks}{'' if whose is None else f' of {whose}'}"
    line = f"{who} crashed: {error} ({wanted_and_free(end.oom)})".strip()
    return line if line.startswith(incident.user_name) else capitalised(line)  # a login name stays as it is


def owners_job(incident: Incident, replicas: ToldReplicas | None = None) -> str:
    """ "ada's job 4711", "3 of 8 replicas of ada's job team-a/vllm", to others."""
    return f"{_some_of(replicas)}{incident.user_name}'s {_job(incident, replicas)}"


def your_job(incident: Incident, replicas: ToldReplicas | None = None) -> str:
    """The same, to its owner: "your job 4711"."""
    return f"{_some_of(replicas)}{your_whole_job(incident, replicas)}"


def your_whole_job(incident: Incident, replicas: ToldReplicas | None) -> str:
    """The same without how many of its replicas: what stays the same as these come and go."""
    return f"your {_job(incident, replicas)}"


def replicas_sentence(incident: Incident, replicas: ToldReplicas | None) -> str:
    """ "3 of 8 replicas of job team-a/vllm leak."; empty for other jobs, and once all is over."""
    if replicas is None or not replicas.names:
        return ""
    cause, severity = incident.key.cause, incident.severity
    what = does(cause, severity=severity) if len(replicas.names) == 1 else do(cause, severity)
    return f"{_some_of(replicas)}{_job(incident, replicas)} {what}."


def replica_names(replicas: ToldReplicas | None) -> str:
    """ "replica 0, replica 3 and 6 more"."""
    names = () if replicas is None else replicas.names
    more = [f"{len(names) - MAX_REPLICAS_NAMED} more"] * (len(names) > MAX_REPLICAS_NAMED)
    return " and ".join([", ".join(names[:MAX_REPLICAS_NAMED]), *more])


def _some_of(replicas: ToldReplicas | None) -> str:
    return "" if replicas is None or not replicas.names else f"{replicas.counted} of "


def _job(incident: Incident, replicas: ToldReplicas | None) -> str:
    called = incident.called
    return name_job(called if replicas is None else called._replace(group=launch_in_replica(called.group)))


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
    """The forecast in seconds from now, as the incident's counts from its last figures; ``None`` without a forecast."""
    forecast = incident.seconds_to_oom
    if not incident.key.cause.is_growth or incident.state is not IncidentState.OPEN or incident.ran_out is not None:
        return None
    if forecast is None or forecast.low == float("inf") or incident.severity is Severity.NOTE:
        return None
    passed_s = max(now_unix_s - incident.updated_unix_s, 0.0)
    return Band(*(max(seconds - passed_s, 0.0) for seconds in forecast))


def as_of(incident: Incident, now_unix_s: float) -> Incident:
    """The incident with its forecast counted from now, for sentences about it."""
    left = seconds_left(incident, now_unix_s)
    return incident if left is None else replace(incident, seconds_to_oom=left)


def _lowered(text: str) -> str:
    """The text for the middle of a sentence; "GPU" stays as it is."""
    return text if text[:2].isupper() else text[:1].lower() + text[1:]
