"""The Efficiency dashboard: what ended jobs had and needed of their GPUs, and who could share."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.model.dashboard import Dashboard, Row
from tidegauge_exporter.dashboards.model.fields import (
    BYTES,
    CARE,
    COUNT,
    GOOD,
    HOUR_S,
    NO_STEPS,
    SHARE,
    Field,
    ThresholdSteps,
)
from tidegauge_exporter.dashboards.model.panels import Panel, Stat
from tidegauge_exporter.dashboards.model.queries import Query
from tidegauge_exporter.dashboards.model.tables import Label, Table, TableColumn, Value
from tidegauge_exporter.dashboards.model.variables import CLUSTERS, DATA_SOURCE, OWNER_OF_ENDED
from tidegauge_exporter.dashboards.shared import FLEET
from tidegauge_exporter.links import EFFICIENCY as UID

GIB: Final = 1 << 30
_NO_RUNS: Final = "no run of 10 minutes or longer ended in the last 7 days"
_FULL_STEPS: Final = ThresholdSteps("blue")
"""Blue, not red: memory that is left unused harms nobody but those who wait."""
_NAMED: Final = "cluster, name, user_name"


def dashboard() -> Dashboard:
    """The dashboard for admins and principal investigators: what could be asked for instead."""
    return Dashboard(
        uid=UID,
        title="Tidegauge / Efficiency",
        description="GPU memory that jobs of the last seven days had and needed; `tidegauge efficiency` has more.",
        variables=(DATA_SOURCE, CLUSTERS, OWNER_OF_ENDED),
        rows=(
            Row("The last seven days", _totals()),
            Row("Jobs that could ask for less", (_jobs(),)),
            Row("Users, accounts and partitions", (_by("user"), _by("account"), _by("partition"), _by("namespace"))),
        ),
        marks=(),
        hours=24,
    )


def _of(what: str, by: str) -> str:
    chosen = ', user_name=~"$user"' if by == "job" else ""
    return f'tidegauge_ended_{what}{{{FLEET}, by="{by}"{chosen}}}'


def _sum(what: str, by: str = "user") -> str:
    return f"sum({_of(what, by)})"


def _unused(by: str) -> str:
    return f"clamp_min({_of('had_byte_seconds', by)} - {_of('needed_byte_seconds', by)}, 0) / {HOUR_S * GIB}"


def _totals() -> tuple[Panel, ...]:
    return (
        Stat(
            "How full",
            "GPU memory that ended runs needed, as a share of what they had. Each rank counts as if it had held as "
            "much as the fullest of its run.",
            (6, 4),
            (Query(f"{_sum('needed_byte_seconds')} / {_sum('had_byte_seconds')}", may_be_empty=_NO_RUNS),),
            Field(SHARE, "no runs", _FULL_STEPS, decimals=0, least=0, most=1),
            instant=True,
        ),
        Stat(
            "GPU hours",
            "GPU time of ended runs of ten minutes and more: what the other figures are about.",
            (6, 4),
            (Query(f"{_sum('gpu_seconds')} / {HOUR_S}", may_be_empty=_NO_RUNS),),
            Field(COUNT, "no runs", ThresholdSteps("blue"), decimals=0),
            instant=True,
        ),
        Stat(
            "Unused memory, GiB h",
            "GPU memory that these runs had and did not need, times their hours.",
            (6, 4),
            (Query(f"sum({_unused('user')})", may_be_empty=_NO_RUNS),),
            Field(COUNT, "no runs", ThresholdSteps("blue"), decimals=0),
            instant=True,
        ),
        Stat(
            "Jobs that could share a GPU",
            "Jobs whose next run, with a margin, needs at most half of its GPU: candidates for MIG or `--gpu-share`.",
            (6, 4),
            (
                Query(
                    f"sum({_of('safe_bytes', 'job')} * 2 <= bool {_of('limit_bytes', 'job')})",
                    may_be_empty=_NO_RUNS,
                ),
            ),
            Field(COUNT, "no runs", ThresholdSteps(GOOD, ((1, CARE),)), decimals=0),
            instant=True,
        ),
    )


def _value(title: str, expression: str, unit: str, *, width: int = 120, share: bool = False) -> Value:
    query = Query(f"max by ({_NAMED}) ({expression})", may_be_empty=_NO_RUNS)
    return Value(
        title, width, query=query, unit=unit, decimals=0, gauge=share, steps=_FULL_STEPS if share else NO_STEPS
    )


def _full(by: str) -> Value:
    return _value("Full", f"{_of('needed_byte_seconds', by)} / {_of('had_byte_seconds', by)}", SHARE, share=True)


def _jobs() -> Table:
    return Table(
        "By job",
        "Runs of a user with one job name, those that left most memory unused first. `Safe` is what the next run "
        "should have on each GPU: the highest need, and as much more as these runs differ, 10 % at least.",
        (24, 8),
        (
            Label("Job", label="name"),
            Label("User", 130, label="user_name"),
            Label("Cluster", 110, label="cluster"),
            _value("Runs", _of("runs", "job"), COUNT, width=70),
            _value("GPU memory", _of("limit_bytes", "job"), BYTES),
            _value("Needed", _of("highest_bytes", "job"), BYTES),
            _value("Safe", _of("safe_bytes", "job"), BYTES),
            _value(
                "Full", f"{_of('needed_byte_seconds', 'job')} / {_of('had_byte_seconds', 'job')}", SHARE, share=True
            ),
            _value("Unused, GiB h", _unused("job"), COUNT, width=150),
        ),
        _NO_RUNS,
        sort_by="Unused, GiB h",
        descending=True,
    )


def _by(by: str) -> Table:
    columns: tuple[TableColumn, ...] = (
        Label(by.capitalize(), label="name"),
        Label("Cluster", 110, label="cluster"),
        _value("Runs", _of("runs", by), COUNT, width=70),
        _full(by),
        _value("Unused, GiB h", _unused(by), COUNT, width=150),
    )
    return Table(
        f"By {by}",
        f"Runs of each {by}, those that left most memory unused first.",
        (12, 7),
        columns,
        _NO_RUNS,
        sort_by="Unused, GiB h",
        descending=True,
    )
