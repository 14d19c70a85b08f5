"""Rows of the table of metrics about incidents, actions and nodes, on the coordinator's page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidegauge.core.incidents import IncidentCause
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.incidents.loop_figures import ACTION_OUTCOMES, JobFigures, LoopFigures, OpenIncident
from tidegauge.core.jobs.right_size import GpuUsage
from tidegauge.core.verdicts import Severity
from tidegauge_exporter.metrics.families import JOB_LABELS, CountedMetric, MetricKind, label_value

_Numbers = Mapping[tuple[str, ...], float]


def _incidents_total(figures: LoopFigures) -> _Numbers:
    return {(cause.value,): figures.incidents_total.get(cause, 0) for cause in IncidentCause}


def _incidents_open(figures: LoopFigures) -> _Numbers:
    pairs = [(cause, severity) for cause in IncidentCause for severity in Severity]
    return {
        (cause.value, severity.value): figures.incidents_open.get((cause, severity), 0) for cause, severity in pairs
    }


def _actions_total(figures: LoopFigures) -> _Numbers:
    pairs = [(action.value, outcome) for action in ActionKind for outcome in ACTION_OUTCOMES]
    return {pair: figures.actions_total.get(pair, 0) for pair in pairs}


def _from_store(
    what: str, kind: MetricKind, text: str, labels: tuple[str, ...], read_all: Callable[[LoopFigures], _Numbers]
) -> CountedMetric[LoopFigures]:
    def read(figures: LoopFigures) -> _Numbers:
        return read_all(figures) if figures.store_works else {}

    return CountedMetric(f"tidegauge_{what}", kind, text, ("cluster", *labels), "database", read_all=read)


def _policy(what: str, text: str, read: Callable[[LoopFigures], float]) -> CountedMetric[LoopFigures]:
    return CountedMetric(
        f"tidegauge_policy_{what}", MetricKind.GAUGE, text, ("cluster",), "coordinator",
        read_all=lambda figures: {(): float(read(figures))},
    )  # fmt: skip


LOOP_METRICS: tuple[CountedMetric[LoopFigures], ...] = (
    _from_store(
        "incidents_total",
        MetricKind.COUNTER,
        "Incidents opened, by cause.",
        ("cause",),
        _incidents_total,
    ),
    _from_store(
        "incidents_open",
        MetricKind.GAUGE,
        "Incidents that are not closed, by cause and current severity.",
        ("cause", "severity"),
        _incidents_open,
    ),
    _from_store(
        "actions_total",
        MetricKind.COUNTER,
        "Actions by outcome; `would`: the policy's mode does not allow it; `withheld`: a brake held it.",
        ("action", "outcome"),
        _actions_total,
    ),
    _policy(
        "acting", "1 if the policy's mode is `act`, 0 if it is `observe` or `warn`.", lambda figures: figures.acting
    ),
    _policy("paused", "1 while a person has paused all actions.", lambda figures: figures.paused),
    _policy(
        "breaker_open",
        "1 while the circuit breaker stops all actions: the policy acted on too many jobs.",
        lambda figures: figures.breaker_open,
    ),
    _policy(
        "user_breakers_open",
        "Users whose circuit breaker is open: the policy acted on too many of their jobs.",
        lambda figures: figures.user_breakers_open,
    ),
)


def _of_usage(
    what: str, text: str, read: Callable[[GpuUsage], float], unit: str | None = None
) -> CountedMetric[LoopFigures]:
    def read_all(figures: LoopFigures) -> _Numbers:
        numbers: dict[tuple[str, ...], float] = {}
        for by, rows in figures.usage.items():
            for usage in rows:  # of names that are alike once they are cut, the one that left most unused
                numbers.setdefault((by.value, label_value(usage.name), label_value(usage.user_name)), read(usage))
        return numbers

    name, labels = f"tidegauge_ended_{what}", ("cluster", "by", "name", "user_name")
    return CountedMetric(name, MetricKind.GAUGE, text, labels, "database", unit, read_all=read_all)


USAGE_METRICS: tuple[CountedMetric[LoopFigures], ...] = (
    _of_usage(
        "runs",
        "Runs of 10 minutes and more that ended in the last 7 days, by job, user, account, partition or namespace.",
        lambda usage: usage.runs,
    ),
    _of_usage("gpu_seconds", "GPU time of these runs.", lambda usage: usage.gpu_seconds, "seconds"),
    _of_usage(
        "had_byte_seconds",
        "GPU memory that these runs had, times their time.",
        lambda usage: usage.had_byte_seconds,
        "byte_seconds",
    ),
    _of_usage(
        "needed_byte_seconds",
        "GPU memory that these runs needed, if each rank had held as much as the fullest, times their time.",
        lambda usage: usage.needed_byte_seconds,
        "byte_seconds",
    ),
    _of_usage(
        "limit_bytes", "Memory of the largest GPU of these runs, or its cap.", lambda usage: usage.limit_bytes, "bytes"
    ),
    _of_usage("highest_bytes", "What the fullest rank of these runs held.", lambda usage: usage.highest_bytes, "bytes"),
    _of_usage(
        "safe_bytes",
        "What the next run should have on each GPU: the highest need with the margin that these runs show.",
        lambda usage: usage.safe_bytes,
        "bytes",
    ),
)

NODE_COUNTS: tuple[CountedMetric[LoopFigures], ...] = (
    CountedMetric(
        "tidegauge_nodes",
        MetricKind.GAUGE,
        "Nodes by health, as the coordinator sees it: `ok`, `waiting` for a first report, `stale`, `gone`.",
        ("cluster", "health"),
        "coordinator",
        read_all=lambda figures: {(health,): count for health, count in figures.nodes.items()},
    ),
)


def _of_incidents(
    what: str, text: str, read: Callable[[OpenIncident], float], unit: str | None = None
) -> CountedMetric[JobFigures]:
    def read_all(job: JobFigures) -> _Numbers:
        return {(incident.cause.value,): read(incident) for incident in job.incidents}

    name = f"tidegauge_job_incident_{what}"
    return CountedMetric(name, MetricKind.GAUGE, text, (*JOB_LABELS, "cause"), "database", unit, read_all=read_all)


def _last_actions(job: JobFigures) -> _Numbers:
    return {(action, outcome): over_s for (action, outcome), over_s in job.last_actions.items()}


JOB_LOOP_METRICS: tuple[CountedMetric[JobFigures], ...] = (
    _of_incidents(
        "number",
        "Number of the job's open incident, by cause; absent without one.",
        lambda incident: incident.number,
    ),
    _of_incidents(
        "severity",
        "Severity of the job's open incident: 1 note, 2 warning, 3 critical; absent without one.",
        lambda incident: incident.severity.level,
    ),
    _of_incidents(
        "opened_timestamp_seconds",
        "Unix time when the job's open incident was opened; absent without one.",
        lambda incident: incident.opened_unix_s,
        "seconds",
    ),
    CountedMetric(
        "tidegauge_job_last_action_timestamp_seconds",
        MetricKind.GAUGE,
        "Unix time when the latest action of this kind and outcome on the job ended; within the last day.",
        (*JOB_LABELS, "action", "outcome"),
        "database",
        "seconds",
        read_all=_last_actions,
    ),
)
