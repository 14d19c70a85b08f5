"""The panels: plain values that write themselves as Grafana's JSON. Sizes are in units of Grafana's grid, 24 wide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tidegauge_exporter.dashboards.model.fields import BY_STEPS, Field, Json, fixed, override
from tidegauge_exporter.dashboards.model.queries import PROMETHEUS, Query, QueryLine, refs

PLUGIN_VERSION = "11.0.0"
"""Panels written for this version or an older one are brought up to date by newer ones without a question."""


@dataclass(frozen=True)
class Panel:
    """What all panels have."""

    title: str
    description: str
    """What the figures mean and what to do about them: the text behind the panel's small "i"."""
    width: int
    height: int

    type: ClassVar[str]

    def all_queries(self) -> tuple[Query, ...]:
        """What it asks, in the order of its letters."""
        return ()

    def to_json(self) -> Json:
        """As one of ``panels``, without place and id."""
        return {
            "type": self.type,
            "title": self.title,
            "description": self.description,
            "options": self._options(),
            "pluginVersion": PLUGIN_VERSION,
        }

    def _options(self) -> Json:
        raise NotImplementedError


@dataclass(frozen=True)
class QueryPanel(Panel):
    """A panel that shows what Prometheus answers."""

    queries: tuple[Query, ...]
    field: Field

    def all_queries(self) -> tuple[Query, ...]:
        return self.queries

    def to_json(self) -> Json:
        letters = refs(len(self.queries))
        return {
            **super().to_json(),
            "datasource": PROMETHEUS,
            "targets": [
                query.to_json(ref, instant=self._is_instant()) for ref, query in zip(letters, self.queries, strict=True)
            ],
            "fieldConfig": {
                "defaults": self.field.to_json(self._colour(), self._custom()),
                "overrides": list(self._overrides()),
            },
        }

    def _is_instant(self) -> bool:
        """Asks for one moment, the end of the range, in place of a curve."""
        return False

    def _colour(self) -> Json:
        return BY_STEPS

    def _custom(self) -> Json:
        return {}

    def _overrides(self) -> Iterator[Json]:
        for ref, query in zip(refs(len(self.queries)), self.queries, strict=True):
            properties = _line_properties(query.line) if query.line else {}
            if properties:
                yield override("byFrameRefID", ref, properties)


def _line_properties(line: QueryLine) -> Json:
    told: Json = {}
    if line.colour:
        told["color"] = fixed(line.colour)
    if line.dashed:
        told["custom.lineStyle"] = {"fill": "dash", "dash": [8, 6]}
    if line.width is not None:
        told["custom.lineWidth"] = line.width
    if not line.filled:
        told["custom.fillOpacity"] = 0
    if not line.stacked:
        told["custom.stacking"] = {"mode": "none", "group": "A"}
    if line.on_the_right:
        told["custom.axisPlacement"] = "right"
    if line.unit:
        told["unit"] = line.unit
    return told


def _reduce(calculation: str) -> Json:
    return {"calcs": [calculation], "fields": "", "values": False}


@dataclass(frozen=True)
class Stat(QueryPanel):
    """One number, or a few with names; behind it how it moved, if it is not of one moment."""

    instant: bool = False
    named: bool = False
    """Shows the legend beside each number."""
    type: ClassVar[str] = "stat"

    def to_json(self) -> Json:
        return {**super().to_json(), "maxDataPoints": 100}

    def _is_instant(self) -> bool:
        return self.instant

    def _options(self) -> Json:
        return {
            "colorMode": "value",
            "graphMode": "none" if self.instant or self.named else "area",
            "justifyMode": "auto",
            "orientation": "vertical" if self.named else "auto",
            "percentChangeColorMode": "standard",
            "reduceOptions": _reduce("lastNotNull"),
            "showPercentChange": False,
            "textMode": "value_and_name" if self.named else "value",
            "wideLayout": True,
        }


@dataclass(frozen=True)
class BarGauge(QueryPanel):
    """One bar a series, of one moment."""

    type: ClassVar[str] = "bargauge"

    def _is_instant(self) -> bool:
        return True

    def _options(self) -> Json:
        return {
            "displayMode": "basic",
            "text": {"valueSize": 16},
            "orientation": "horizontal",
            "reduceOptions": _reduce("lastNotNull"),
            "showUnfilled": True,
            "valueMode": "text",
            "namePlacement": "left",
            "sizing": "auto",
            "minVizWidth": 8,
            "minVizHeight": 16,
            "maxVizHeight": 28,
            "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []},
        }


@dataclass(frozen=True)
class Text(Panel):
    """Words, in Markdown."""

    content: str
    type: ClassVar[str] = "text"

    def _options(self) -> Json:
        return {"mode": "markdown", "content": self.content}


@dataclass(frozen=True)
class AnnotationsList(Panel):
    """The latest annotations that Grafana keeps, newest first, by tag."""

    tags: tuple[str, ...]
    limit: int = 25
    type: ClassVar[str] = "annolist"

    def _options(self) -> Json:
        return {
            "tags": list(self.tags),
            "limit": self.limit,
            "onlyFromThisDashboard": False,
            "onlyInTimeRange": True,
            "showUser": False,
            "showTime": True,
            "showTags": True,
            "navigateToPanel": False,
            "navigateBefore": "10m",
            "navigateAfter": "10m",
        }
