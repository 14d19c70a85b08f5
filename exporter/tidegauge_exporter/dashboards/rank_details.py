"""Rows of the Rank dashboard below its card: growth, the allocator and the process, dcgm-exporter's view."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.expressions import job, own_card, rank
from tidegauge_exporter.dashboards.model.curves import StateTimeline, TimeSeries
from tidegauge_exporter.dashboards.model.fields import (
    BYTES,
    COUNT,
    LEAK_STEPS,
    LEAK_WORDS,
    PERCENT,
    SECONDS,
    STEPS_PER_S,
    Field,
)
from tidegauge_exporter.dashboards.model.panels import Panel
from tidegauge_exporter.dashboards.model.queries import PEAK, Query, QueryLine
from tidegauge_exporter.dashboards.reasons import NO_DCGM, NO_GROWTH, NO_NVML

_NOBODY: Final = "The rank did not report in the time range."
_NO_DCGM: Final = (
    "No dcgm-exporter series with this GPU's UUID: it does not run here, or another Prometheus scrapes it."
)


def growth() -> tuple[Panel, ...]:
    return (
        TimeSeries(
            "This rank compared with the others",
            "Allocated memory of this rank, and of the highest, median and lowest rank. Alone above the others: the "
            "cause is in code that only this rank runs.",
            10,
            8,
            (
                Query(f"max({rank('tidegauge_rank_allocated_bytes')})", "rank $rank", QueryLine("orange", width=2)),
                Query(f"max({job('cluster_job:tidegauge_allocated_bytes:max')})", "highest", PEAK),
                Query(f"max({job('cluster_job:tidegauge_allocated_bytes:median')})", "median", QueryLine("blue")),
                Query(f"min({job('cluster_job:tidegauge_allocated_bytes:min')})", "lowest", PEAK),
            ),
            Field(BYTES, _NOBODY),
            legend_calculations=("lastNotNull",),
        ),
        StateTimeline(
            "Verdict over time",
            "When the detector suspected the rank, and when growth was established.",
            7,
            8,
            (Query(f"max by (attempt) ({rank('tidegauge_rank_leak_state')})", "attempt {{attempt}}"),),
            Field(COUNT, _NOBODY, LEAK_STEPS, LEAK_WORDS),
        ),
        TimeSeries(
            "Growth per step and time to OOM",
            "The detector's estimates over time; time to OOM on the right axis. Only while growth is suspected or "
            "established.",
            7,
            8,
            (
                Query(f"max({rank('tidegauge_rank_leak_bytes_per_step')})", "growth per step", may_be_empty=NO_GROWTH),
                Query(
                    f"min({rank('tidegauge_rank_leak_seconds_to_oom')})",
                    "out of memory in",
                    QueryLine("red", dashed=True, filled=False, on_the_right=True, unit=SECONDS),
                    may_be_empty=NO_GROWTH,
                ),
            ),
            Field(BYTES, "The rank was not suspected in the time range.", least=0),
        ),
    )


def details() -> tuple[Panel, ...]:
    allocated = f"max({rank('tidegauge_rank_allocated_bytes')})"
    active = f"max({rank('tidegauge_rank_active_bytes')})"
    return (
        TimeSeries(
            "Memory that the allocator cannot use",
            "Free pieces of partly used blocks (fragmentation), freed blocks that another stream still uses, and "
            "rounding. Growing pieces: try expandable_segments:True. Large rounding: many small tensors.",
            12,
            8,
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
            12,
            8,
            (
                Query(
                    f"sum(increase({rank('tidegauge_rank_alloc_retries_total')}[$__rate_interval]))",
                    "retries",
                    QueryLine("orange"),
                ),
                Query(
                    f"sum(increase({rank('tidegauge_rank_ooms_total')}[$__rate_interval]))",
                    "out of memory",
                    QueryLine("red"),
                ),
            ),
            Field(COUNT, _NOBODY, least=0, decimals=0),
            bars=True,
            legend_calculations=("sum",),
            smallest_step="1m",
        ),
        TimeSeries(
            "Host memory",
            "Host memory of the rank and its DataLoader workers. Growth here but not on the GPU: a retained autograd "
            "graph, or a data loader's cache.",
            12,
            8,
            (Query(f"max({rank('tidegauge_rank_host_rss_bytes')})", "rank $rank"),),
            Field(BYTES, _NOBODY, least=0),
        ),
        TimeSeries(
            "Steps per second",
            "This rank and the fastest of the job. A slow rank holds up all others.",
            12,
            8,
            (
                Query(f"max(rate({rank('tidegauge_rank_steps_total')}[$__rate_interval]))", "rank $rank"),
                Query(f"max({job('cluster_job:tidegauge_steps:rate5m')})", "fastest rank", PEAK),
            ),
            Field(STEPS_PER_S, "The rank finished no step in the time range.", least=0),
        ),
    )


def by_dcgm() -> tuple[Panel, ...]:
    on_card = f"and on (UUID) {rank('tidegauge_rank_reserved_bytes')}"
    return (
        TimeSeries(
            "Memory in use: dcgm-exporter and Tidegauge",
            "Both read the same driver. If they differ for long, one of them is stale, or they count a MIG instance "
            "differently.",
            12,
            7,
            (
                Query(f"max(DCGM_FI_DEV_FB_USED {on_card}) * 1048576", "dcgm-exporter", may_be_empty=NO_DCGM),
                Query(
                    own_card("tidegauge_gpu_used_bytes"),
                    "Tidegauge",
                    PEAK,
                    may_be_empty=NO_NVML,
                ),
            ),
            Field(BYTES, _NO_DCGM, least=0),
        ),
        TimeSeries(
            "GPU utilization",
            "Share of time with a running kernel. A full GPU at 0 % does nothing: a hung job, or a debugger.",
            12,
            7,
            (Query(f"max(DCGM_FI_DEV_GPU_UTIL {on_card})", "busy", may_be_empty=NO_DCGM),),
            Field(PERCENT, _NO_DCGM, least=0, most=100, decimals=0),
            legend_calculations=("mean", "max"),
        ),
    )
