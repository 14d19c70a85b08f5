"""Rows of the Job dashboard about memory: ranks side by side, and the highest, median and lowest rank."""

from __future__ import annotations

from typing import Final

from tidegauge.core.profile.categories import Category
from tidegauge.core.views import NEARLY_FULL
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
from tidegauge_exporter.dashboards.model.panels import FEW_POINTS, Heatmap, Panel, StateTimeline, TimeSeries
from tidegauge_exporter.dashboards.model.queries import LIMIT, PEAK, Query, QueryLine
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value
from tidegauge_exporter.dashboards.shared import (
    ONE_JOB,
    by_rank_in_order,
    job,
    node_link,
    rank_link,
    standing_out,
    used_share,
)

_NOBODY: Final = "No rank reported in the time range."
_ODD = 8
"""Curves of ranks that stand out: more cannot be told apart."""


def heat_maps() -> tuple[Panel, ...]:
    """Ranks over time as colours."""
    allocated = job("tidegauge_rank_allocated_bytes")
    return (
        Heatmap(
            "Allocated, by rank",
            "One row per rank, rank 0 on top; the color is its allocated memory. A row of another color is the odd "
            "rank; a row that brightens to the right grows. The table under Forecast links to single ranks.",
            (12, 8),
            (Query(by_rank_in_order(allocated), "{{row}}"),),
            Field(BYTES, _NOBODY),
            scheme="Viridis",
        ),
        Heatmap(
            f"Share of the limit in use, by rank, above {100 * NEARLY_FULL:.0f} %",
            "Reserved memory plus memory outside PyTorch, as a share of the limit. Colored from that share on, the "
            "stronger the fuller. On a shared or capped GPU this differs from allocated.",
            (12, 8),
            (Query(by_rank_in_order(used_share(ONE_JOB)), "{{row}}"),),
            Field(SHARE, _NOBODY, decimals=0),
            least_colour=NEARLY_FULL,
            most_colour=1,
        ),
    )


def odd_ranks() -> tuple[Panel, ...]:
    """The ranks that differ from the median."""
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
        TimeSeries(
            "Odd rank out: distance from the median",
            f"Allocated memory minus the median rank's, for the {_ODD} ranks furthest from it at the end of the "
            "range. A steady distance is how the work is split (pipeline stages, the logging rank); a growing distance "
            "on one rank is a leak in code that only it runs. With two ranks both move away from the median. Click a "
            "curve for the rank.",
            (12, 9),
            (Query(standing_out(distance, at_end, _ODD), "rank {{rank}} {{group}}"),),
            Field(BYTES, _NOBODY, links=(rank_link("__field.labels"),)),
            legend_calculations=("lastNotNull",),
            legend_on_the_right=True,
            most_points=FEW_POINTS,
        ),
        TimeSeries(
            "Highest over median",
            "Allocated memory of the highest rank divided by the median: 1 is even. It rises if one rank grows, and "
            "stays if all do. With two ranks it cannot reach 2.",
            (5, 9),
            (Query(f"max({job('cluster_job:tidegauge_skew_ratio')})", "highest / median"),),
            Field(RATIO, _NOBODY, decimals=2),
            legend_calculations=(),
        ),
        StateTimeline(
            "Suspected ranks",
            "Verdicts of up to 20 ranks that were suspected in the range. One bar alone: look at that rank. All at "
            "once: the workload grows, or code that all ranks run leaks.",
            (7, 9),
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
            "Live tensors of the highest, median and lowest rank, the peak over all ranks, and the lowest limit. The "
            "gap between now and peak is what a step needs at most.",
            "allocated",
        ),
        _spread(
            "Reserved",
            "Memory that PyTorch's allocator holds on the GPU, in use or cached. If it climbs while allocated does "
            "not, memory is fragmented: try expandable_segments:True.",
            "reserved",
        ),
    )


_COMPOSITION: Final = (
    Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE, Category.ACTIVATIONS, Category.TEMPORARIES,
    Category.COMMUNICATION,
)  # fmt: skip
"""Columns of the table of ranks: what differs between ranks, and what somebody can make smaller."""
_NO_PROFILE: Final = "No rank has a memory profile: level auto profiles ranks past their warm-up."


