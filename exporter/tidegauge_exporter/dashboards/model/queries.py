"""What panels ask Prometheus, and the marks that are drawn over all of them."""

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
    """How the series of one query differ from the others of the panel; ``None`` is as the others."""

    colour: str | None = None
    dashed: bool = False
    width: int | None = None
    filled: bool = True
    stacked: bool = True
    """Only where the panel stacks at all."""
    on_the_right: bool = False
    unit: str | None = None


LIMIT: Final = QueryLine(colour="red", dashed=True, filled=False, stacked=False)
"""A limit, drawn as a line that nothing should touch."""
PEAK: Final = QueryLine(dashed=True, filled=False)


@dataclass(frozen=True)
class Query:
    """One expression in PromQL."""

    expression: str
    legend: str = ""
    """What a series is called, with labels in double braces. Empty in tables and where there is one number."""
    line: QueryLine | None = None
    may_be_empty: str | None = None
    """Why this may rightly have no result while a fleet is watched; ``None``: then it is a fault (the tests say so)."""

    def to_json(self, ref: str, *, instant: bool, table: bool = False) -> Json:
        """As one of ``targets``; ``ref`` is A, B, C ..."""
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
    """``A``, ``B`` ... for the queries of one panel."""
    if count > 26:
        raise ValueError(f"a panel with {count} queries; 26 at most, and far fewer to be understood")
    return [chr(ord("A") + index) for index in range(count)]


@dataclass(frozen=True)
class Marks:
    """Events from Prometheus: one where the expression has a value above 0, or at the time that the value tells."""

    name: str
    query: Query
    """Its legend is the text of the mark."""
    colour: str
    value_is_time: bool = False
    """The value is unix milliseconds."""
    labels: tuple[str, ...] = ()
    """Labels whose values become tags of the mark."""

    def to_json(self) -> Json:
        """As one of ``annotations.list``."""
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
    """Annotations that Grafana keeps, by tag; Tidegauge writes them if it was given a token."""

    name: str
    tags: tuple[str, ...]
    colour: str

    def to_json(self) -> Json:
        """As one of ``annotations.list``."""
        return {
            "name": self.name,
            "datasource": GRAFANA,
            "enable": True,
            "hide": False,
            "iconColor": self.colour,
            "target": {"type": "tags", "tags": list(self.tags), "matchAny": False, "limit": 200},
        }
