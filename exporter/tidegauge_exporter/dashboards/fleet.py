"""The Fleet dashboard: is anything on fire, how full is it, who wastes, and can the figures be trusted."""

from __future__ import annotations

from tidegauge_exporter.dashboards.expressions import fleet, total
from tidegauge_exporter.dashboards.fleet_health import health
from tidegauge_exporter.dashboards.fleet_jobs import at_risk, waste
from tidegauge_exporter.dashboards.model.curves import TimeSeries
from tidegauge_exporter.dashboards.model.dashboard import TAG, Dashboard, Row
from tidegauge_exporter.dashboards.model.fields import (
    ANY_NEEDS_CARE,
    BYTES,
    COUNT,
    SECONDS,
    SHARE,
    TIME_LEFT,
    Field,
    ThresholdSteps,
)
from tidegauge_exporter.dashboards.model.panels import BarGauge, Panel, Stat
from tidegauge_exporter.dashboards.model.queries import LIMIT, Query, QueryLine, TaggedMarks
from tidegauge_exporter.dashboards.model.variables import CLUSTERS, DATA_SOURCE
from tidegauge_exporter.dashboards.reasons import NO_GROWTH, NOTHING_HAPPENED
from tidegauge_exporter.links import FLEET as UID


def dashboard() -> Dashboard:
    """For the admin: what needs somebody now, and where the memory of the fleet goes."""
    return Dashboard(
        uid=UID,
        title="Tidegauge / Fleet",
        description="GPU memory of all watched clusters: jobs at risk, usage, waste, data quality.",
        variables=(DATA_SOURCE, CLUSTERS),
        rows=(
            Row("Now", _now()),
            Row("Jobs at risk", at_risk()),
            Row("Memory usage", _how_full()),
            Row("Waste and unattributed memory", waste()),
            Row("Incidents and actions", _what_was_done()),
            Row("Data quality", health()),
        ),
        marks=(TaggedMarks("Incidents and actions (Grafana)", (TAG,), "purple"),),
    )


def _now() -> tuple[Panel, ...]:
    used = total("cluster:tidegauge_gpu_used_bytes:sum")
    return (
        Stat(
            "Memory in use",
            "Share of the memory of all watched GPUs that any process uses. High is fine; look at single jobs below.",
            4,
            4,
            (Query(f"{used} / {total('cluster:tidegauge_gpu_total_bytes:sum')}"),),
            Field(SHARE, "no GPU reports", ThresholdSteps("blue"), decimals=0, least=0, most=1),
        ),
        Stat(
            "GPUs, jobs, ranks",
            "Watched GPUs, running job attempts, and reporting ranks. Fewer ranks than GPUs: idle GPUs, or unwatched "
            "jobs.",
            4,
            4,
            (
                Query(total("cluster:tidegauge_gpus:count"), "GPUs"),
                Query(f"count({fleet('cluster_job:tidegauge_ranks:count')})", "jobs"),
                Query(total("cluster:tidegauge_ranks:count"), "ranks"),
            ),
            Field(COUNT, "none", ThresholdSteps("blue")),
            named=True,
        ),
        Stat(
            "Growing jobs",
            "Jobs with a rank whose growth is established, dangerous or not. The table below lists them; the Job "
            "dashboard shows the rank.",
            4,
            4,
            (Query(f"sum({fleet('cluster_job:tidegauge_leak_state:max')} == bool 2)"),),
            Field(COUNT, "no jobs", ANY_NEEDS_CARE, decimals=0),
        ),
        Stat(
            "Next predicted OOM",
            "The shortest forecast among all jobs, at the current growth rate. Under 30 minutes: checkpoint that job "
            "now.",
            4,
            4,
            (
                Query(
                    f"min({fleet('cluster_job:tidegauge_seconds_to_oom:min')})",
                    may_be_empty=NO_GROWTH,
                ),
            ),
            Field(SECONDS, "none predicted", TIME_LEFT, decimals=1),
        ),
        Stat(
            "Open incidents",
            "Incidents that are not closed. The Incidents dashboard lists them.",
            4,
            4,
            (Query(total("tidegauge_incidents_open")),),
            Field(COUNT, "database down", ANY_NEEDS_CARE, decimals=0),
        ),
        Stat(
            "Nodes not reporting",
            "Nodes that are stale, gone, or have not reported yet. A leak on their ranks goes unnoticed.",
            4,
            4,
            (Query('sum(tidegauge_nodes{cluster=~"$cluster", health!="ok"})'),),
            Field(COUNT, "coordinator down", ANY_NEEDS_CARE, decimals=0),
        ),
    )


def _how_full() -> tuple[Panel, ...]:
    allocated = total("cluster:tidegauge_allocated_bytes:sum")
    nontorch = total("cluster:tidegauge_nontorch_bytes:sum")
    others = (
        f"clamp_min({total('cluster:tidegauge_gpu_used_bytes:sum')} - "
        f"{total('cluster:tidegauge_reserved_bytes:sum')} - {nontorch}, 0)"
    )
    return (
        TimeSeries(
            "GPU memory by use",
            "All watched GPUs together. Cached: reserved by PyTorch's allocator, holds no tensor now. Outside PyTorch: "
            "CUDA contexts, NCCL, libraries. Unattributed: other processes, and the driver's own memory.",
            14,
            9,
            (
                Query(allocated, "allocated", QueryLine("blue")),
                Query(total("cluster:tidegauge_waste_bytes:sum"), "cached", QueryLine("light-blue")),
                Query(nontorch, "outside PyTorch", QueryLine("purple")),
                Query(others, "unattributed", QueryLine("orange")),
                Query(total("cluster:tidegauge_gpu_total_bytes:sum"), "total", LIMIT),
            ),
            Field(BYTES, "No GPU reports: is the coordinator up, and does Prometheus scrape the agents?", least=0),
            stacked=True,
            legend_on_the_right=True,
        ),
        TimeSeries(
            "Memory usage by node",
            "The fullest node, the median, and the emptiest. Far apart: work is spread badly, or some nodes are idle.",
            10,
            9,
            (
                Query(f"max({fleet('cluster:tidegauge_node_used_ratio:max')})", "fullest node"),
                # Of several clusters chosen together: the median of their medians.
                Query(f"quantile(0.5, {fleet('cluster:tidegauge_node_used_ratio:median')})", "median"),
                Query(f"min({fleet('cluster:tidegauge_node_used_ratio:min')})", "emptiest node"),
            ),
            Field(SHARE, "No GPU reports.", least=0, most=1, decimals=0),
        ),
    )


def _what_was_done() -> tuple[Panel, ...]:
    return (
        TimeSeries(
            "Open incidents by cause",
            "Open incidents over time. The Incidents dashboard has numbers, owners and actions.",
            12,
            8,
            (Query(f"sum by (cause) ({fleet('tidegauge_incidents_open')})", "{{cause}}"),),
            Field(COUNT, "The coordinator does not answer, or its database is down.", least=0, decimals=0),
            stacked=True,
            legend_on_the_right=True,
        ),
        BarGauge(
            "Actions by outcome",
            "Actions of the policy in the time range. `would` and `withheld` were not carried out: the mode does not "
            "allow it, or a brake held them. Check `failed`, `unverified` and `no_proof`.",
            12,
            8,
            (
                Query(
                    f"round(sum by (action, outcome) (increase({fleet('tidegauge_actions_total')}[$__range]))) > 0",
                    "{{action}}: {{outcome}}",
                    may_be_empty=NOTHING_HAPPENED,
                ),
            ),
            Field(COUNT, "No action in this time range.", ThresholdSteps("blue"), decimals=0, least=0),
        ),
    )
