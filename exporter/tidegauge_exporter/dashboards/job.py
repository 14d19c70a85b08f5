"""The Job dashboard: status, ranks, memory, forecast and attempts of one job."""

from __future__ import annotations

from tidegauge_exporter.dashboards.job_memory import composition, heat_maps, memory, odd_ranks, where_it_goes
from tidegauge_exporter.dashboards.model.dashboard import TAG, Dashboard, Row
from tidegauge_exporter.dashboards.model.fields import (
    AGO,
    BYTES,
    COUNT,
    HOW_FULL,
    LEAK_STEPS,
    LEAK_WORDS,
    PLAIN,
    ROOM_LEFT,
    SECONDS,
    SEVERITY_WORDS,
    SHARE,
    TIME_LEFT,
    WHEN,
    Field,
    ThresholdSteps,
)
from tidegauge_exporter.dashboards.model.panels import FEW_POINTS, Panel, Stat, TimeSeries
from tidegauge_exporter.dashboards.model.queries import LIMIT, Query, QueryLine, TaggedMarks
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value
from tidegauge_exporter.dashboards.model.variables import ATTEMPT, CLUSTER, DATA_SOURCE, GROUP, HORIZON, JOB_ID
from tidegauge_exporter.dashboards.shared import (
    BY_JOB,
    NO_GROWTH,
    NOTHING_HAPPENED,
    ONE_JOB,
    errors_in_the_range,
    job,
    job_marks,
    job_page_links,
    node_link,
    rank_link,
    report_links,
    standing_out,
    time_to_oom,
    used,
    used_share,
)
from tidegauge_exporter.links import JOB as UID


def dashboard(service_url: str | None = None) -> Dashboard:
    """The dashboard for the owner of a job, and for admins who follow an alert."""
    return Dashboard(
        uid=UID,
        title="Tidegauge / Job",
        description="All ranks of one job: which one differs, what grows, predicted OOM, actions.",
        variables=(DATA_SOURCE, CLUSTER, JOB_ID, ATTEMPT, GROUP, HORIZON),
        rows=(
            Row("Job status", (*_header(), *heat_maps())),
            Row("Owner and incidents", _owner_and_incidents(service_url)),
            Row("Ranks that stand out", odd_ranks()),
            Row("Forecast", _forecast()),
            Row("Memory of the ranks", memory()),
            Row("What the memory is made of", composition()),
            Row("Fragmentation, other memory, and speed", where_it_goes()),
            Row("Attempts", _attempts()),
        ),
        marks=(*job_marks(), TaggedMarks("Notes (Grafana)", (TAG, "job:$job_id"), "purple")),
    )


def _header() -> tuple[Panel, ...]:
    return (
        Stat(
            "Verdict",
            "The worst verdict among the ranks: ok, suspected, or growing. Growth is dangerous, and an incident, once "
            "it has taken half of the memory that was free.",
            (4, 3),
            (Query(f"max({job('cluster_job:tidegauge_leak_state:max')})"),),
            Field(COUNT, "not watched", LEAK_STEPS, LEAK_WORDS),
        ),
        Stat(
            "Next predicted OOM",
            "The shortest forecast among the ranks, at the current rate. Under 30 minutes: checkpoint now. A click "
            "opens that rank.",
            (4, 3),
            (
                Query(
                    f"bottomk(1, min by (group, rank) ({job('tidegauge_rank_leak_seconds_to_oom')} < Inf))",
                    "rank {{rank}} {{group}}",
                    may_be_empty=NO_GROWTH,
                ),
            ),
            Field(SECONDS, "none predicted", TIME_LEFT, decimals=1, links=(rank_link("__field.labels"),)),
            instant=True,
            named=True,
        ),
        Stat(
            "Least headroom",
            "Headroom of the fullest rank, as a share of its limit. Little is fine while nothing grows; a longer batch "
            "may run out of memory.",
            (4, 3),
            (Query(f"1 - max({job('cluster_job:tidegauge_used_ratio:max')})"),),
            Field(SHARE, "not watched", ROOM_LEFT, decimals=1),
        ),
        Stat(
            "Fastest growth per step",
            "Growth of the fastest-growing rank, in bytes per training step, estimated by the detector.",
            (4, 3),
            (Query(f"max({job('cluster_job:tidegauge_leak_bytes_per_step:max')})", may_be_empty=NO_GROWTH),),
            Field(BYTES, "none", ThresholdSteps(PLAIN)),
        ),
        Stat(
            "Ranks",
            "Reporting ranks, and the world size. Fewer: a rank ended, hangs before its first step, or its node does "
            "not report.",
            (4, 3),
            (
                Query(f"max({job('tidegauge_job_ranks')})", "reporting"),
                Query(f"max({job('tidegauge_job_world_size')})", "world size"),
            ),
            Field(COUNT, "not watched", ThresholdSteps(PLAIN)),
            named=True,
        ),
        errors_in_the_range(job),
    )


