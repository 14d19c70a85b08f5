"""The Job dashboard: how the job is, which rank stands out, where its memory goes, when it ends, attempt by attempt."""

from __future__ import annotations

from tidegauge_exporter.dashboards.errors import errors_in_the_range
from tidegauge_exporter.dashboards.expressions import BY_JOB, job, report_links
from tidegauge_exporter.dashboards.job_attempts import attempts
from tidegauge_exporter.dashboards.job_forecast import forecast
from tidegauge_exporter.dashboards.job_marks import job_marks
from tidegauge_exporter.dashboards.job_memory import memory, ranks_side_by_side, where_it_goes
from tidegauge_exporter.dashboards.model.dashboard import TAG, Dashboard, Row
from tidegauge_exporter.dashboards.model.fields import (
    AGO,
    BYTES,
    COUNT,
    LEAK_STEPS,
    LEAK_WORDS,
    PLAIN,
    ROOM_LEFT,
    SECONDS,
    SEVERITY_WORDS,
    SHARE,
    TIME_LEFT,
    Field,
    ThresholdSteps,
)
from tidegauge_exporter.dashboards.model.panels import Panel, Stat
from tidegauge_exporter.dashboards.model.queries import Query, TaggedMarks
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value
from tidegauge_exporter.dashboards.model.variables import ATTEMPT, CLUSTER, DATA_SOURCE, GROUP, HORIZON, JOB_ID
from tidegauge_exporter.dashboards.reasons import NO_GROWTH, NOTHING_HAPPENED
from tidegauge_exporter.links import JOB as UID


def dashboard(service_url: str | None = None) -> Dashboard:
    """For the researcher, and for the admin who was led here by an alert."""
    return Dashboard(
        uid=UID,
        title="Tidegauge / Job",
        description="All ranks of one job: which one differs, what grows, predicted OOM, actions.",
        variables=(DATA_SOURCE, CLUSTER, JOB_ID, ATTEMPT, GROUP, HORIZON),
        rows=(
            Row("Job status", _header(service_url)),
            Row("All ranks side by side", ranks_side_by_side()),
            Row("Memory of the ranks", memory()),
            Row("Forecast", forecast()),
            Row("Fragmentation, other memory, and speed", where_it_goes()),
            Row("Attempts", attempts()),
        ),
        marks=(*job_marks(), TaggedMarks("Notes (Grafana)", (TAG, "job:$job_id"), "purple")),
    )


def _header(service_url: str | None) -> tuple[Panel, ...]:
    return (
        Stat(
            "Verdict",
            "The worst verdict among the ranks: ok, suspected, or growing. Growth is dangerous, and an incident, once "
            "it has taken half of the memory that was free.",
            4,
            4,
            (Query(f"max({job('cluster_job:tidegauge_leak_state:max')})"),),
            Field(COUNT, "not watched", LEAK_STEPS, LEAK_WORDS),
        ),
        Stat(
            "Out of memory in",
            "Next predicted OOM among the ranks, at the current rate. Under 30 minutes: checkpoint now.",
            4,
            4,
            (Query(f"min({job('cluster_job:tidegauge_seconds_to_oom:min')})", may_be_empty=NO_GROWTH),),
            Field(SECONDS, "none predicted", TIME_LEFT, decimals=1),
        ),
        Stat(
            "Least headroom",
            "Headroom of the fullest rank, as a share of its limit. Little is fine while nothing grows; a longer batch "
            "may run out of memory.",
            4,
            4,
            (Query(f"1 - max({job('cluster_job:tidegauge_used_ratio:max')})"),),
            Field(SHARE, "not watched", ROOM_LEFT, decimals=1),
        ),
        Stat(
            "Fastest growth per step",
            "Growth of the fastest-growing rank, in bytes per training step, estimated by the detector.",
            4,
            4,
            (Query(f"max({job('cluster_job:tidegauge_leak_bytes_per_step:max')})", may_be_empty=NO_GROWTH),),
            Field(BYTES, "none", ThresholdSteps(PLAIN)),
        ),
        Stat(
            "Ranks",
            "Reporting ranks, and the world size. Fewer: a rank ended, hangs before its first step, or its node does "
            "not report.",
            4,
            4,
            (
                Query(f"max({job('tidegauge_job_ranks')})", "reporting"),
                Query(f"max({job('tidegauge_job_world_size')})", "world size"),
            ),
            Field(COUNT, "not watched", ThresholdSteps(PLAIN)),
            named=True,
        ),
        errors_in_the_range(job),
        Table(
            "Owner and scheduler",
            "Owner, name and scheduler of each attempt in the time range, and when it was last seen: the figures above "
            "are from then.",
            13,
            5,
            (
                Label("Attempt", 80, label="attempt"),
                Label("User", label="user_name"),
                Label("Name", label="job_name"),
                Label("Scheduler", 110, label="scheduler"),
                Value(
                    "Last seen",
                    170,
                    query=Query(
                        f"1000 * max by ({BY_JOB}, user_name, job_name, scheduler) "
                        f"(max_over_time(timestamp({job('tidegauge_job_info')})[$__range:1m]))"
                    ),
                    unit=AGO,
                ),
            ),
            "The coordinator has no data on this job in the time range.",
            sort_by="Attempt",
            descending=True,
        ),
        Table(
            "Incidents of this job",
            "Incidents in the time range, open or closed. The number links to the report if the dashboards know the "
            "service's address; else run `tidegauge incidents show NUMBER`.",
            11,
            5,
            (
                Value(
                    "Number",
                    75,
                    report_links(service_url),
                    query=Query(_incident("number"), may_be_empty=NOTHING_HAPPENED),
                    unit=COUNT,
                    decimals=0,
                ),
                Label("Cause", label="cause"),
                Label("Attempt", 75, label="attempt"),
                Value(
                    "Severity",
                    85,
                    query=Query(_incident("severity"), may_be_empty=NOTHING_HAPPENED),
                    words=SEVERITY_WORDS,
                ),
                Value(
                    "Opened",
                    120,
                    query=Query(f"1000 * {_incident('opened_timestamp_seconds')}", may_be_empty=NOTHING_HAPPENED),
                    unit=AGO,
                ),
            ),
            "No incident in the time range.",
            sort_by="Number",
            descending=True,
        ),
    )


def _incident(what: str) -> str:
    """The latest in the range; for the severity, the worst."""
    return f"max by (attempt, cause) (max_over_time({job(f'tidegauge_job_incident_{what}')}[$__range]))"
