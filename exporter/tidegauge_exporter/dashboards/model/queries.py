"""Queries of panels, and marks that are drawn over all panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegauge_exporter.dashboards.model.fields import Json

PROMETHEUS: Final[Json] = {"type": "prometheus", "uid": "${datasource}"}
"""The data source that the reader chose at the top."""
GRAFANA: Final[Json] = {"type": "grafana", "uid": "-- Grafana --"}
"""Grafana's own annotations."""


@dataclass(frozen=True)
class QueryLine:
    """The look of the series of one query; ``None``: like the others of the panel."""

    colour: str | None = None
    dashed: bool = False
    width: int | None = None
    filled: bool = True
    stacked: bool = True
    """False to leave the series out of a stack."""


LIMIT: Final = QueryLine(colour="red", dashed=True, filled=False, stacked=False)
PEAK: Final = QueryLine(dashed=True, filled=False)


@dataclass(frozen=True)
class Query:
    """An expression in PromQL."""

    expression: str
    legend: str = ""
    """The name of a series, with labels in double braces. Empty in tables and for a single number."""
    line: QueryLine | None = None
    may_be_empty: str | None = None
    """The reason why there may be no result while a fleet is watched; ``None``: tests fail without one."""

    def to_json(self, ref: str, *, instant: bool, table: bool = False) -> Json:
        """The entry of ``targets``; ``ref`` is A, B, C ..."""
        return {
            "refId": ref,
            "datasource": PROMETHEUS,
            "expr": self.expression,
            "legendFormat": self.legend,
            "instant": instant,
            "range": not instant,
            "format": "table" if table else "time_series",
            "editorMode": "code",
        }


def refs(count: int) -> list[str]:
    """The letters ``A``, ``B`` ... of the queries of one panel."""
    if count > 26:
        raise ValueError(f"a panel with {count} queries; 26 at most, and far fewer to be understood")
    return [chr(ord("A") + index) for index in range(count)]


@dataclass(frozen=True)
class Marks:
    """Events from Prometheus: at each value above 0, or at the time that is the value."""

    name: str
    query: Query
    """The query; its legend is the text of the mark."""
    colour: str
    value_is_time: bool = False
    """True if the value is unix milliseconds."""
    labels: tuple[str, ...] = ()
    """Labels that become tags of the mark."""

    def to_json(self) -> Json:
        """The entry of ``annotations.list``."""
        return {
            "name": self.name,
            "datasource": PROMETHEUS,
            "enable": True,
            "hide": False,
            "iconColor": self.colour,
            "target": {"refId": "Anno", "expr": self.query.expression, "interval": "1m"},
            "titleFormat": self.name,
            "textFormat": self.query.legend,
            "tagKeys": ",".join(self.labels),
            "useValueForTime": self.value_is_time,
        }


@dataclass(frozen=True)
class TaggedMarks:
    """Annotations in Grafana by tag; Tidegauge writes them if it has a token."""

    name: str
    tags: tuple[str, ...]
    colour: str

    def to_json(self) -> Json:
        """The entry of ``annotations.list``."""
        return {
            "name": self.name,
            "datasource": GRAFANA,
            "enable": True,
            "hide": False,
            "iconColor": self.colour,
            "target": {"type": "tags", "tags": list(self.tags), "matchAny": False, "limit": 200},
        }
