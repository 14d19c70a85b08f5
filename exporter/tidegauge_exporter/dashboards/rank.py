"""The Rank dashboard: the memory of one rank and its GPU."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.model.dashboard import TAG, Dashboard, Row
from tidegauge_exporter.dashboards.model.fields import (
    AGO,
    BAD,
    BYTES,
    CARE,
    COUNT,
    GOOD,
    HOW_FULL,
    LEAK_STEPS,
    LEAK_WORDS,
    PLAIN,
    SECONDS,
    SHARE,
    STEPS_PER_S,
    TIME_LEFT,
    Field,
    ThresholdSteps,
)
from tidegauge_exporter.dashboards.model.panels import Panel, Stat, StateTimeline, TimeSeries
from tidegauge_exporter.dashboards.model.queries import LIMIT, PEAK, Query, QueryLine, TaggedMarks
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value
from tidegauge_exporter.dashboards.model.variables import ATTEMPT, CLUSTER, DATA_SOURCE, GROUP, JOB_ID, RANK
from tidegauge_exporter.dashboards.shared import (
    BY_JOB,
    NO_DCGM,
    NO_DCGM_HERE,
    NO_GROWTH,
    NO_NVML,
    ONE_RANK,
    by_dcgm,
    errors_in_the_range,
    job,
    job_marks,
    node_link,
    own_card,
    rank,
    time_to_oom,
    used_share,
)
from tidegauge_exporter.links import RANK as UID

_NOBODY: Final = "The rank did not report in the time range."
_WHAT: Final = "pid, pod, container, torch_version, alloc_conf, profile"
"""Labels of a rank's process. Outside Kubernetes the table has no pod and no container."""


def dashboard() -> Dashboard:
    """The dashboard for people who investigate one rank."""
    return Dashboard(
        uid=UID,
        title="Tidegauge / Rank and GPU",
        description="One rank: its GPU memory, what grows, and what else is on its GPU.",
        variables=(DATA_SOURCE, CLUSTER, JOB_ID, ATTEMPT, GROUP, RANK),
        rows=(
            Row("Rank status", (*_header(), *_anatomy())),
            Row("Process", (_location(),)),
            Row("Growth", _growth()),
            Row("Unusable memory, host memory and speed", _details()),
            # Folded: not every site has dcgm-exporter, and two empty panels look like a fault.
            Row("GPU metrics from dcgm-exporter", _by_dcgm(), folded=True),
        ),
        marks=(*job_marks(), TaggedMarks("Notes (Grafana)", (TAG, "job:$job_id"), "purple")),
    )


def _header() -> tuple[Panel, ...]:
    return (
        Stat(
            "Verdict",
            "Verdict of the leak detector: ok, suspected, or growing.",
            (4, 3),
            (Query(f"max({rank('tidegauge_rank_leak_state')})"),),
            Field(COUNT, "not watched", LEAK_STEPS, LEAK_WORDS),
        ),
        Stat(
            "Next predicted OOM",
            "Forecast at the current growth rate. Absent without growth, or if it does not grow towards the limit.",
            (4, 3),
            (Query(f"min({rank('tidegauge_rank_leak_seconds_to_oom')})", may_be_empty=NO_GROWTH),),
            Field(SECONDS, "none predicted", TIME_LEFT, decimals=1),
        ),
        Stat(
            "Used",
            "Reserved memory plus memory outside PyTorch, as a share of the rank's limit.",
            (4, 3),
            (Query(f"max({used_share(ONE_RANK)})"),),
            Field(SHARE, "not watched", HOW_FULL, decimals=1, least=0, most=1),
        ),
        Stat(
            "Growth per step",
            "Growth in bytes per training step, estimated by the detector.",
            (4, 3),
            (Query(f"max({rank('tidegauge_rank_leak_bytes_per_step')})", may_be_empty=NO_GROWTH),),
            Field(BYTES, "none", ThresholdSteps(PLAIN)),
        ),
        Stat(
            "Last reading",
            "Age of the rank's last reading, by its own clock. Half a second is usual; minutes: it hangs, is stopped, "
            "or the clocks differ.",
            (4, 3),
            (Query(f"time() - max({rank('tidegauge_rank_last_sample_timestamp_seconds')})"),),
            Field(SECONDS, "not watched", ThresholdSteps(GOOD, ((30, CARE), (120, BAD))), decimals=0),
        ),
        errors_in_the_range(rank),
    )