def _owner_and_incidents(service_url: str | None) -> tuple[Panel, ...]:
    return (
        Table(
            "Owner and scheduler",
            "Owner, name and scheduler of each attempt in the time range, and when it was last seen: the figures above "
            "are from then.",
            (13, 4),
            (
                Label("Attempt", 80, job_page_links(service_url, job="job_id"), label="attempt"),
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
            (11, 4),
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
                    100,
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
    """The latest value in the range; of the severity, the worst."""
    return f"max by (attempt, cause) (max_over_time({job(f'tidegauge_job_incident_{what}')}[$__range]))"


_ROWS = 16
_RANK = "attempt, group, rank, hostname, gpu"
"""Labels of the table: name and place of a rank."""
_VERDICT = job("tidegauge_rank_leak_state")
_CHOSEN = f"topk({_ROWS}, max by ({_RANK}) ({_VERDICT} + {used_share(ONE_JOB)} or {_VERDICT}))"
"""Ranks sorted by verdict, then by fullness: the verdict counts whole numbers, the share is below 1."""


def _figure(expression: str, may_be_empty: str | None = None) -> Query:
    """A query for a figure of the ranks in the table."""
    return Query(f"max by ({_RANK}) ({expression}) and on ({_RANK}) {_CHOSEN}", may_be_empty=may_be_empty)


def _forecast() -> tuple[Panel, ...]:
    """Predicted memory after the chosen time, time left, and the ranks."""
    growth = job("tidegauge_rank_leak_bytes_per_step")
    # Five minutes whatever the zoom: a rate of a minute would make the forecast dance.
    per_s = f"{growth} * rate({job('tidegauge_rank_steps_total')}[5m])"
    left = job("tidegauge_rank_leak_seconds_to_oom")
    return (
        TimeSeries(
            "Predicted memory of the fullest growing rank",
            "Memory in use now, and predicted for a growing rank after the chosen time (Look ahead, at the top) at the "
            "current rate. If the dashed curve crosses the limit, the job runs out of memory within that time.",
            (12, 9),
            (
                Query(f"max({used(ONE_JOB)})", "now, fullest rank", QueryLine("blue")),
                Query(
                    f"max({used(ONE_JOB)} + $horizon * {per_s})",
                    "in ${horizon:text}",
                    QueryLine("orange", dashed=True, filled=False),
                    may_be_empty=NO_GROWTH,
                ),
                Query(f"min({job('tidegauge_rank_limit_bytes')})", "limit", LIMIT),
            ),
            Field(BYTES, "No rank reported in the time range.", least=0),
            most_points=FEW_POINTS,
        ),
        time_to_oom(
            "Time to OOM",
            "Forecast for the eight ranks with the next predicted OOM. A line that falls by an hour an hour is "
            "reliable; one that jumps is not.",
            (12, 9),
            Query(
                standing_out(f"max by (group, rank) ({left})", f"-last_over_time({left}[$__range] @ end())", 8),
                "rank {{rank}} {{group}}",
                may_be_empty=NO_GROWTH,
            ),
            rank_link("__field.labels"),
        ),
        Table(
            "Ranks to look at",
            f"{_ROWS} ranks: growing, then suspected, then fullest. Click a rank for its page. If one row has a "
            "growth, that rank alone grows.",
            (24, 10),
            (
                Label("Rank", 80, (rank_link(),), label="rank"),
                Label("Attempt", 80, label="attempt"),
                Label("Group", 90, label="group"),
                Label("Node", links=(node_link(),), label="hostname"),
                Label("GPU", 60, label="gpu"),
                Value("Verdict", 110, query=_figure(_VERDICT), unit=COUNT, words=LEAK_WORDS, steps=LEAK_STEPS),
                Value("Growth per step", 130, query=_figure(growth, NO_GROWTH), unit=BYTES),
                Value("Out of memory in", 140, query=_figure(left, NO_GROWTH), unit=SECONDS, steps=TIME_LEFT),
                Value("Used / limit", 160, query=_figure(used_share(ONE_JOB)), unit=SHARE, steps=HOW_FULL, gauge=True),
                Value("Allocated", 110, query=_figure(job("tidegauge_rank_allocated_bytes")), unit=BYTES),
                Value("Limit", 110, query=_figure(job("tidegauge_rank_limit_bytes")), unit=BYTES),
            ),
            "No rank reports: the job has ended, or is not watched. Choose a time range in which it ran.",
            sort_by="Verdict",
            descending=True,
        ),
    )  # fmt: skip


def _attempts() -> tuple[Panel, ...]:
    ranks = job("cluster_job:tidegauge_ranks:count")
    return (
        TimeSeries(
            "Highest allocated, by attempt",
            "One curve per attempt. If the second climbs like the first, a restart gains time but fixes nothing.",
            (10, 8),
            (Query(f"max by (attempt) ({job('cluster_job:tidegauge_allocated_bytes:max')})", "attempt {{attempt}}"),),
            Field(BYTES, "No rank reported in the time range.", least=0),
        ),
        Table(
            "Attempts in the time range",
            "Compare them: did the fix help? First and last seen are to the minute, within the time range.",
            (14, 8),
            (
                Label("Attempt", 75, label="attempt"),
                _of_attempt(
                    "First seen", 160, f"1000 * min by (attempt) (min_over_time(timestamp({ranks})[$__range:1m]))", WHEN
                ),
                _of_attempt(
                    "Last seen", 160, f"1000 * max by (attempt) (max_over_time(timestamp({ranks})[$__range:1m]))", WHEN
                ),
                Value(
                    "Peak verdict",
                    110,
                    query=Query(
                        f"max by (attempt) (max_over_time({job('cluster_job:tidegauge_leak_state:max')}[$__range]))"
                    ),
                    words=LEAK_WORDS,
                    steps=LEAK_STEPS,
                ),
                _of_attempt(
                    "Fullest",
                    85,
                    f"max by (attempt) (max_over_time({job('cluster_job:tidegauge_used_ratio:max')}[$__range]))",
                    SHARE,
                ),
                _of_attempt(
                    "Steps",
                    85,
                    f"round(max by (attempt) (increase({job('tidegauge_rank_steps_total')}[$__range])))",
                    COUNT,
                ),
                _of_attempt(
                    "OOMs",
                    70,
                    f"round(sum by (attempt) (increase({job('tidegauge_rank_ooms_total')}[$__range])))",
                    COUNT,
                ),
            ),
            "No rank reported in the time range.",
            sort_by="Attempt",
            descending=True,
        ),
    )


def _of_attempt(title: str, width: int, expression: str, unit: str) -> Value:
    return Value(title, width, query=Query(expression), unit=unit)
