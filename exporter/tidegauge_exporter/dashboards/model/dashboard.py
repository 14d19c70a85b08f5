"""A dashboard: rows of panels, laid out on Grafana's grid, and what is above them. Classic JSON, schema 41."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidegauge_exporter.dashboards.model.fields import Json
from tidegauge_exporter.dashboards.model.panels import Panel
from tidegauge_exporter.dashboards.model.queries import Marks, TaggedMarks
from tidegauge_exporter.dashboards.model.variables import Variable

GRID: Final = 24
"""Columns of Grafana's grid."""
SCHEMA: Final = 41
"""Of the classic JSON: Grafana 10.4 reads it, 13 still does, newer ones bring it up to date on import."""
TAG: Final = "tidegauge"
"""On all of them: what the links at the top find each other by."""


@dataclass(frozen=True)
class Row:
    """A heading and the panels below it."""

    title: str
    panels: tuple[Panel, ...]
    folded: bool = False
    """Folded panels ask nothing until somebody opens the row."""


@dataclass(frozen=True)
class Dashboard:
    """``to_json`` is what Grafana imports."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    marks: tuple[Marks | TaggedMarks, ...] = ()
    hours: int = 6
    """Shown at first."""

    def panels(self) -> tuple[Panel, ...]:
        """All of them, in reading order."""
        return tuple(panel for row in self.rows for panel in row.panels)

    def to_json(self) -> Json:
        """Raises ``ValueError`` for panels that leave a hole in the grid."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": [TAG, "gpu-memory"],
            "schemaVersion": SCHEMA,
            "version": 1,
            # What is changed by hand is lost with the next `make dashboards`: save a copy under another name instead.
            "editable": False,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": f"now-{self.hours}h", "to": "now"},
            "timezone": "browser",
            "timepicker": {},
            "links": [_others()],
            "templating": {"list": [variable.to_json() for variable in self.variables]},
            "annotations": {"list": [mark.to_json() for mark in self.marks]},
            "panels": list(_placed(self.rows)),
        }


def _others() -> Json:
    """The other dashboards, as links that keep time range and variables."""
    return {
        "type": "dashboards",
        "title": "Tidegauge",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }


def _placed(rows: tuple[Row, ...]) -> Iterator[Json]:
    """Rows and panels with ids, 1 and up, and places, from the top down."""
    number = 0
    top = 0
    for row in rows:
        number += 1
        heading: Json = {
            "type": "row",
            "id": number,
            "title": row.title,
            "collapsed": row.folded,
            "gridPos": {"x": 0, "y": top, "w": GRID, "h": 1},
        }
        panels: list[Json] = []
        top += 1
        for line in _lines(row):
            left = 0
            for panel in line:
                number += 1
                place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
                panels.append({**panel.to_json(), "id": number, "gridPos": place})
                left += panel.width
            top += line[0].height
        yield {**heading, "panels": panels if row.folded else []}
        if not row.folded:
            yield from panels


def _lines(row: Row) -> Iterator[list[Panel]]:
    """Panels side by side: each line is as wide as the grid, and of one height."""
    line: list[Panel] = []
    for panel in row.panels:
        line.append(panel)
        width = sum(each.width for each in line)
        if width > GRID or panel.height != line[0].height:
            raise ValueError(f"row {row.title!r}: {panel.title!r} leaves a hole in the grid, or goes beyond it")
        if width == GRID:
            yield line
            line = []
    if line:
        raise ValueError(f"row {row.title!r}: nothing stands beside {line[-1].title!r}")
