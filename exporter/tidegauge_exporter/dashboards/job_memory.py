"""Rows of the Job dashboard about memory: ranks side by side, highest, median and lowest, and what else there is."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.expressions import (
    ONE_JOB,
    by_rank_in_order,
    job,
    rank_link,
    standing_out,
    used_share,
)
from tidegauge_exporter.dashboards.model.curves import FEW_POINTS, Heatmap, StateTimeline, TimeSeries
from tidegauge_exporter.dashboards.model.fields import (
    BYTES,
    COUNT,
    LEAK_STEPS,
    LEAK_WORDS,
    PER_S,
    RATIO,
    SHARE,
    STEPS_PER_S,
    Field,
)
from tidegauge_exporter.dashboards.model.panels import Panel
from tidegauge_exporter.dashboards.model.queries import LIMIT, PEAK, Query, QueryLine

_NOBODY: Final = "No rank reported in the time range."
_ODD = 8
"""Curves of ranks that stand out: more cannot be told apart."""


def ranks_side_by_side() -> tuple[Panel, ...]:
    """Rank over time as colours, then the few ranks that differ from the middle one."""
    allocated = job("tidegauge_rank_allocated_bytes")
    median = job("cluster_job:tidegauge_allocated_bytes:median")
    at_end = (
        f"abs(last_over_time({allocated}[$__range] @ end())"
        f" - on (attempt, group) group_left () max by (attempt, group) (last_over_time({median}[$__range] @ end())))"
    )
    distance = (
        f"max by (group, rank) ({allocated} - on (attempt, group) group_left () max by (attempt, group) ({median}))"
    )
    state = job("tidegauge_rank_leak_state")
    return (
        Heatmap(
            "Allocated, by rank",
            "One row a rank, rank 0 on top; the colour is what it has allocated. A row of another colour is the odd "
            "rank; a row that brightens to the right grows. The table under Forecast leads to single ranks.",
            12,
            10,
            (Query(by_rank_in_order(allocated), "{{row}}"),),
            Field(BYTES, _NOBODY),
            scheme="Viridis",
        ),
        Heatmap(
            "Share of the limit that is held, by rank",
            "Reserved and outside PyTorch, over what the rank may take: green has room, red is full. On a shared or "
            "capped GPU this differs from what is allocated.",
            12,
            10,
            (Query(by_rank_in_order(used_share(ONE_JOB)), "{{row}}"),),
            Field(SHARE, _NOBODY, decimals=0),
            scheme="RdYlGn",
            reverse=True,
            # Green up to half, so that yellow means three quarters.
            least_colour=0.5,
            most_colour=1,
        ),
        TimeSeries(
            "Odd rank out: distance from the median",
            f"Allocated of a rank less that of the rank in the middle, for the {_ODD} ranks that are furthest from it "
            "at the end of the range. Steady distance is how the work is split (pipeline stages, the rank that "
            "logs); growing distance on one rank is a leak in code that only it runs. Of two ranks none is in the "
            "middle: both move away. Click a curve for the rank.",
            12,
            9,
            (Query(standing_out(distance, at_end, _ODD), "rank {{rank}} {{group}}"),),
            Field(BYTES, _NOBODY, links=(rank_link("__field.labels"),)),
            legend_calculations=("lastNotNull",),
            legend_on_the_right=True,
            most_points=FEW_POINTS,
        ),
        TimeSeries(
            "Highest over median",
            "Allocated of the highest rank over that of the rank in the middle: 1 is even. It rises when one rank "
            "grows, and stays when all of them do. With two ranks it cannot reach 2.",
            5,
            9,
            (Query(f"max({job('cluster_job:tidegauge_skew_ratio')})", "highest / median"),),
            Field(RATIO, _NOBODY, decimals=2),
            legend_calculations=(),
        ),
        StateTimeline(
            "Ranks under suspicion",
            "Verdict on each rank that was suspected at some time in the range, 20 at most. One bar alone: look at "
            "that rank. All at once: the workload grows, or code that all of them run leaks.",
            7,
            9,
            (
                Query(
                    standing_out(
                        f"max by (group, rank) ({state})", f"max_over_time({state}[$__range] @ end()) > 0", 20
                    ),
                    "rank {{rank}} {{group}}",
                    may_be_empty="no rank was suspected",
                ),
            ),
            Field(COUNT, "No rank was suspected.", LEAK_STEPS, LEAK_WORDS),
        ),
    )


def memory() -> tuple[Panel, ...]:
    """Allocated and reserved: highest, median and lowest rank, high-water mark, limit."""
    return (
        _spread(
            "Allocated",
            "Live tensors of the highest, the middle and the lowest rank, the high-water mark over all ranks, and the "
            "tightest limit. The gap between now and peak is what a step needs at its worst.",
            "allocated",
        ),
        _spread(
            "Reserved",
            "What PyTorch's allocator holds on the card, in use or cached. If it climbs while allocated does not, the "
            "memory is in pieces: try expandable_segments:True.",
            "reserved",
        ),
    )


def _spread(title: str, description: str, what: str) -> TimeSeries:
    queries = [
        Query(f"{function}({job(f'cluster_job:tidegauge_{what}_bytes:{operation}')})", legend, QueryLine(colour))
        for function, operation, legend, colour in (
            ("max", "max", "highest rank", "orange"),
            ("max", "median", "median", "blue"),
            ("min", "min", "lowest rank", "light-blue"),
        )
    ]
    peak = f"max({job(f'tidegauge_rank_{what}_peak_bytes')})"
    limit = f"min({job('tidegauge_rank_limit_bytes')})"
    return TimeSeries(
        title,
        description,
        12,
        9,
        (*queries, Query(peak, "peak", PEAK), Query(limit, "limit", LIMIT)),
        Field(BYTES, _NOBODY, least=0),
        legend_calculations=("lastNotNull",),
    )


def where_it_goes() -> tuple[Panel, ...]:
    """Fragmentation, outside the allocator, host memory, retries, steps."""
    pieces = f"{job('tidegauge_rank_inactive_split_bytes')} / {job('tidegauge_rank_reserved_bytes')}"
    host = job("tidegauge_rank_host_rss_bytes")
    waste, reserved = (job(f"cluster_job:tidegauge_{what}_bytes:sum") for what in ("waste", "reserved"))
    nontorch, ranks = job("cluster_job:tidegauge_nontorch_bytes:sum"), job("cluster_job:tidegauge_ranks:count")
    steps = f"rate({job('tidegauge_rank_steps_total')}[$__rate_interval])"
    return (
        TimeSeries(
            "Fragmentation",
            "Free pieces of partly used blocks, as a share of reserved, and what all ranks hold and do not use. High "
            "and rising: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True usually cures it.",
            8,
            8,
            (
                Query(f"max({pieces})", "pieces, worst rank"),
                Query(f"quantile(0.5, {pieces})", "pieces, median"),
                Query(f"sum({waste}) / sum({reserved})", "not allocated, all ranks"),
            ),
            Field(SHARE, _NOBODY, least=0, decimals=0),
            most_points=FEW_POINTS,
        ),
        TimeSeries(
            "Outside PyTorch's allocator",
            "Device memory of the ranks' processes that PyTorch does not manage: CUDA context, NCCL, cuBLAS. Half a "
            "GiB and steady is usual; growth is communicators that are made and not destroyed.",
            8,
            8,
            (
                Query(f"max({job('cluster_job:tidegauge_nontorch_bytes:max')})", "highest rank"),
                Query(f"sum({nontorch}) / sum({ranks})", "mean"),
            ),
            Field(BYTES, "No figures: NVML does not work on these nodes.", least=0),
        ),
        TimeSeries(
            "Host memory of the ranks",
            "Memory of the ranks and their DataLoader workers on the node, not the card. A loss kept without detach() "
            "grows here, and ends with the node's OOM killer.",
            8,
            8,
            (
                Query(f"max({host})", "highest rank"),
                Query(f"quantile(0.5, {host})", "median"),
                Query(f"min({host})", "lowest rank"),
            ),
            Field(BYTES, _NOBODY, least=0),
        ),
        TimeSeries(
            "Steps a second",
            "The fastest and the slowest rank. Ranks step together, so a gap means that one is stuck; a common fall "
            "beside retries means that the allocator keeps emptying its cache.",
            12,
            7,
            (Query(f"max({steps})", "fastest rank"), Query(f"min({steps})", "slowest rank")),
            Field(STEPS_PER_S, "No rank reported in the time range, or none has finished a step.", least=0),
        ),
        TimeSeries(
            "Allocation retries a second",
            "Device allocations that failed, so that the cache was emptied for a second try; all ranks. Any lasting "
            "rate costs speed and comes before an out-of-memory error.",
            12,
            7,
            (Query(f"sum({job('cluster_job:tidegauge_alloc_retries:rate5m')})", "retries"),),
            Field(PER_S, _NOBODY, least=0),
            legend_calculations=("max",),
        ),
    )
