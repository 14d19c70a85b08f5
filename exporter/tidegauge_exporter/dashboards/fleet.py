"""The Fleet dashboard: jobs at risk, memory usage, waste, incidents, and the quality of the data."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.model.dashboard import TAG, Dashboard, Row
from tidegauge_exporter.dashboards.model.fields import (
    ANY_IS_BAD,
    ANY_NEEDS_CARE,
    BAD,
    BYTES,
    CARE,
    COUNT,
    GOOD,
    HOW_FULL,
    LEAK_STEPS,
    LEAK_WORDS,
    PER_S,
    RATIO,
    SECONDS,
    SHARE,
    TIME_LEFT,
    Field,
    ThresholdSteps,
)
from tidegauge_exporter.dashboards.model.panels import Panel, Stat, TimeSeries
from tidegauge_exporter.dashboards.model.queries import LIMIT, Query, QueryLine, TaggedMarks
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value
from tidegauge_exporter.dashboards.model.variables import CLUSTERS, DATA_SOURCE
from tidegauge_exporter.dashboards.shared import (
    FLEET,
    NO_GROWTH,
    actions_by_outcome,
    fleet,
    job_link,
    of_jobs,
    open_by_cause,
    total,
    with_names,
)
from tidegauge_exporter.links import FLEET as UID


def dashboard() -> Dashboard:
    """The dashboard for admins: urgent jobs, and the memory of the fleet."""
    return Dashboard(
        uid=UID,
        title="Tidegauge / Fleet",
        description="GPU memory of all watched clusters: jobs at risk, usage, waste, data quality.",
        variables=(DATA_SOURCE, CLUSTERS),
        rows=(
            Row("Now", _now()),
            Row("Jobs at risk", _at_risk()),
            Row("Memory usage", _how_full()),
            Row("Waste and unattributed memory", _waste()),
            Row("Incidents and actions", _what_was_done()),
            Row("Data quality", _health()),
        ),
        marks=(TaggedMarks("Incidents and actions (Grafana)", (TAG,), "purple"),),
    )


def _now() -> tuple[Panel, ...]:
    used = total("cluster:tidegauge_gpu_used_bytes:sum")
    return (
        Stat(
            "Memory in use",
            "Share of the memory of all watched GPUs that any process uses. High is fine; look at single jobs below.",
            (4, 4),
            (Query(f"{used} / {total('cluster:tidegauge_gpu_total_bytes:sum')}"),),
            Field(SHARE, "no GPU reports", ThresholdSteps("blue"), decimals=0, least=0, most=1),
        ),
        Stat(
            "GPUs, jobs, ranks",
            "Watched GPUs, running job attempts, and reporting ranks. Fewer ranks than GPUs: idle GPUs, or unwatched "
            "jobs.",
            (4, 4),
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
            (4, 4),
            (Query(f"sum({fleet('cluster_job:tidegauge_leak_state:max')} == bool 2)"),),
            Field(COUNT, "no jobs", ANY_NEEDS_CARE, decimals=0),
        ),
        Stat(
            "Next predicted OOM",
            "The shortest forecast among all jobs, at the current growth rate. Under 30 minutes: checkpoint that job "
            "now.",
            (4, 4),
            (Query(f"min({fleet('cluster_job:tidegauge_seconds_to_oom:min')})", may_be_empty=NO_GROWTH),),
            Field(SECONDS, "none predicted", TIME_LEFT, decimals=1),
        ),
        Stat(
            "Open incidents",
            "Incidents that are not closed. The Incidents dashboard lists them.",
            (4, 4),
            (Query(total("tidegauge_incidents_open")),),
            Field(COUNT, "database down", ANY_NEEDS_CARE, decimals=0),
        ),
        Stat(
            "Nodes not reporting",
            "Nodes that are stale, gone, or have not reported yet. A leak on their ranks goes unnoticed.",
            (4, 4),
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
            (14, 9),
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
            (10, 9),
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
        open_by_cause("Open incidents over time. The Incidents dashboard has numbers, owners and actions."),
        actions_by_outcome(
            "Actions of the policy in the time range. `would` and `withheld` were not carried out: the mode does not "
            "allow it, or a brake held them. Check `failed`, `unverified` and `no_proof`.",
            (12, 8),
        ),
    )


_ROWS: Final = 20
"""Rows of a table; `tidegauge top` has the other jobs."""
_SOONEST: Final = f"bottomk({_ROWS}, {fleet('cluster_job:tidegauge_seconds_to_oom:min')})"
_FULLEST: Final = f"topk({_ROWS}, {fleet('cluster_job:tidegauge_used_ratio:max')})"
_WASTING: Final = f"topk({_ROWS}, {fleet('cluster_job:tidegauge_waste_bytes:sum')})"
_BYTES_PER_S: Final = (
    f"{fleet('cluster_job:tidegauge_leak_bytes_per_step:max')} * {fleet('cluster_job:tidegauge_steps:rate5m')}"
)
_FASTEST: Final = f"topk({_ROWS}, {_BYTES_PER_S})"


_JOB: Final = Label("Job", links=(job_link(),), label="job_id")
_NAME: Final = Label("Name", label="job_name")
_OTHERS: Final = (
    Label("User", 90, label="user_name"),
    Label("Attempt", 70, label="attempt"),
    Label("Group", 80, label="group"),
    Label("Cluster", 85, label="cluster"),
)


def _of(chosen: str, metric: str) -> Query:
    """A query for a recorded series of the jobs in a table."""
    may_be_empty = NO_GROWTH if chosen in (_SOONEST, _FASTEST) else None
    return Query(of_jobs(fleet(f"cluster_job:tidegauge_{metric}"), chosen), may_be_empty=may_be_empty)


def _at_risk() -> tuple[Panel, ...]:
    return (
        Table(
            "Jobs by predicted OOM",
            "Growing jobs, the next predicted OOM first, at the current rate. Click a job for its ranks; notify the "
            "owner, or let the policy do it. Jobs without a forecast are not listed: they do not grow, or not towards "
            "their limit.",
            (24, 9),
            (
                _JOB,
                _NAME,
                *_OTHERS,
                Value(
                    "Out of memory in",
                    140,
                    query=Query(with_names(_SOONEST), may_be_empty=NO_GROWTH),
                    unit=SECONDS,
                    steps=TIME_LEFT,
                    decimals=1,
                ),
                Value(
                    "Fullest rank", 150, query=_of(_SOONEST, "used_ratio:max"), unit=SHARE, steps=HOW_FULL, gauge=True
                ),
                Value("Growth per step", 120, query=_of(_SOONEST, "leak_bytes_per_step:max"), unit=BYTES),
                Value("Verdict", 100, query=_of(_SOONEST, "leak_state:max"), words=LEAK_WORDS, steps=LEAK_STEPS),
                Value("Ranks", 75, query=_of(_SOONEST, "ranks:count"), unit=COUNT),
            ),
            "No job is on course to run out of memory.",
            sort_by="Out of memory in",
        ),
        Table(
            "Fastest growth",
            "Jobs by the growth of their worst rank (growth per step times steps per second), also without a "
            "predicted OOM. Compare with the predicted OOM: fast growth on an empty GPU can wait.",
            (12, 9),
            (
                _JOB,
                *_OTHERS,
                Value(
                    "Growth per hour",
                    120,
                    query=Query(with_names(f"3600 * {_FASTEST}"), may_be_empty=NO_GROWTH),
                    unit=BYTES,
                ),
                Value("Verdict", 95, query=_of(_FASTEST, "leak_state:max"), words=LEAK_WORDS, steps=LEAK_STEPS),
            ),
            "No job grows.",
            sort_by="Growth per hour",
            descending=True,
        ),
        Table(
            "Fullest jobs",
            "Jobs by the share of the limit that their fullest rank uses. Full is fine: a job at 97 % that does not "
            "grow is well tuned, but fails first on a longer batch. Max / median far above 1: one rank uses much "
            "more than the median rank.",
            (12, 9),
            (
                _JOB,
                *_OTHERS,
                Value("Fullest rank", 140, query=Query(with_names(_FULLEST)), unit=SHARE, steps=HOW_FULL, gauge=True),
                Value("Max / median", 105, query=_of(_FULLEST, "skew_ratio"), unit=RATIO, decimals=2),
            ),
            "No rank reports.",
            sort_by="Fullest rank",
            descending=True,
        ),
    )


def _waste() -> tuple[Panel, ...]:
    reserved = total("cluster:tidegauge_reserved_bytes:sum")
    nontorch = total("cluster:tidegauge_nontorch_bytes:sum")
    unwatched = f"topk(15, {fleet('cluster_node:tidegauge_unwatched_bytes:sum')})"
    return (
        TimeSeries(
            "Waste and share outside PyTorch",
            "Waste: reserved but not allocated, as a share of reserved. Between steps a healthy job shows its "
            "activations here; it is waste if it stays high (check fragmentation). Outside PyTorch: share of all "
            "memory of ranks; if it rises, communicators or libraries grow.",
            (6, 9),
            (
                Query(f"{total('cluster:tidegauge_waste_bytes:sum')} / {reserved}", "reserved, not allocated"),
                Query(f"{nontorch} / ({reserved} + {nontorch})", "outside PyTorch"),
            ),
            Field(SHARE, "No rank reports.", least=0, decimals=0),
        ),
        Table(
            "Waste by job",
            "Jobs by memory that is reserved and not allocated now. If a job stays here, ask its owner to try "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which usually frees most of it.",
            (12, 9),
            (
                _JOB,
                *_OTHERS,
                Value("Cached", 110, query=Query(with_names(_WASTING)), unit=BYTES),
                Value("Reserved", 100, query=_of(_WASTING, "reserved_bytes:sum"), unit=BYTES),
            ),
            "No rank reports.",
            sort_by="Cached",
            descending=True,
        ),
        Table(
            "Unattributed GPU memory",
            "Nodes by GPU memory in use that no watched rank accounts for: unwatched jobs, leftover processes, memory "
            "of a rank on another GPU than its own (a 500 MiB context each: check GPU 0), and a few hundred MiB per "
            "GPU for the driver. Run nvidia-smi on the node.",
            (6, 9),
            (Label("Node", label="hostname"), Value("In use", 100, query=Query(unwatched), unit=BYTES)),
            "No GPU reports.",
            sort_by="In use",
            descending=True,
        ),
    )


_AGE_STEPS: Final = ThresholdSteps(GOOD, ((30, CARE), (120, BAD)))


def _health() -> tuple[Panel, ...]:
    return (
        Stat(
            "Agents down",
            "Node agents that Prometheus cannot scrape: this Prometheus does not watch their ranks. "
            "`tidegauge status` on the head shows why.",
            (4, 5),
            (Query(f"sum({fleet('cluster:tidegauge_agents_down:count')})"),),
            Field(COUNT, "no agent is scraped", ANY_IS_BAD, decimals=0),
        ),
        Stat(
            "Oldest reading",
            "Age of the oldest reading of a living rank. A hung rank stops writing: find it with `tidegauge top`.",
            (4, 5),
            (Query(f"max({fleet('cluster:tidegauge_sample_age_seconds:max')})"),),
            Field(SECONDS, "no rank reports", _AGE_STEPS, decimals=0),
        ),
        Stat(
            "Series dropped",
            "Series dropped from scrapes in the time range: duplicates, or beyond what one target may export. They "
            "are missing on all dashboards.",
            (4, 5),
            (Query(f"round(sum(increase({fleet('tidegauge_series_dropped_total')}[$__range])))"),),
            Field(COUNT, "no agent reports", ANY_NEEDS_CARE, decimals=0),
            instant=True,
        ),
        Stat(
            "Failing sources",
            "Data sources that fail now: rings, NVML or /proc on a node, the database on the coordinator. Their data "
            "is missing on all dashboards.",
            (4, 5),
            (Query(f"sum({fleet('cluster:tidegauge_collect_failures:count')})"),),
            Field(COUNT, "no agent reports", ANY_IS_BAD, decimals=0),
        ),
        TimeSeries(
            "Readings judged per second",
            "Throughput of the leak detectors on all nodes. If it falls to 0 while ranks train, nobody watches them.",
            (8, 5),
            (Query(f"sum(rate({fleet('tidegauge_detector_points_total')}[$__rate_interval]))", "readings"),),
            Field(PER_S, "No agent reports.", least=0),
            legend_calculations=(),
        ),
        TimeSeries(
            "Nodes by health",
            "Nodes as the coordinator sees them. Waiting: not reported yet. Stale: silent for some seconds. Gone: dead "
            "according to Ray.",
            (12, 7),
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
            (12, 7),
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
