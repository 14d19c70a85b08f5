"""What happened to a job, drawn over the curves of the Job and Rank dashboards."""

from __future__ import annotations

from tidegauge_exporter.dashboards.expressions import BY_INCIDENT, BY_JOB, job
from tidegauge_exporter.dashboards.model.queries import Marks, Query
from tidegauge_exporter.dashboards.reasons import NO_GROWTH, NOTHING_HAPPENED


def job_marks() -> tuple[Marks, ...]:
    """What happened to the chosen job, drawn over its curves."""
    began = job("tidegauge_job_info")
    state = job("cluster_job:tidegauge_leak_state:max")
    ooms = job("cluster_job:tidegauge_ooms:increase5m")
    opened = job("tidegauge_job_incident_opened_timestamp_seconds")
    ended = job("tidegauge_job_last_action_timestamp_seconds")
    return (
        Marks(
            "Attempts",
            # An hour back: the coordinator may have been away for a while without the job being a new one.
            Query(
                f"max by (attempt) ({began} unless last_over_time({began}[1h] offset $__interval))",
                "attempt {{attempt}} began",
                may_be_empty="it began before the range",
            ),
            "blue",
        ),
        Marks(
            "Growth established",
            Query(
                f"max by (attempt) (max_over_time({state}[$__interval]) == 2"
                f" unless max_over_time({state}[$__interval] offset $__interval) == 2)",
                "growth established (attempt {{attempt}})",
                may_be_empty=NO_GROWTH,
            ),
            "orange",
        ),
        Marks(
            "Out of memory",
            Query(
                f"max by (attempt) ({ooms}) > 0 unless max by (attempt) ({ooms} offset $__interval) > 0",
                "out of memory (attempt {{attempt}})",
                may_be_empty=NOTHING_HAPPENED,
            ),
            "red",
        ),
        Marks(
            "Incidents",
            Query(
                f"1000 * max by ({BY_INCIDENT}) ({opened})",
                "incident opened: {{cause}} (attempt {{attempt}})",
                may_be_empty=NOTHING_HAPPENED,
            ),
            "red",
            value_is_time=True,
            labels=("cause",),
        ),
        Marks(
            "Actions",
            Query(
                f"1000 * max by ({BY_JOB}, action, outcome) ({ended})",
                "{{action}}: {{outcome}} (attempt {{attempt}})",
                may_be_empty=NOTHING_HAPPENED,
            ),
            "purple",
            value_is_time=True,
            labels=("action", "outcome"),
        ),
    )
