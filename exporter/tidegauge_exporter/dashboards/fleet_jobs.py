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
            "Jobs by time to out of memory",
            "Jobs that grow, the one that ends first on top, at the present rate. Click the job for its ranks; tell "
            "the owner, or let the policy do it. A job without a forecast is not here: it does not grow, or not "
            "towards its limit.",
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
                Value("Growth a step", 120, query=_of(_SOONEST, "leak_bytes_per_step:max"), unit=BYTES),
                Value("Verdict", 100, query=_of(_SOONEST, "leak_state:max"), words=LEAK_WORDS, steps=LEAK_STEPS),
                Value("Ranks", 75, query=_of(_SOONEST, "ranks:count"), unit=COUNT),
            ),
            "No job is on course to run out of memory.",
            sort_by="Out of memory in",
        ),
        Table(
            "Fastest growth",
            "Jobs by how fast their worst rank grows, also those with no end in sight: growth a step times steps a "
            "second. Compare with the time to out of memory: fast growth on an empty card can wait.",
            12,
            9,
            (
                _JOB,
                *_OTHERS,
                Value(
                    "Growth an hour",
                    120,
                    query=Query(with_names(f"3600 * {_FASTEST}"), may_be_empty=NO_GROWTH),
                    unit=BYTES,
                ),
                Value("Verdict", 95, query=_of(_FASTEST, "leak_state:max"), words=LEAK_WORDS, steps=LEAK_STEPS),
            ),
            "No job grows.",
            sort_by="Growth an hour",
            descending=True,
        ),
        Table(
            "Fullest jobs",
            "Jobs by the share of its limit that their fullest rank holds. Full is not ill: a job at 97 % that does "
            "not grow is well tuned. It is the first to end when a batch is longer than usual. Far above 1 beside it: "
            "one rank holds much more than the rank in the middle.",
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
            "Waste: reserved and not allocated, as a share of reserved. Between steps a healthy job shows here what "
            "its activations need. It is waste where it stays high: look for fragmentation. The share outside PyTorch "
            "is of what ranks hold; if it rises, communicators or libraries grow.",
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
            "Jobs by what they hold and do not use at this moment. Ask the owner of one that stays here: "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True usually gives most of it back.",
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
            "Held by nobody's rank",
            "Nodes by GPU memory in use that no watched rank accounts for: jobs that are not watched, processes that "
            "were left behind, what a rank holds on a card that is not its own (500 MiB of context each: look at GPU "
            "0), and some hundred MiB a GPU for the driver. On such a node: nvidia-smi.",
            6,
            9,
            (
                Label("Node", label="hostname"),
                Value("Held", 100, query=Query(unwatched), unit=BYTES),
            ),
            "No GPU reports.",
            sort_by="Held",
            descending=True,
        ),
    )