def _location() -> Table:
    return Table(
        "Location and settings",
        "Node, GPU, process and settings of the rank, per attempt in the time range; on Kubernetes its pod. For "
        "`ssh`, `kubectl`, `nvidia-smi` and `py-spy`.",
        (24, 4),
        (
            Label("Attempt", 80, label="attempt"),
            Label("Node", links=(node_link(),), label="hostname"),
            Label("GPU", 60, label="gpu"),
            Label("UUID", label="UUID"),
            Label("Process", 90, label="pid"),
            Label("Pod", label="pod"),
            Label("Container", 120, label="container"),
            Label("torch", 120, label="torch_version"),
            Label("Allocator settings", label="alloc_conf"),
            Label("Profile", 90, label="profile"),
            Value(
                "Last seen",
                170,
                query=Query(
                    f"1000 * max by ({BY_JOB}, hostname, gpu, UUID, {_WHAT}) "
                    f"(max_over_time(timestamp({rank('tidegauge_rank_info')})[$__range:1m]))"
                ),
                unit=AGO,
            ),
        ),
        _NOBODY,
        sort_by="Last seen",
        descending=True,
    )


def _anatomy() -> tuple[Panel, ...]:
    allocated = f"max({rank('tidegauge_rank_allocated_bytes')})"
    reserved = f"max({rank('tidegauge_rank_reserved_bytes')})"
    nontorch = f"max({rank('tidegauge_rank_nontorch_bytes')})"
    card_used = own_card("tidegauge_gpu_used_bytes")
    card_total = own_card("tidegauge_gpu_total_bytes")
    others = own_card("tidegauge_gpu_other_processes_bytes")
    accounted = f"{reserved} - ({nontorch} or 0 * {reserved}) - {others}"
    return (
        TimeSeries(
            "GPU memory by use",
            "From below: live tensors; cached by PyTorch; the process outside PyTorch (CUDA context, NCCL, libraries); "
            "unwatched processes; other watched ranks and the driver; free. Look for the layer that grows. A limit "
            "below the total: the rank has a memory fraction.",
            (15, 9),
            (
                Query(allocated, "allocated", QueryLine("blue")),
                Query(f"{reserved} - {allocated}", "cached", QueryLine("light-blue")),
                Query(nontorch, "outside PyTorch", QueryLine("purple"), may_be_empty=NO_NVML),
                Query(others, "other processes", QueryLine("orange"), may_be_empty=NO_NVML),
                Query(
                    f"clamp_min({card_used} - {accounted}, 0)",
                    "other ranks, driver",
                    QueryLine("yellow"),
                    may_be_empty=NO_NVML,
                ),
                Query(f"{card_total} - {card_used}", "free", QueryLine("#80808040"), may_be_empty=NO_NVML),
                Query(f"max({rank('tidegauge_rank_limit_bytes')})", "rank limit", LIMIT),
                Query(
                    card_total,
                    "GPU total",
                    QueryLine("semi-dark-red", filled=False, stacked=False),
                    may_be_empty=NO_NVML,
                ),
            ),
            Field(BYTES, _NOBODY, least=0),
            stacked=True,
            legend_on_the_right=True,
        ),
        TimeSeries(
            "Peaks",
            "Peaks since the start, or since the job reset them. The gap between peak reserved and the limit is the "
            "least headroom that the rank had.",
            (9, 9),
            (
                Query(
                    f"max({rank('tidegauge_rank_allocated_peak_bytes')})",
                    "allocated, peak",
                    QueryLine("blue", dashed=True),
                ),
                Query(allocated, "allocated", QueryLine("blue")),
                Query(
                    f"max({rank('tidegauge_rank_reserved_peak_bytes')})",
                    "reserved, peak",
                    QueryLine("purple", dashed=True),
                ),
                Query(reserved, "reserved", QueryLine("purple")),
                Query(f"max({rank('tidegauge_rank_limit_bytes')})", "limit", LIMIT),
            ),
            Field(BYTES, _NOBODY, least=0),
            legend_calculations=("lastNotNull",),
        ),
    )


