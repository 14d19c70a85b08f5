"""The row of the Job dashboard that sets its attempts side by side."""

from __future__ import annotations

from tidegauge_exporter.dashboards.expressions import job
from tidegauge_exporter.dashboards.model.curves import TimeSeries
from tidegauge_exporter.dashboards.model.fields import BYTES, COUNT, LEAK_STEPS, LEAK_WORDS, SHARE, WHEN, Field
from tidegauge_exporter.dashboards.model.panels import Panel
from tidegauge_exporter.dashboards.model.queries import Query
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value


def attempts() -> tuple[Panel, ...]:
    ranks = job("cluster_job:tidegauge_ranks:count")
    return (
        TimeSeries(
            "Highest allocated, by attempt",
            "One curve per attempt. If the second climbs like the first, a restart gains time but fixes nothing.",
            10,
            8,
            (Query(f"max by (attempt) ({job('cluster_job:tidegauge_allocated_bytes:max')})", "attempt {{attempt}}"),),
            Field(BYTES, "No rank reported in the time range.", least=0),
        ),
        Table(
            "Attempts in the time range",
            "Compare them: did the fix help? First and last seen are to the minute, within the time range.",
            14,
            8,
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
