"""The Fleet dashboard: jobs at risk, memory usage, waste, incidents, and the quality of the data."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.model.dashboard import TAG, Dashboard, Row
from tidegauge_exporter.dashboards.model.fields import (
    AGO,
    ANY_IS_BAD,
    ANY_NEEDS_CARE,
    BAD,
    BYTES,
    CARE,
    COUNT,
    GOOD,
    HOUR_S,
    HOW_FULL,
    LEAK_STEPS,
    LEAK_WORDS,
    NEVER_S,
    NOTE,
    PER_S,
    PLAIN,
    RATIO,
    SECONDS,
    SHARE,
    TIME_LEFT,
    Field,
    ThresholdSteps,
)
from tidegauge_exporter.dashboards.model.panels import Panel, Stat, TimeSeries
from tidegauge_exporter.dashboards.model.queries import LIMIT, PEAK, Marks, Query, QueryLine, TaggedMarks
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value
from tidegauge_exporter.dashboards.model.variables import (
    ACCOUNT,
    CLUSTERS,
    DATA_SOURCE,
    NAMESPACE,
    NODES,
    PARTITION,
    USER,
)
from tidegauge_exporter.dashboards.shared import (
    BY_INCIDENT,
    FLEET,
    NO_GROWTH,
    NOTHING_HAPPENED,
    actions_by_outcome,
    cluster_of,
    dashboard_link,
    fleet,
    job_links,
    node_links,
    of_chosen_jobs,
    of_jobs,
    of_owners,
    open_by_cause,
    total,
    with_names,
)
from tidegauge_exporter.links import EFFICIENCY, INCIDENTS
from tidegauge_exporter.links import FLEET as UID


def dashboard(service_url: str | None = None) -> Dashboard:
    """The dashboard for admins: urgent jobs, and the memory of the fleet."""
    return Dashboard(
        uid=UID,
        title="Tidegauge / Fleet",
        description="GPU memory of all watched clusters: jobs at risk, usage, waste, data quality.",
        variables=(DATA_SOURCE, CLUSTERS, USER, ACCOUNT, PARTITION, NAMESPACE, NODES),
        rows=(
            Row("Now", (*_now(service_url), _at_risk(service_url), *_how_full())),
            Row("Nodes", _nodes(service_url)),
            Row("Waste", _waste(service_url)),
            Row("Incidents and actions", _what_was_done()),
            Row("Data quality", _health()),
        ),
        marks=(*_marks(), TaggedMarks("Notes (Grafana)", (TAG,), "purple")),
    )


def _marks() -> tuple[Marks, ...]:
    opened = of_owners(fleet("tidegauge_job_incident_opened_timestamp_seconds"))
    firing = f'ALERTS{{{FLEET}, alertname=~"Tidegauge.*", alertstate="firing", severity="critical"}}'
    return (
        Marks(
            "Incidents",
            Query(
                f"1000 * max by ({BY_INCIDENT}) ({opened})",
                "incident opened: {{cause}}, job {{job_id}}",
                may_be_empty=NOTHING_HAPPENED,
            ),
            CARE,
            value_is_time=True,
            labels=("cause",),
        ),
        Marks(
            "Critical alerts",
            Query(
                f"max by (alertname, job_id, hostname) ({firing})",
                "{{alertname}} {{job_id}} {{hostname}}",
                may_be_empty="no critical alert fires, or the rules are in another Prometheus",
            ),
            BAD,
            labels=("alertname",),
        ),
    )


def _now(service_url: str | None) -> tuple[Panel, ...]:
    """The tiles; a click leads to where one goes on from there."""
    variables = ("cluster", "user", "account", "partition")
    node_used = f"{fleet('cluster_node:tidegauge_gpu_used_bytes:sum')} / {_NODE_TOTAL}"
    return (
        Stat(
            "Next predicted OOM",
            "The shortest forecast among the chosen jobs, at the current growth rate. Under 30 minutes: checkpoint "
            "that job now. A click opens it.",
            (4, 3),
            (
                Query(
                    with_names(f"bottomk(1, {of_chosen_jobs(_SECONDS_LEFT)})"),
                    "{{job_id}} {{user_name}}",
                    may_be_empty=NO_GROWTH,
                ),
            ),
            Field(SECONDS, "none predicted", TIME_LEFT, decimals=1, links=job_links(service_url, "__field.labels")),
            instant=True,
            named=True,
        ),
        Stat(
            "Growing jobs",
            "Chosen jobs with a rank whose growth is established, dangerous or not. The table below lists them. A "
            "click opens the incidents: what was done about them.",
            (4, 3),
            (Query(f"sum({of_chosen_jobs(fleet('cluster_job:tidegauge_leak_state:max'))} == bool 2)"),),
            Field(
                COUNT, "no jobs", ANY_NEEDS_CARE, decimals=0,
                links=(dashboard_link("Incidents", INCIDENTS, *variables),),
            ),
            instant=True,
        ),
        Stat(
            "Open incidents",
            "Incidents of all jobs that are not closed. A click opens the Incidents dashboard, which lists them.",
            (4, 3),
            (Query(total("tidegauge_incidents_open")),),
            Field(
                COUNT, "database down", ANY_NEEDS_CARE, decimals=0,
                links=(dashboard_link("Incidents", INCIDENTS, *variables),),
            ),
        ),
        Stat(
            "Nodes not reporting",
            "Nodes that are stale, gone, or have not reported yet. A leak on their ranks goes unnoticed. A click opens "
            "the firing alerts; agents that do not answer are listed under Nodes.",
            (4, 3),
            (Query('sum(tidegauge_nodes{cluster=~"$cluster", health!="ok"})'),),
            Field(
                COUNT, "coordinator down", ANY_NEEDS_CARE, decimals=0,
                links=(dashboard_link("Incidents: firing alerts", INCIDENTS, *variables),),
            ),
        ),
        Stat(
            "Fullest node",
            "GPU memory in use on the fullest of the chosen nodes, by any process. Full is fine while nothing grows. A "
            "click opens the node.",
            (4, 3),
            (Query(f"topk(1, {node_used})", "{{hostname}}"),),
            Field(
                SHARE, "no GPU reports", ThresholdSteps(PLAIN), decimals=0,
                links=node_links(service_url, "__field.labels", cluster=cluster_of("__field.labels")),
            ),
            instant=True,
            named=True,
        ),
        Stat(
            "GPUs, jobs, ranks",
            "Watched GPUs, running job attempts, and reporting ranks. Fewer ranks than GPUs: idle GPUs, or unwatched "
            "jobs. A click opens Efficiency: who had more than was needed.",
            (4, 3),
            (
                Query(total("cluster:tidegauge_gpus:count"), "GPUs"),
                Query(f"count({fleet('cluster_job:tidegauge_ranks:count')})", "jobs"),
                Query(total("cluster:tidegauge_ranks:count"), "ranks"),
            ),
            Field(
                COUNT, "none", ThresholdSteps(PLAIN),
                links=(dashboard_link("Efficiency", EFFICIENCY, "cluster", "user"),),
            ),
            named=True,
        ),
    )  # fmt: skip


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
            (14, 6),
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
            (10, 6),
            (
                Query(f"max({fleet('cluster:tidegauge_node_used_ratio:max')})", "fullest node", QueryLine("orange")),
                # Of several clusters chosen together: the median of their medians.
                Query(
                    f"quantile(0.5, {fleet('cluster:tidegauge_node_used_ratio:median')})", "median", QueryLine("blue")
                ),
                Query(f"min({fleet('cluster:tidegauge_node_used_ratio:min')})", "emptiest node", PEAK),
            ),
            Field(SHARE, "No GPU reports.", least=0, most=1, decimals=0),
            legend_calculations=("lastNotNull",),
            legend_on_the_right=True,
        ),
    )


def _what_was_done() -> tuple[Panel, ...]:
    return (
        open_by_cause("Open incidents over time. The Incidents dashboard has numbers, owners and actions.", (12, 7)),
        actions_by_outcome(
            "Actions of the policy in the time range. `would` and `withheld` were not carried out: the mode does not "
            "allow it, or a brake held them. Check `failed`, `unverified` and `no_proof`.",
            (12, 7),
        ),
    )


_ROWS: Final = 20
"""Rows of a table; `tidegauge top` has the other jobs."""
_SECONDS_LEFT: Final = fleet("cluster_job:tidegauge_seconds_to_oom:min")
_STATE: Final = fleet("cluster_job:tidegauge_leak_state:max")
_USED: Final = fleet("cluster_job:tidegauge_used_ratio:max")
_ORDER: Final = (
    f"{_SECONDS_LEFT} or {NEVER_S} * (10 - {_STATE} - clamp_max({_USED}, 0.9)) or {NEVER_S} * (10 - {_STATE})"
)
"""The seconds that a job has left; without a forecast a number above ``NEVER_S``: growing jobs first, then suspected
ones, then the fullest."""
_RISKY: Final = f"bottomk({_ROWS}, {of_chosen_jobs(_ORDER)})"
_WASTING: Final = f"topk({_ROWS}, {of_chosen_jobs(fleet('cluster_job:tidegauge_waste_bytes:sum'))})"
_BYTES_PER_S: Final = (
    f"{fleet('cluster_job:tidegauge_leak_bytes_per_step:max')} * {fleet('cluster_job:tidegauge_steps:rate5m')}"
)
_NODE_TOTAL: Final = f'cluster_node:tidegauge_gpu_total_bytes:sum{{{FLEET}, hostname=~"$node"}}'


def _job(service_url: str | None) -> Label:
    return Label("Job", 80, links=job_links(service_url), label="job_id")


_NAME: Final = Label("Name", label="job_name")
_OTHERS: Final = (
    Label("User", 80, label="user_name"),
    Label("Attempt", 75, label="attempt"),
    Label("Group", 70, label="group"),
    Label("Cluster", 75, label="cluster"),
)


def _of(chosen: str, metric: str, may_be_empty: str | None = None) -> Query:
    """A query for a recorded series of the jobs in a table."""
    return Query(of_jobs(fleet(f"cluster_job:tidegauge_{metric}"), chosen), may_be_empty=may_be_empty)


def _at_risk(service_url: str | None) -> Table:
    return Table(
        "Jobs at risk",
        "The next predicted OOM first, then jobs that grow, are suspected, or are full. Click a job for its ranks; "
        "notify the owner, or let the policy do it. Full is fine: a job at 97 % that does not grow is well tuned, but "
        "fails first on a longer batch. Max / median far above 1: one rank uses much more than the median rank.",
        (24, 6),
        (
            _job(service_url),
            _NAME,
            *_OTHERS,
            Value(
                "Out of memory in",
                140,
                query=Query(with_names(_RISKY)),
                unit=SECONDS,
                steps=TIME_LEFT,
                decimals=1,
                from_on=(NEVER_S, "-"),
            ),
            Value("Verdict", 100, query=_of(_RISKY, "leak_state:max"), words=LEAK_WORDS, steps=LEAK_STEPS),
            Value("Fullest rank", 135, query=_of(_RISKY, "used_ratio:max"), unit=SHARE, steps=HOW_FULL, gauge=True),
            Value(
                "Growth per hour",
                135,
                query=Query(of_jobs(f"{HOUR_S} * {_BYTES_PER_S}", _RISKY), may_be_empty=NO_GROWTH),
                unit=BYTES,
            ),
            Value("Max / median", 110, query=_of(_RISKY, "skew_ratio"), unit=RATIO, decimals=2),
            Value("Cached", 90, query=_of(_RISKY, "waste_bytes:sum"), unit=BYTES),
            Value("Ranks", 65, query=_of(_RISKY, "ranks:count"), unit=COUNT),
        ),
        "No chosen job reports.",
        sort_by="Out of memory in",
    )


def _nodes(service_url: str | None) -> tuple[Panel, ...]:
    used = f'cluster_node:tidegauge_gpu_used_bytes:sum{{{FLEET}, hostname=~"$node"}}'
    unwatched = f'cluster_node:tidegauge_unwatched_bytes:sum{{{FLEET}, hostname=~"$node"}}'
    most = f"topk(15, {unwatched})"
    ranks = f'count by (cluster, hostname) (tidegauge_rank_reserved_bytes{{{FLEET}, hostname=~"$node"}})'
    to_node = node_links(service_url, cluster=cluster_of("__data.fields"))
    return (
        Table(
            "Unattributed GPU memory",
            "Nodes by GPU memory in use that no watched rank accounts for: unwatched jobs, leftover processes, memory "
            "of a rank on another GPU than its own (a 500 MiB context each: check GPU 0), and a few hundred MiB per "
            "GPU for the driver. Click a node for its GPUs and who is on them.",
            (14, 7),
            (
                Label("Node", links=to_node, label="hostname"),
                Label("Cluster", 100, label="cluster"),
                Value("Unattributed", 120, query=Query(most), unit=BYTES),
                Value(
                    "GPU memory in use",
                    160,
                    query=Query(f"{used} / {_NODE_TOTAL} and on (cluster, hostname) {most}"),
                    unit=SHARE,
                    steps=ThresholdSteps(NOTE),
                    gauge=True,
                ),
                Value("Ranks", 80, query=Query(f"{ranks} and on (cluster, hostname) {most}"), unit=COUNT),
            ),
            "No GPU reports.",
            sort_by="Unattributed",
            descending=True,
        ),
        Table(
            "Agents that do not answer",
            "Nodes whose agent Prometheus cannot scrape, and since when within the time range: nobody watches their "
            "ranks. `tidegauge status` on the head shows why.",
            (10, 7),
            (
                Label("Node", links=to_node, label="hostname"),
                Label("Cluster", 100, label="cluster"),
                Value(
                    "Last answer",
                    150,
                    query=Query(
                        "1000 * max by (cluster, hostname) (max_over_time(timestamp("
                        f"{_agent('up')} == 1)[$__range:1m])) and on (cluster, hostname) {_agent('up')} == 0",
                        may_be_empty="all agents answer",
                    ),
                    unit=AGO,
                ),
            ),
            "All agents answer.",
            sort_by="Last answer",
        ),
    )


def _agent(metric: str) -> str:
    return f'{metric}{{{FLEET}, job="tidegauge", component="agent", hostname=~"$node"}}'


def _waste(service_url: str | None) -> tuple[Panel, ...]:
    reserved = total("cluster:tidegauge_reserved_bytes:sum")
    nontorch = total("cluster:tidegauge_nontorch_bytes:sum")
    return (
        TimeSeries(
            "Waste and share outside PyTorch",
            "Waste: reserved but not allocated, as a share of reserved. Between steps a healthy job shows its "
            "activations here; it is waste if it stays high (check fragmentation). Outside PyTorch: share of all "
            "memory of ranks; if it rises, communicators or libraries grow.",
            (10, 7),
            (
                Query(f"{total('cluster:tidegauge_waste_bytes:sum')} / {reserved}", "reserved, not allocated"),
                Query(f"{nontorch} / ({reserved} + {nontorch})", "outside PyTorch"),
            ),
            Field(SHARE, "No rank reports.", least=0, decimals=0),
            legend_calculations=("lastNotNull",),
        ),
        Table(
            "Waste by job",
            "Chosen jobs by memory that is reserved and not allocated now. If a job stays here, ask its owner to try "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which usually frees most of it.",
            (14, 7),
            (
                _job(service_url),
                _NAME,
                *_OTHERS,
                Value("Cached", 110, query=Query(with_names(_WASTING)), unit=BYTES),
                Value("Reserved", 100, query=_of(_WASTING, "reserved_bytes:sum"), unit=BYTES),
            ),
            "No rank reports.",
            sort_by="Cached",
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
            (4, 4),
            (Query(f"sum({fleet('cluster:tidegauge_agents_down:count')})"),),
            Field(COUNT, "no agent is scraped", ANY_IS_BAD, decimals=0),
        ),
        Stat(
            "Oldest reading",
            "Age of the oldest reading of a living rank. A hung rank stops writing: find it with `tidegauge top`.",
            (4, 4),
            (Query(f"max({fleet('cluster:tidegauge_sample_age_seconds:max')})"),),
            Field(SECONDS, "no rank reports", _AGE_STEPS, decimals=0),
        ),
        Stat(
            "Series dropped",
            "Series dropped from scrapes in the time range: duplicates, or beyond what one target may export. They "
            "are missing on all dashboards.",
            (4, 4),
            (Query(f"round(sum(increase({fleet('tidegauge_series_dropped_total')}[$__range])))"),),
            Field(COUNT, "no agent reports", ANY_NEEDS_CARE, decimals=0),
            instant=True,
        ),
        Stat(
            "Failing sources",
            "Data sources that fail now: rings, NVML or /proc on a node, the database on the coordinator. Their data "
            "is missing on all dashboards.",
            (4, 4),
            (Query(f"sum({fleet('cluster:tidegauge_collect_failures:count')})"),),
            Field(COUNT, "no agent reports", ANY_IS_BAD, decimals=0),
        ),
        TimeSeries(
            "Readings judged per second",
            "Throughput of the leak detectors on all nodes. If it falls to 0 while ranks train, nobody watches them.",
            (8, 4),
            (Query(f"sum(rate({fleet('tidegauge_detector_points_total')}[$__rate_interval]))", "readings"),),
            Field(PER_S, "No agent reports.", least=0),
            legend_calculations=(),
        ),
        TimeSeries(
            "Nodes by health",
            "Nodes as the coordinator sees them. Waiting: not reported yet. Stale: silent for some seconds. Gone: dead "
            "according to Ray.",
            (12, 6),
            tuple(
                Query(
                    f'sum(tidegauge_nodes{{{FLEET}, health="{health}"}}) > 0',
                    health,
                    QueryLine(colour),
                    may_be_empty=f"no node is {health}",
                )
                for health, colour in (("ok", "blue"), ("waiting", "light-blue"), ("stale", CARE), ("gone", BAD))
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
            (12, 6),
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
