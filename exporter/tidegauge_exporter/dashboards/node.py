"""The Node dashboard: the GPUs of one node, who is on them, its host memory and its agent."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.model.dashboard import Dashboard, Row
from tidegauge_exporter.dashboards.model.fields import (
    BAD,
    BYTES,
    CARE,
    COUNT,
    GOOD,
    HOW_FULL,
    LEAK_STEPS,
    LEAK_WORDS,
    PER_S,
    PLAIN,
    QUIET,
    SECONDS,
    SHARE,
    TIME_LEFT,
    Field,
    ThresholdSteps,
    Words,
)
from tidegauge_exporter.dashboards.model.panels import Heatmap, Panel, Stat, StateTimeline, TimeSeries
from tidegauge_exporter.dashboards.model.queries import LIMIT, Marks, Query, QueryLine
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value
from tidegauge_exporter.dashboards.model.variables import CLUSTER, DATA_SOURCE, NODE
from tidegauge_exporter.dashboards.shared import (
    BY_INCIDENT,
    BY_JOB,
    NO_GROWTH,
    NO_NVML,
    NOTHING_HAPPENED,
    ONE_NODE,
    THIS_CLUSTER,
    by_card_in_order,
    by_dcgm,
    fleet,
    job_links,
    node,
    rank_of_a_job_link,
    unattributed,
    used,
    used_share,
    with_names,
)
from tidegauge_exporter.links import NODE as UID

_NO_GPU: Final = "No GPU of this node reports: its agent is down, or NVML does not work on it."
_NO_AGENT: Final = "Prometheus does not scrape the agent of this node."
_NO_RANK: Final = "no watched rank is on this node"
_BY_RANK: Final = f"{BY_JOB}, rank, gpu, UUID"
_AGENT: Final = f'up{{{ONE_NODE}, job="tidegauge", component="agent"}}'
_SOURCE_WORDS: Final[Words] = {0: ("fails !!!", BAD), 1: ("works", QUIET)}


def dashboard(service_url: str | None = None) -> Dashboard:
    """The dashboard for admins who look at one node."""
    return Dashboard(
        uid=UID,
        title="Tidegauge / Node",
        description="The GPUs of one node: how full, whose ranks are on them, what else is; host memory, agent.",
        variables=(DATA_SOURCE, CLUSTER, NODE),
        rows=(
            Row("Node status", (*_now(service_url), _cards(), _ranks(service_url))),
            Row("Memory of its GPUs", _memory()),
            Row("Host", _host()),
            Row("Agent", _agent()),
            # Folded: not every site has dcgm-exporter, and empty panels look like a fault.
            Row(
                "GPU metrics from dcgm-exporter",
                by_dcgm(f"{node('tidegauge_gpu_total_bytes')} > bool -1", label="GPU {{gpu}}"),
                folded=True,
            ),
        ),
        marks=_marks(),
    )


def _marks() -> tuple[Marks, ...]:
    here = f"and on ({BY_JOB}) {node('tidegauge_rank_info')}"
    opened = fleet("tidegauge_job_incident_opened_timestamp_seconds")
    return (
        Marks(
            "Incidents",
            Query(
                f"1000 * max by ({BY_INCIDENT}) ({opened} {here})",
                "incident opened: {{cause}}, job {{job_id}}",
                may_be_empty=NOTHING_HAPPENED,
            ),
            CARE,
            value_is_time=True,
            labels=("cause",),
        ),
        Marks("Agent down", Query(f"1 - {_AGENT} == 1", "agent down", may_be_empty=NOTHING_HAPPENED), BAD),
    )


def _now(service_url: str | None) -> tuple[Panel, ...]:
    total, in_use = (node(f"tidegauge_gpu_{what}_bytes") for what in ("total", "used"))
    left = f"min by ({BY_JOB}, rank) ({node('tidegauge_rank_leak_seconds_to_oom')} < Inf)"
    reserved = node("tidegauge_rank_reserved_bytes")
    return (
        Stat(
            "Next predicted OOM",
            "The shortest forecast among the ranks on this node, at the current growth rate. A click opens the job.",
            (4, 3),
            (Query(f"bottomk(1, {left})", "{{job_id}} rank {{rank}}", may_be_empty=NO_GROWTH),),
            Field(
                SECONDS, "none predicted", TIME_LEFT, decimals=1,
                links=job_links(service_url, "__field.labels", cluster=THIS_CLUSTER),
            ),
            instant=True,
            named=True,
        ),
        Stat(
            "Fullest GPU",
            "Share of its memory that any process uses. Full is fine while nothing grows.",
            (4, 3),
            (Query(f"topk(1, {in_use} / {total})", "GPU {{gpu}}"),),
            Field(SHARE, "no GPU reports", ThresholdSteps(PLAIN), decimals=0),
            instant=True,
            named=True,
        ),
        Stat(
            "GPUs, ranks, jobs",
            "GPUs of the node, and watched ranks and jobs on them. A GPU without a rank is idle, or its job is not "
            "watched.",
            (4, 3),
            (
                Query(f"count({total})", "GPUs"),
                Query(f"count({reserved})", "ranks", may_be_empty=_NO_RANK),
                Query(f"count(count by ({BY_JOB}) ({reserved}))", "jobs", may_be_empty=_NO_RANK),
            ),
            Field(COUNT, "none", ThresholdSteps(PLAIN)),
            named=True,
        ),
        Stat(
            "Unattributed GPU memory",
            "In use on the node's GPUs and held by no watched rank: unwatched jobs, leftover processes, and a few "
            "hundred MiB per GPU for the driver. The table below has it by GPU.",
            (4, 3),
            (Query(f"sum({node('cluster_node:tidegauge_unwatched_bytes:sum')})"),),
            Field(BYTES, "no GPU reports", ThresholdSteps(PLAIN)),
        ),
        Stat(
            "Host memory in use",
            "Share of the node's memory that processes hold, `/dev/shm` included. Full: the kernel's OOM killer ends "
            "a process.",
            (4, 3),
            (
                Query(
                    f"1 - max({node('tidegauge_node_memory_available_bytes')})"
                    f" / max({node('tidegauge_node_memory_total_bytes')})"
                ),
            ),
            Field(SHARE, "not scraped", HOW_FULL, decimals=0, least=0, most=1),
        ),
        Stat(
            "Agent",
            "Whether Prometheus can scrape the node's agent. Down: nobody watches the ranks here; "
            "`tidegauge status` on the head shows why.",
            (4, 3),
            (Query(f"max({_AGENT})"),),
            Field(
                COUNT, "not scraped", ThresholdSteps(BAD, ((1, GOOD),)), {0: ("down !!!", BAD), 1: ("answers", GOOD)}
            ),
        ),
    )  # fmt: skip


def _cards() -> Heatmap:
    return Heatmap(
        "Memory in use, by GPU",
        "One row per GPU; the color is the share of its memory that any process uses. Dark is free, bright is full.",
        (9, 10),
        (
            Query(
                by_card_in_order(f"{node('tidegauge_gpu_used_bytes')} / {node('tidegauge_gpu_total_bytes')}"), "{{row}}"
            ),
        ),
        Field(SHARE, _NO_GPU, decimals=0),
        scheme="Viridis",
        least_colour=0,
        most_colour=1,
        row_name="GPU",
    )


def _ranks(service_url: str | None) -> Table:
    def figure(expression: str, may_be_empty: str = _NO_RANK) -> Query:
        return Query(f"max by ({_BY_RANK}) ({expression})", may_be_empty=may_be_empty)

    holds = f"max by ({_BY_RANK}) ({used(ONE_NODE)})"
    return Table(
        "Ranks on each GPU",
        "Watched ranks by GPU. Click a job for all of its ranks, or a rank for its memory.",
        (15, 10),
        (
            Label("GPU", 50, label="gpu"),
            Label("Job", 75, job_links(service_url, cluster=THIS_CLUSTER), label="job_id"),
            Label("Name", label="job_name"),
            Label("User", 75, label="user_name"),
            Label("Rank", 55, (rank_of_a_job_link(),), label="rank"),
            Label("Attempt", 70, label="attempt"),
            Label("Group", 65, label="group"),
            Value("Holds", 85, query=Query(with_names(holds, by=_BY_RANK), may_be_empty=_NO_RANK), unit=BYTES),
            Value("Used / limit", 110, query=figure(used_share(ONE_NODE)), unit=SHARE, steps=HOW_FULL, gauge=True),
            Value(
                "Verdict", 100, query=figure(node("tidegauge_rank_leak_state")), words=LEAK_WORDS, steps=LEAK_STEPS
            ),
        ),
        "No watched rank is on this node.",
        sort_by="GPU",
    )  # fmt: skip


def _memory() -> tuple[Panel, ...]:
    by_card = "gpu, UUID"
    total, in_use, others = (node(f"tidegauge_gpu_{what}_bytes") for what in ("total", "used", "other_processes"))
    ranks = f"sum by ({by_card}) ({used(ONE_NODE)})"
    return (
        TimeSeries(
            "GPU memory by job",
            "All GPUs of the node together: memory of each job's ranks; unwatched processes; unattributed: memory that "
            "no process is known to hold, such as the driver's own.",
            (10, 8),
            (
                Query(f"sum by (job_id) ({used(ONE_NODE)})", "job {{job_id}}", may_be_empty=_NO_RANK),
                Query(f"sum({others})", "other processes", QueryLine("orange")),
                Query(f"sum({unattributed(by_card, ONE_NODE)})", "unattributed", QueryLine(QUIET)),
                Query(f"sum({total})", "total", LIMIT),
            ),
            Field(BYTES, _NO_GPU, least=0),
            stacked=True,
            legend_calculations=("lastNotNull",),
        ),
        Table(
            "Memory of each GPU",
            "Other processes are those that Tidegauge does not watch. Unattributed: in use, and held neither by a "
            "watched rank nor by another process that NVML lists. Check with nvidia-smi on the node.",
            (14, 8),
            (
                Label("GPU", 55, label="gpu"),
                Label("UUID", label="UUID"),
                Value("Total", 80, query=Query(f"max by ({by_card}) ({total})"), unit=BYTES),
                Value("In use", 85, query=Query(f"max by ({by_card}) ({in_use})"), unit=BYTES),
                Value("Ranks", 85, query=Query(ranks, may_be_empty=_NO_RANK), unit=BYTES),
                Value(
                    "Other processes",
                    130,
                    query=Query(f"max by ({by_card}) ({others})", may_be_empty=NO_NVML),
                    unit=BYTES,
                ),
                Value("Unattributed", 110, query=Query(unattributed(by_card, ONE_NODE)), unit=BYTES),
            ),
            _NO_GPU,
            sort_by="GPU",
        ),
    )


def _host() -> tuple[Panel, ...]:
    total, available = (node(f"tidegauge_node_memory_{what}_bytes") for what in ("total", "available"))
    return (
        TimeSeries(
            "Host memory",
            "Memory of the node that processes hold, and what the watched ranks and their DataLoader workers hold of "
            "it. At the total the kernel's OOM killer ends a process.",
            (12, 7),
            (
                Query(f"max({total}) - max({available})", "in use", QueryLine("blue")),
                Query(
                    f"sum({node('tidegauge_rank_host_rss_bytes')})",
                    "watched ranks",
                    QueryLine("orange"),
                    may_be_empty=_NO_RANK,
                ),
                Query(f"max({total})", "total", LIMIT),
            ),
            Field(BYTES, _NO_AGENT, least=0),
            legend_calculations=("lastNotNull",),
        ),
        TimeSeries(
            "Shared memory (/dev/shm)",
            "Through it DataLoader workers pass batches. Full: workers die with a bus error.",
            (12, 7),
            (
                Query(f"max({node('tidegauge_node_shm_used_bytes')})", "used", QueryLine("blue")),
                Query(f"max({node('tidegauge_node_shm_total_bytes')})", "size", LIMIT),
            ),
            Field(BYTES, _NO_AGENT, least=0),
            legend_calculations=("lastNotNull",),
        ),
    )


def _agent() -> tuple[Panel, ...]:
    def per_s(metric: str) -> str:
        return f"sum(rate({node(metric)}[$__rate_interval]))"

    return (
        StateTimeline(
            "Sources of the agent",
            "Whether the agent could read its rings, NVML and /proc. What fails is missing on all dashboards.",
            (8, 6),
            (Query(f"min by (source) ({node('tidegauge_collect_success')})", "{{source}}"),),
            Field(COUNT, _NO_AGENT, ThresholdSteps(BAD, ((1, QUIET),)), _SOURCE_WORDS),
        ),
        TimeSeries(
            "Age of the oldest reading",
            "Of a living rank on this node. A hung rank stops writing, and its line rises by a second a second.",
            (8, 6),
            (
                Query(
                    f"time() - min({node('tidegauge_rank_last_sample_timestamp_seconds')}"
                    f" and {node('tidegauge_rank_allocated_bytes')})",
                    "oldest reading",
                    may_be_empty=_NO_RANK,
                ),
            ),
            Field(SECONDS, "No watched rank reported on this node in the time range.", least=0),
            legend_calculations=("lastNotNull",),
        ),
        TimeSeries(
            "Readings judged and lost per second",
            "Readings that the leak detector judged; lost: a rank wrote faster than the agent read; refused: "
            "impossible values; dropped: series that did not fit into a scrape, and are missing on all dashboards.",
            (8, 6),
            (
                Query(per_s("tidegauge_detector_points_total"), "judged", QueryLine("blue")),
                Query(per_s("tidegauge_records_lost_total"), "lost", QueryLine("orange")),
                Query(per_s("tidegauge_records_refused_total"), "refused", QueryLine("red")),
                Query(per_s("tidegauge_series_dropped_total"), "series dropped", QueryLine("purple")),
            ),
            Field(PER_S, _NO_AGENT, least=0),
            legend_calculations=("lastNotNull",),
        ),
    )