def composition() -> tuple[Panel, ...]:
    """What the memory of the ranks is made of at their peaks, by their last memory profiles."""
    profile = job("tidegauge_rank_profile_bytes")
    at_end = f"sum by (group, rank) (last_over_time({profile}[$__range] @ end()))"
    by_rank = "sum by (attempt, group, rank, hostname) (last_over_time({}[$__range]))"

    def held(category: Category) -> Query:
        found = f'{profile[:-1]}, category="{category.value}"}}'
        return Query(by_rank.format(found), may_be_empty=_NO_PROFILE)

    return (
        TimeSeries(
            "Composition of the fullest rank",
            "Allocated memory at the peak of a training step, by purpose, from the rank's last memory profile; a new "
            "one is made when the peak rises by 10 %. For lines and phases: tidegauge profile JOB.",
            (24, 7),
            (
                Query(
                    f"max by (category) ({standing_out(f'sum by (group, rank, category) ({profile})', at_end, 1)})",
                    "{{category}}",
                    may_be_empty=_NO_PROFILE,
                ),
            ),
            Field(BYTES, _NO_PROFILE, least=0),
            stacked=True,
            legend_calculations=("lastNotNull",),
            legend_on_the_right=True,
            most_points=FEW_POINTS,
        ),
        Table(
            "Composition by rank",
            "Allocated memory at the peak of each rank's last memory profile, and its largest parts. Ranks of one kind "
            "are alike; a rank that differs in one column differs in that. Click a rank for its page.",
            (24, 8),
            (
                Label("Rank", 70, (rank_link(),), label="rank"),
                Label("Attempt", 80, label="attempt"),
                Label("Group", 80, label="group"),
                Label("Node", links=(node_link(),), label="hostname"),
                Value("Peak", 95, query=Query(by_rank.format(profile), may_be_empty=_NO_PROFILE), unit=BYTES),
                *(Value(one.value.capitalize(), 130, query=held(one), unit=BYTES) for one in _COMPOSITION),
            ),
            _NO_PROFILE,
            sort_by="Peak",
            descending=True,
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
        (12, 9),
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
            "Free pieces of partly used blocks, as a share of reserved, and reserved memory that is not allocated on "
            "all ranks. High and rising: try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
            (8, 8),
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
            "GPU memory of the ranks' processes outside PyTorch: CUDA context, NCCL, cuBLAS. A steady 0.5 GiB is "
            "usual; growth means communicators that are created and not destroyed.",
            (8, 8),
            (
                Query(f"max({job('cluster_job:tidegauge_nontorch_bytes:max')})", "highest rank"),
                Query(f"sum({nontorch}) / sum({ranks})", "mean"),
            ),
            Field(BYTES, "No figures: NVML does not work on these nodes.", least=0),
        ),
        TimeSeries(
            "Host memory of the ranks",
            "Host memory of the ranks and their DataLoader workers. A loss kept without detach() grows here until the "
            "node's OOM killer ends a process.",
            (8, 8),
            (
                Query(f"max({host})", "highest rank"),
                Query(f"quantile(0.5, {host})", "median"),
                Query(f"min({host})", "lowest rank"),
            ),
            Field(BYTES, _NOBODY, least=0),
        ),
        TimeSeries(
            "Steps per second",
            "The fastest and the slowest rank. Ranks step together, so a gap means that one is stuck; a common drop "
            "with retries means that the allocator keeps emptying its cache.",
            (12, 7),
            (Query(f"max({steps})", "fastest rank"), Query(f"min({steps})", "slowest rank")),
            Field(STEPS_PER_S, "No rank reported in the time range, or none has finished a step.", least=0),
        ),
        TimeSeries(
            "Allocation retries per second",
            "Device allocations that succeeded only after the cache was emptied; all ranks. A lasting rate costs speed "
            "and precedes an OOM.",
            (12, 7),
            (Query(f"sum({job('cluster_job:tidegauge_alloc_retries:rate5m')})", "retries"),),
            Field(PER_S, _NOBODY, least=0),
            legend_calculations=("max",),
        ),
    )