def _growth() -> tuple[Panel, ...]:
    return (
        TimeSeries(
            "This rank compared with the others",
            "Allocated memory of this rank, and of the highest, median and lowest rank. Alone above the others: the "
            "cause is in code that only this rank runs.",
            (12, 8),
            (
                Query(f"max({rank('tidegauge_rank_allocated_bytes')})", "rank $rank", QueryLine("orange", width=2)),
                Query(f"max({job('cluster_job:tidegauge_allocated_bytes:max')})", "highest", PEAK),
                Query(f"max({job('cluster_job:tidegauge_allocated_bytes:median')})", "median", QueryLine("blue")),
                Query(f"min({job('cluster_job:tidegauge_allocated_bytes:min')})", "lowest", PEAK),
            ),
            Field(BYTES, _NOBODY),
            legend_calculations=("lastNotNull",),
        ),
        time_to_oom(
            "Time to OOM",
            "The detector's forecast for this rank. A line that falls by an hour an hour is reliable; one that jumps "
            "is not.",
            (12, 8),
            Query(
                f"min by (attempt) ({rank('tidegauge_rank_leak_seconds_to_oom')})",
                "attempt {{attempt}}",
                may_be_empty=NO_GROWTH,
            ),
        ),
        TimeSeries(
            "Growth per step over time",
            "The detector's estimate. Only while growth is suspected or established.",
            (6, 7),
            (Query(f"max({rank('tidegauge_rank_leak_bytes_per_step')})", "growth per step", may_be_empty=NO_GROWTH),),
            Field(BYTES, "The rank was not suspected in the time range.", least=0),
            legend_calculations=("lastNotNull",),
        ),
        StateTimeline(
            "Verdict over time",
            "When the detector suspected the rank, and when growth was established.",
            (6, 7),
            (Query(f"max by (attempt) ({rank('tidegauge_rank_leak_state')})", "attempt {{attempt}}"),),
            Field(COUNT, _NOBODY, LEAK_STEPS, LEAK_WORDS),
        ),
        TimeSeries(
            "Composition at the peak",
            "Allocated memory at the peak of a training step, by purpose, from the rank's last memory profile. What "
            "grows here is what grows. For lines and phases: tidegauge profile JOB.",
            (12, 7),
            (
                Query(
                    f"max by (category) ({rank('tidegauge_rank_profile_bytes')})",
                    "{{category}}",
                    may_be_empty="the rank has no memory profile",
                ),
            ),
            Field(BYTES, "The rank has no memory profile: level auto profiles ranks past their warm-up.", least=0),
            stacked=True,
            legend_calculations=("lastNotNull",),
            legend_on_the_right=True,
        ),
    )


def _details() -> tuple[Panel, ...]:
    allocated = f"max({rank('tidegauge_rank_allocated_bytes')})"
    active = f"max({rank('tidegauge_rank_active_bytes')})"
    return (
        TimeSeries(
            "Memory that the allocator cannot use",
            "Free pieces of partly used blocks (fragmentation), freed blocks that another stream still uses, and "
            "rounding. Growing pieces: try expandable_segments:True. Large rounding: many small tensors.",
            (12, 8),
            (
                Query(f"max({rank('tidegauge_rank_inactive_split_bytes')})", "free pieces"),
                Query(f"clamp_min({active} - {allocated}, 0)", "waiting for a stream"),
                Query(f"clamp_min({allocated} - max({rank('tidegauge_rank_requested_bytes')}), 0)", "rounding"),
            ),
            Field(BYTES, _NOBODY, least=0),
            legend_calculations=("lastNotNull",),
        ),
        TimeSeries(
            "Retries and out-of-memory errors",
            "Count per interval. Retries precede errors: the allocator emptied its cache, which stalls the rank.",
            (12, 8),
            (
                Query(
                    f"sum(increase({rank('tidegauge_rank_alloc_retries_total')}[$__interval]))",
                    "retries",
                    QueryLine("orange"),
                ),
                Query(
                    f"sum(increase({rank('tidegauge_rank_ooms_total')}[$__interval]))",
                    "out of memory",
                    QueryLine("red"),
                ),
            ),
            Field(COUNT, _NOBODY, least=0, decimals=0),
            bars=True,
            legend_calculations=("sum",),
            smallest_step="10m",
        ),
        TimeSeries(
            "Host memory",
            "Host memory of the rank and its DataLoader workers. Growth here but not on the GPU: a retained autograd "
            "graph, or a data loader's cache.",
            (12, 8),
            (Query(f"max({rank('tidegauge_rank_host_rss_bytes')})", "rank $rank"),),
            Field(BYTES, _NOBODY, least=0),
        ),
        TimeSeries(
            "Steps per second",
            "This rank and the fastest of the job. A slow rank holds up all others.",
            (12, 8),
            (
                Query(f"max(rate({rank('tidegauge_rank_steps_total')}[$__rate_interval]))", "rank $rank"),
                Query(f"max({job('cluster_job:tidegauge_steps:rate5m')})", "fastest rank", PEAK),
            ),
            Field(STEPS_PER_S, "The rank finished no step in the time range.", least=0),
        ),
    )


def _by_dcgm() -> tuple[Panel, ...]:
    holds = rank("tidegauge_rank_reserved_bytes")
    memory = TimeSeries(
        "Memory in use: dcgm-exporter and Tidegauge",
        "Both read the same driver. If they differ for long, one of them is stale, or they count a MIG instance "
        "differently.",
        (24, 6),
        (
            Query(f"max(DCGM_FI_DEV_FB_USED and on (UUID) {holds}) * 1048576", "dcgm-exporter", may_be_empty=NO_DCGM),
            Query(own_card("tidegauge_gpu_used_bytes"), "Tidegauge", PEAK, may_be_empty=NO_NVML),
        ),
        Field(BYTES, NO_DCGM_HERE, least=0),
    )
    return (*by_dcgm(f"{holds} > bool -1", label="GPU {{gpu}}"), memory)
