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
        description="GPU memory of all watched clusters: who is at risk, how full, what is wasted, what to believe.",
        variables=(DATA_SOURCE, CLUSTERS),
        rows=(
            Row("Now", _now()),
            Row("Who is at risk", at_risk()),
            Row("How full", _how_full()),
            Row("Waste and what nobody's rank holds", waste()),
            Row("Incidents and actions", _what_was_done()),
            Row("Can the figures be trusted", health()),
        ),
        marks=(TaggedMarks("Incidents and actions (Grafana)", (TAG,), "purple"),),
    )


def _now() -> tuple[Panel, ...]:
    used = total("cluster:tidegauge_gpu_used_bytes:sum")
    return (
        Stat(
            "Memory in use",
            "Share of the memory of all watched GPUs that is in use, by whomever. High is what a cluster is for; look "
            "at single jobs below.",
            4,
            4,
            (Query(f"{used} / {total('cluster:tidegauge_gpu_total_bytes:sum')}"),),
            Field(SHARE, "no GPU reports", ThresholdSteps("blue"), decimals=0, least=0, most=1),
        ),
        Stat(
            "GPUs, jobs, ranks",
            "Watched GPUs, attempts of jobs that run, and ranks that report. Fewer ranks than GPUs: idle cards, or "
            "jobs that are not watched.",
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
            "Jobs that grow",
            "Jobs with a rank whose growth is established, dangerous or not: that is an incident. The table below says "
            "which; the Job dashboard says which rank.",
            4,
            4,
            (Query(f"sum({fleet('cluster_job:tidegauge_leak_state:max')} == bool 2)"),),
            Field(COUNT, "no jobs", ANY_NEEDS_CARE, decimals=0),
        ),
        Stat(
            "First out of memory in",
            "The shortest forecast among all jobs, at the present rate of growth. Under half an hour a job needs a "
            "checkpoint now.",
            4,
            4,
            (
                Query(
                    f"min({fleet('cluster_job:tidegauge_seconds_to_oom:min')})",
                    may_be_empty=NO_GROWTH,
                ),
            ),
            Field(SECONDS, "nobody soon", TIME_LEFT, decimals=1),
        ),
        Stat(
            "Open incidents",
            "What the service has told somebody of and is not over. The Incidents dashboard lists them.",
            4,
            4,
            (Query(total("tidegauge_incidents_open")),),
            Field(COUNT, "database away", ANY_NEEDS_CARE, decimals=0),
        ),
        Stat(
            "Nodes not heard of",
            "Nodes that are stale, gone, or have not reported yet. Their ranks are not judged: a leak there goes "
            "unseen.",
            4,
            4,
            (Query('sum(tidegauge_nodes{cluster=~"$cluster", health!="ok"})'),),
            Field(COUNT, "coordinator away", ANY_NEEDS_CARE, decimals=0),
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
            "Where the memory of the fleet goes",
            "All watched GPUs together. Cached is reserved by PyTorch's allocator and holds no tensor at this moment; "
            "outside PyTorch are CUDA contexts, NCCL and libraries; held by no rank are other processes and what the "
            "driver keeps for itself.",
            14,
            9,
            (
                Query(allocated, "allocated", QueryLine("blue")),
                Query(total("cluster:tidegauge_waste_bytes:sum"), "cached", QueryLine("light-blue")),
                Query(nontorch, "outside PyTorch", QueryLine("purple")),
                Query(others, "held by no rank", QueryLine("orange")),
                Query(total("cluster:tidegauge_gpu_total_bytes:sum"), "total", LIMIT),
            ),
            Field(BYTES, "No GPU reports: is the coordinator up, and does Prometheus scrape the agents?", least=0),
            stacked=True,
            legend_on_the_right=True,
        ),
        TimeSeries(
            "Used share of the nodes",
            "The fullest node, the one in the middle, and the emptiest. Far apart: work is spread badly, or some nodes "
            "are idle.",
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
            "What was going on, and when it began. The Incidents dashboard has numbers, owners and what was done.",
            12,
            8,
            (Query(f"sum by (cause) ({fleet('tidegauge_incidents_open')})", "{{cause}}"),),
            Field(COUNT, "The coordinator does not answer, or its database is away.", least=0, decimals=0),
            stacked=True,
            legend_on_the_right=True,
        ),
        BarGauge(
            "Actions by outcome",
            "What the policy did in the time range, and what came of it. `would` and `withheld` were not done: the "
            "mode does not allow it, or a brake held it back. `failed`, `unverified` and `no_proof` want a look.",
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
