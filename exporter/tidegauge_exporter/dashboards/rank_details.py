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
    "No series of dcgm-exporter with this GPU's UUID: it does not run here, or another Prometheus scrapes it."
)


def growth() -> tuple[Panel, ...]:
    return (
        TimeSeries(
            "This rank beside the others",
            "Allocated of this rank, of the highest, the middle and the lowest of the job. Alone above the others: "
            "the cause is in what only this rank does.",
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
            "When the detector began to suspect the rank, and when it was sure.",
            7,
            8,
            (Query(f"max by (attempt) ({rank('tidegauge_rank_leak_state')})", "attempt {{attempt}}"),),
            Field(COUNT, _NOBODY, LEAK_STEPS, LEAK_WORDS),
        ),
        TimeSeries(
            "Growth a step and time left",
            "The detector's estimates at each moment; the time is on the right axis. Only while a leak is suspected "
            "or established.",
            7,
            8,
            (
                Query(f"max({rank('tidegauge_rank_leak_bytes_per_step')})", "growth a step", may_be_empty=NO_GROWTH),
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
            "What the allocator holds and cannot hand out",
            "Free pieces of partly used blocks (fragmentation), freed blocks that another stream still uses, and what "
            "rounding adds to what the code asked for. Pieces that grow: expandable_segments:True. Rounding that is "
            "large: many small tensors.",
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
            "How many in each interval. Retries come before errors: the cache was emptied to make room, which stalls "
            "the rank.",
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
            "Memory of the rank and its DataLoader workers on its node. Growth here that the card does not show: an "
            "autograd graph that is kept, a cache of a data loader.",
            12,
            8,
            (Query(f"max({rank('tidegauge_rank_host_rss_bytes')})", "rank $rank"),),
            Field(BYTES, _NOBODY, least=0),
        ),
        TimeSeries(
            "Steps a second",
            "This rank and the fastest of the job. A rank that lags holds up all others.",
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
            "Memory in use, by both",
            "dcgm-exporter's figure (MiB, made bytes) beside Tidegauge's. They read the same driver; if they differ "
            "for long, one of them is not up to date, or they count a MIG instance differently.",
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
            "Utilisation of the GPU",
            "Share of time in which a kernel ran. A full card at 0 % holds memory and does nothing: a job that hangs, "
            "or a debugger.",
            12,
            7,
            (Query(f"max(DCGM_FI_DEV_GPU_UTIL {on_card})", "busy", may_be_empty=NO_DCGM),),
            Field(PERCENT, _NO_DCGM, least=0, most=100, decimals=0),
            legend_calculations=("mean", "max"),
        ),
    )
