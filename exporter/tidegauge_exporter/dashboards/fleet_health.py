"""The row of the Fleet dashboard about Tidegauge itself: whether the other rows can be believed."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.expressions import FLEET, fleet
from tidegauge_exporter.dashboards.model.curves import TimeSeries
from tidegauge_exporter.dashboards.model.fields import (
    ANY_IS_BAD,
    ANY_NEEDS_CARE,
    BAD,
    CARE,
    COUNT,
    GOOD,
    PER_S,
    SECONDS,
    Field,
    ThresholdSteps,
)
from tidegauge_exporter.dashboards.model.panels import Panel, Stat
from tidegauge_exporter.dashboards.model.queries import Query, QueryLine

_AGE_STEPS: Final = ThresholdSteps(GOOD, ((30, CARE), (120, BAD)))


def health() -> tuple[Panel, ...]:
    return (
        Stat(
            "Agents down",
            "Node agents that Prometheus cannot scrape: this Prometheus does not watch their ranks. "
            "`tidegauge status` on the head shows why.",
            4,
            5,
            (Query(f"sum({fleet('cluster:tidegauge_agents_down:count')})"),),
            Field(COUNT, "no agent is scraped", ANY_IS_BAD, decimals=0),
        ),
        Stat(
            "Oldest reading",
            "Age of the oldest reading of a living rank. A hung rank stops writing: find it with `tidegauge top`.",
            4,
            5,
            (Query(f"max({fleet('cluster:tidegauge_sample_age_seconds:max')})"),),
            Field(SECONDS, "no rank reports", _AGE_STEPS, decimals=0),
        ),
        Stat(
            "Series dropped",
            "Series dropped from scrapes in the time range: duplicates, or beyond what one target may export. They "
            "are missing on all dashboards.",
            4,
            5,
            (Query(f"round(sum(increase({fleet('tidegauge_series_dropped_total')}[$__range])))"),),
            Field(COUNT, "no agent reports", ANY_NEEDS_CARE, decimals=0),
            instant=True,
        ),
        Stat(
            "Failing sources",
            "Data sources that fail now: rings, NVML or /proc on a node, the database on the coordinator. Their data "
            "is missing on all dashboards.",
            4,
            5,
            (Query(f"sum({fleet('cluster:tidegauge_collect_failures:count')})"),),
            Field(COUNT, "no agent reports", ANY_IS_BAD, decimals=0),
        ),
        TimeSeries(
            "Readings judged per second",
            "Throughput of the leak detectors on all nodes. If it falls to 0 while ranks train, nobody watches them.",
            8,
            5,
            (Query(f"sum(rate({fleet('tidegauge_detector_points_total')}[$__rate_interval]))", "readings"),),
            Field(PER_S, "No agent reports.", least=0),
            legend_calculations=(),
        ),
        TimeSeries(
            "Nodes by health",
            "Nodes as the coordinator sees them. Waiting: not reported yet. Stale: silent for some seconds. Gone: dead "
            "according to Ray.",
            12,
            7,
            tuple(
                Query(f'sum(tidegauge_nodes{{{FLEET}, health="{health}"}})', health, QueryLine(colour))
                for health, colour in (("ok", GOOD), ("waiting", "blue"), ("stale", CARE), ("gone", BAD))
            ),
            Field(COUNT, "The coordinator does not answer.", least=0, decimals=0),
            stacked=True,
            legend_on_the_right=True,
        ),
        TimeSeries(
            "Readings lost or refused, claims overruled",
            "Per second, all nodes. Lost: a rank wrote faster than its agent read. Refused: impossible values. "
            "Overruled: a rank claimed a job, an attempt or a GPU that the kernel, the driver or Slurm contradicts: "
            "possibly a forged identity.",
            12,
            7,
            (
                Query(f"sum(rate({fleet('tidegauge_records_lost_total')}[$__rate_interval]))", "lost"),
                Query(f"sum(rate({fleet('tidegauge_records_refused_total')}[$__rate_interval]))", "refused"),
                Query(
                    f"sum(rate({fleet('tidegauge_rings_skipped_total')}[$__rate_interval]))",
                    "ring files skipped",
                    may_be_empty="the series exists from the first file that is skipped",
                ),
                Query(
                    f"sum(rate({fleet('tidegauge_claims_overruled_total')}[$__rate_interval]))",
                    "claims overruled",
                    may_be_empty="the series exists from the first claim that is overruled",
                ),
            ),
            Field(PER_S, "No agent reports.", least=0),
            legend_on_the_right=True,
        ),
    )
