"""The row of the Job dashboard about what comes: which ranks grow, when each runs out, and what they will hold."""

from __future__ import annotations

from tidegauge_exporter.dashboards.expressions import ONE_JOB, job, rank_link, standing_out, used, used_share
from tidegauge_exporter.dashboards.model.curves import FEW_POINTS, TimeSeries
from tidegauge_exporter.dashboards.model.fields import (
    BYTES,
    COUNT,
    HOW_FULL,
    LEAK_STEPS,
    LEAK_WORDS,
    NO_STEPS,
    SECONDS,
    SHARE,
    TIME_LEFT,
    Field,
    ThresholdSteps,
    Words,
)
from tidegauge_exporter.dashboards.model.panels import Panel
from tidegauge_exporter.dashboards.model.queries import LIMIT, Query, QueryLine
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value
from tidegauge_exporter.dashboards.reasons import NO_GROWTH

_ROWS = 16
_RANK = "attempt, group, rank, hostname, gpu"
"""Labels of the table: what names a rank, and where it runs."""
_VERDICT = job("tidegauge_rank_leak_state")
_CHOSEN = f"topk({_ROWS}, max by ({_RANK}) ({_VERDICT} + {used_share(ONE_JOB)} or {_VERDICT}))"
"""Growth comes first, then suspicions, then by fullness: the verdict counts whole numbers, the share is below 1."""


def _value(
    title: str,
    width: int,
    expression: str,
    unit: str,
    *,
    steps: ThresholdSteps = NO_STEPS,
    words: Words | None = None,
    gauge: bool = False,
    may_be_empty: str | None = None,
) -> Value:
    query = Query(f"max by ({_RANK}) ({expression}) and on ({_RANK}) {_CHOSEN}", may_be_empty=may_be_empty)
    return Value(title, width, query=query, unit=unit, steps=steps, words=words, gauge=gauge)


def forecast() -> tuple[Panel, ...]:
    """Where the ranks that grow will be after the chosen time, time left to each, and the ranks themselves."""
    growth = job("tidegauge_rank_leak_bytes_per_step")
    # Five minutes whatever the zoom: a rate of a minute would make the forecast dance.
    per_s = f"{growth} * rate({job('tidegauge_rank_steps_total')}[5m])"
    left = job("tidegauge_rank_leak_seconds_to_oom")
    return (
        TimeSeries(
            "Predicted memory of the fullest growing rank",
            "Memory in use now, and predicted for a growing rank after the chosen time (Look ahead, at the top) at the "
            "current rate. If the dashed curve crosses the limit, the job runs out of memory within that time.",
            12,
            9,
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
        TimeSeries(
            "Time to OOM",
            "Forecast for the eight ranks with the next predicted OOM. A line that falls by one second per second is "
            "reliable; one that jumps is not.",
            12,
            9,
            (
                Query(
                    standing_out(f"max by (group, rank) ({left})", f"-last_over_time({left}[$__range] @ end())", 8),
                    "rank {{rank}} {{group}}",
                    may_be_empty=NO_GROWTH,
                ),
            ),
            Field(
                SECONDS, "No rank is on course to run out of memory.", TIME_LEFT, least=0,
                links=(rank_link("__field.labels"),),
            ),
            legend_calculations=("lastNotNull", "min"),
            show_limits=True,
        ),
        Table(
            "Ranks to look at",
            f"{_ROWS} ranks: growing, then suspected, then fullest. Click a rank for its page. If one row has a "
            "growth, that rank alone grows.",
            24,
            10,
            (
                Label("Rank", 80, (rank_link(),), label="rank"),
                Label("Attempt", 80, label="attempt"),
                Label("Group", 90, label="group"),
                Label("Node", label="hostname"),
                Label("GPU", 60, label="gpu"),
                _value("Verdict", 110, _VERDICT, COUNT, words=LEAK_WORDS, steps=LEAK_STEPS),
                _value("Growth per step", 120, growth, BYTES, may_be_empty=NO_GROWTH),
                _value("Out of memory in", 140, left, SECONDS, steps=TIME_LEFT, may_be_empty=NO_GROWTH),
                _value("Used / limit", 160, used_share(ONE_JOB), SHARE, steps=HOW_FULL, gauge=True),
                _value("Allocated", 110, job("tidegauge_rank_allocated_bytes"), BYTES),
                _value("Limit", 110, job("tidegauge_rank_limit_bytes"), BYTES),
            ),
            "No rank reports: the job has ended, or is not watched. Choose a time range in which it ran.",
            sort_by="Verdict",
            descending=True,
        ),
    )  # fmt: skip
