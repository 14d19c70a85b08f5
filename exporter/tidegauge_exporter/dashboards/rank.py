"""The Rank dashboard: the anatomy of one rank and its GPU."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.errors import errors_in_the_range
from tidegauge_exporter.dashboards.expressions import BY_JOB, ONE_RANK, own_card, rank, used_share
from tidegauge_exporter.dashboards.job_marks import job_marks
from tidegauge_exporter.dashboards.model.curves import TimeSeries
from tidegauge_exporter.dashboards.model.dashboard import TAG, Dashboard, Row
from tidegauge_exporter.dashboards.model.fields import (
    AGO,
    BYTES,
    COUNT,
    HOW_FULL,
    LEAK_STEPS,
    LEAK_WORDS,
    PLAIN,
    SECONDS,
    SHARE,
    TIME_LEFT,
    Field,
    ThresholdSteps,
)
from tidegauge_exporter.dashboards.model.panels import Panel, Stat
from tidegauge_exporter.dashboards.model.queries import LIMIT, Query, QueryLine, TaggedMarks
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value
from tidegauge_exporter.dashboards.model.variables import ATTEMPT, CLUSTER, DATA_SOURCE, GROUP, JOB_ID, RANK
from tidegauge_exporter.dashboards.rank_details import by_dcgm, details, growth
from tidegauge_exporter.dashboards.reasons import NO_GROWTH, NO_NVML
from tidegauge_exporter.links import RANK as UID

_NOBODY: Final = "The rank did not report in the time range."
_WHAT: Final = "pid, pod, container, torch_version, alloc_conf, profile"
"""Outside Kubernetes there is no ``pod`` and no ``container``, and the table has no such columns."""


def dashboard() -> Dashboard:
    """For whoever knows which rank it is and wants to know what it holds."""
    return Dashboard(
        uid=UID,
        title="Tidegauge / Rank and GPU",
        description="One rank: its GPU memory, what grows, and what else is on its GPU.",
        variables=(DATA_SOURCE, CLUSTER, JOB_ID, ATTEMPT, GROUP, RANK),
        rows=(
            Row("Rank status", _header()),
            Row("Memory of its GPU", _anatomy()),
            Row("Growth", growth()),
            Row("Unusable memory, host memory and speed", details()),
            # Folded: not every site has dcgm-exporter, and two empty panels look like a fault.
            Row("GPU metrics from dcgm-exporter", by_dcgm(), folded=True),
        ),
        marks=(*job_marks(), TaggedMarks("Notes (Grafana)", (TAG, "job:$job_id"), "purple")),
    )


def _header() -> tuple[Panel, ...]:
    return (
        Stat(
            "Verdict",
            "Verdict of the leak detector: ok, suspected, or growing.",
            4,
            4,
            (Query(f"max({rank('tidegauge_rank_leak_state')})"),),
            Field(COUNT, "not watched", LEAK_STEPS, LEAK_WORDS),
        ),
        Stat(
            "Out of memory in",
            "Forecast at the current growth rate. Absent without growth, or if it does not grow towards the limit.",
            4,
            4,
            (Query(f"min({rank('tidegauge_rank_leak_seconds_to_oom')})", may_be_empty=NO_GROWTH),),
            Field(SECONDS, "none predicted", TIME_LEFT, decimals=1),
        ),
        Stat(
            "Used",
            "Reserved memory plus memory outside PyTorch, as a share of the rank's limit.",
            4,
            4,
            (Query(f"max({used_share(ONE_RANK)})"),),
            Field(SHARE, "not watched", HOW_FULL, decimals=1, least=0, most=1),
        ),
        Stat(
            "Growth per step",
            "Growth in bytes per training step, estimated by the detector.",
            4,
            4,
            (Query(f"max({rank('tidegauge_rank_leak_bytes_per_step')})", may_be_empty=NO_GROWTH),),
            Field(BYTES, "none", ThresholdSteps(PLAIN)),
        ),
        Stat(
            "Last reading",
            "Age of the rank's last reading, by its own clock. Half a second is usual; minutes: it hangs, is stopped, "
            "or the clocks differ.",
            4,
            4,
            (Query(f"time() - max({rank('tidegauge_rank_last_sample_timestamp_seconds')})"),),
            Field(SECONDS, "not watched", ThresholdSteps("green", ((30, "orange"), (120, "red"))), decimals=0),
        ),
        errors_in_the_range(rank),
        Table(
            "Location and settings",
            "Node, GPU, process and settings of the rank, per attempt in the time range; on Kubernetes its pod. For "
            "`ssh`, `kubectl`, `nvidia-smi` and `py-spy`.",
            24,
            4,
            (
                Label("Attempt", 80, label="attempt"),
                Label("Node", label="hostname"),
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
        ),
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
            16,
            11,
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
            8,
            11,
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
