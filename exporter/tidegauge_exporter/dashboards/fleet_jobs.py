"""Rows of the Fleet dashboard that name jobs: who is at risk, and who holds what nobody uses."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.expressions import fleet, job_link, of_jobs, total, with_names
from tidegauge_exporter.dashboards.model.curves import TimeSeries
from tidegauge_exporter.dashboards.model.fields import (
    BYTES,
    COUNT,
    HOW_FULL,
    LEAK_STEPS,
    LEAK_WORDS,
    RATIO,
    SECONDS,
    SHARE,
    TIME_LEFT,
    Field,
)
from tidegauge_exporter.dashboards.model.panels import Panel
from tidegauge_exporter.dashboards.model.queries import Query
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value
from tidegauge_exporter.dashboards.reasons import NO_GROWTH

_ROWS: Final = 20
"""Of a table: what one looks through; the others are found by `tidegauge top`."""
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
    """A recorded series of the jobs that a table is about."""
    may_be_empty = NO_GROWTH if chosen in (_SOONEST, _FASTEST) else None
    return Query(of_jobs(fleet(f"cluster_job:tidegauge_{metric}"), chosen), may_be_empty=may_be_empty)


def at_risk() -> tuple[Panel, ...]:
    return (
        Table(
            "Jobs by predicted OOM",
            "Growing jobs, the next predicted OOM first, at the current rate. Click a job for its ranks; notify the "
            "owner, or let the policy do it. Jobs without a forecast are not listed: they do not grow, or not towards "
            "their limit.",
            24,
            9,
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
            12,
            9,
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
            12,
            9,
            (
                _JOB,
                *_OTHERS,
                Value(
                    "Fullest rank",
                    140,
                    query=Query(with_names(_FULLEST)),
                    unit=SHARE,
                    steps=HOW_FULL,
                    gauge=True,
                ),
                Value("Max / median", 105, query=_of(_FULLEST, "skew_ratio"), unit=RATIO, decimals=2),
            ),
            "No rank reports.",
            sort_by="Fullest rank",
            descending=True,
        ),
    )


def waste() -> tuple[Panel, ...]:
    reserved = total("cluster:tidegauge_reserved_bytes:sum")
    nontorch = total("cluster:tidegauge_nontorch_bytes:sum")
    unwatched = f"topk(15, {fleet('cluster_node:tidegauge_unwatched_bytes:sum')})"
    return (
        TimeSeries(
            "Waste and share outside PyTorch",
            "Waste: reserved but not allocated, as a share of reserved. Between steps a healthy job shows its "
            "activations here; it is waste if it stays high (check fragmentation). Outside PyTorch: share of all "
            "memory of ranks; if it rises, communicators or libraries grow.",
            6,
            9,
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
            12,
            9,
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
            6,
            9,
            (
                Label("Node", label="hostname"),
                Value("In use", 100, query=Query(unwatched), unit=BYTES),
            ),
            "No GPU reports.",
            sort_by="In use",
            descending=True,
        ),
    )
