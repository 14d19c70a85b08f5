"""A dashboard: rows of panels on Grafana's grid, variables and marks, as classic JSON of schema 42."""

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
SCHEMA: Final = 42
"""Schema of the classic JSON: the default of Grafana 13.2 (``@grafana/schema``). Older ones from 10.4 on read it."""
TAG: Final = "tidegauge"
"""The tag of all dashboards, by which the links at the top find them."""


@dataclass(frozen=True)
class Row:
    """A heading with the panels below it."""

    title: str
    panels: tuple[Panel, ...]
    folded: bool = False
    """Folded panels ask nothing until somebody opens the row."""


@dataclass(frozen=True)
class Dashboard:
    """A dashboard; Grafana imports ``to_json``."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    marks: tuple[Marks | TaggedMarks, ...] = ()
    hours: int = 6
    """The range of time that is shown first."""

    def panels(self) -> tuple[Panel, ...]:
        """The panels in reading order."""
        return tuple(panel for row in self.rows for panel in row.panels)

    def to_json(self) -> Json:
        """The dashboard's JSON. Raises ``ValueError`` for panels that leave a hole in the grid."""
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
    """Links to the other dashboards that keep time range and variables."""
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
                width, height = panel.size
                place = {"x": left, "y": top, "w": width, "h": height}
                panels.append({**panel.to_json(), "id": number, "gridPos": place})
                left += width
            top += height
        yield {**heading, "panels": panels if row.folded else []}
        if not row.folded:
            yield from panels


def _lines(row: Row) -> Iterator[list[Panel]]:
    """Panels side by side: each line is as wide as the grid, and of one height."""
    line: list[Panel] = []
    for panel in row.panels:
        line.append(panel)
        width = sum(each.size[0] for each in line)
        if width > GRID or panel.size[1] != line[0].size[1]:
            raise ValueError(f"row {row.title!r}: {panel.title!r} leaves a hole in the grid, or goes beyond it")
        if width == GRID:
            yield line
            line = []
    if line:
        raise ValueError(f"row {row.title!r}: nothing stands beside {line[-1].title!r}")
