"""Tables with labels and the values of several queries, one row for each set of labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tidegauge_exporter.dashboards.model.fields import (
    BY_STEPS,
    NO_STEPS,
    TEXT,
    Field,
    Json,
    PanelLink,
    ThresholdSteps,
    Words,
    override,
    words_to_json,
)
from tidegauge_exporter.dashboards.model.panels import PLUGIN_VERSION, Panel
from tidegauge_exporter.dashboards.model.queries import PROMETHEUS, Query, refs


@dataclass(frozen=True)
class TableColumn:
    """A column of a table."""

    title: str
    width: int | None = None
    """Width in pixels; ``None``: the rest."""
    links: tuple[PanelLink, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Label(TableColumn):
    """A column with the values of a label."""

    label: str


@dataclass(frozen=True, kw_only=True)
class Value(TableColumn):
    """A column with the values of a query."""

    query: Query
    unit: str = TEXT
    steps: ThresholdSteps = NO_STEPS
    words: Words | None = None
    decimals: int | None = None
    gauge: bool = False
    """True for a bar from 0 to 1 behind the number."""
    from_on: tuple[float, str] | None = None
    """A number, and the text in place of it and of higher ones."""


@dataclass(frozen=True)
class Table(Panel):
    """A table. Its queries carry the labels of its ``Label`` columns; rows are joined by the labels that all have."""

    columns: tuple[TableColumn, ...]
    no_value: str
    sort_by: str | None = None
    """Title of a column."""
    descending: bool = False
    type: ClassVar[str] = "table"

    def all_queries(self) -> tuple[Query, ...]:
        return tuple(column.query for column in self.columns if isinstance(column, Value))

    def to_json(self) -> Json:
        queries = self.all_queries()
        letters = refs(len(queries))
        return {
            **super().to_json(),
            "pluginVersion": PLUGIN_VERSION,
            "datasource": PROMETHEUS,
            "targets": [
                query.to_json(ref, instant=True, table=True) for ref, query in zip(letters, queries, strict=True)
            ],
            "transformations": self._transformations(),
            "fieldConfig": {
                "defaults": Field(unit=TEXT, no_value=self.no_value).to_json(
                    BY_STEPS, {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": False}
                ),
                "overrides": list(self._overrides()),
            },
        }

    def _options(self) -> Json:
        sort = [{"displayName": self.sort_by, "desc": self.descending}] if self.sort_by else []
        return {"showHeader": True, "frameIndex": 0, "cellHeight": "sm", "sortBy": sort}

    def _fields(self) -> list[str]:
        """Grafana's names of the columns: the label, or ``Value #A``; ``Value`` for a single query."""
        letters = refs(len(self.all_queries()))
        values = iter(["Value"] if len(letters) == 1 else [f"Value #{ref}" for ref in letters])
        return [column.label if isinstance(column, Label) else next(values) for column in self.columns]

    def _transformations(self) -> list[Json]:
        fields = self._fields()
        return [
            {"id": "merge", "options": {}},
            # Names what stays in place of what goes: a label that somebody's relabelling adds must not widen the table.
            {"id": "filterFieldsByName", "options": {"include": {"names": fields}}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {},
                    "indexByName": {name: index for index, name in enumerate(fields)},
                    "renameByName": {},
                },
            },
        ]

    def _overrides(self) -> Iterator[Json]:
        for name, column in zip(self._fields(), self.columns, strict=True):
            # Without this every empty cell would say what the whole table says if it has no row.
            properties: Json = {"displayName": column.title, "noValue": "-"}
            if column.width is not None:
                properties["custom.width"] = column.width
            if column.links:
                properties["links"] = [link.to_json() for link in column.links]
            if isinstance(column, Value):
                properties.update(_value_properties(column))
            yield override("byName", name, properties)


def _value_properties(column: Value) -> Json:
    told: Json = {"unit": column.unit, "custom.align": "right"}
    if column.decimals is not None:
        told["decimals"] = column.decimals
    if column.words or column.from_on:
        told["mappings"] = words_to_json(column.words or {}, column.from_on)
    if column.steps is not NO_STEPS:
        told["thresholds"] = column.steps.to_json()
    if column.gauge:
        told |= {
            "min": 0,
            "max": 1,
            "custom.cellOptions": {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"},
        }
    elif column.words or column.steps.limits:
        told["custom.cellOptions"] = {"type": "color-text"}
    return told
