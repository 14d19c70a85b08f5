"""Panels as values that write themselves as Grafana's JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Final

from tidegauge_exporter.dashboards.model.fields import BY_SERIES, BY_STEPS, Field, Json, fixed, override
from tidegauge_exporter.dashboards.model.queries import PROMETHEUS, Query, QueryLine, refs

PLUGIN_VERSION = "11.0.0"
"""Panels written for this version or an older one are brought up to date by newer ones without a question."""


@dataclass(frozen=True)
class Panel:
    """A panel of a dashboard."""

    title: str
    description: str
    """Meaning of the figures and advice: the text behind the panel's small "i"."""
    size: tuple[int, int]
    """Width and height in units of Grafana's grid, 24 wide."""

    type: ClassVar[str]

    def all_queries(self) -> tuple[Query, ...]:
        """The queries of the panel in the order of their letters."""
        return ()

    def to_json(self) -> Json:
        """The entry of ``panels``, without place and id."""
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
    """A panel that shows answers of Prometheus."""

    queries: tuple[Query, ...]
    field: Field
    _: KW_ONLY
    most_points: int | None = None
    """Bound of points in time; ``None``: Grafana asks for one each pixel."""

    def all_queries(self) -> tuple[Query, ...]:
        return self.queries

    def to_json(self) -> Json:
        letters = refs(len(self.queries))
        return {
            **super().to_json(),
            **({"maxDataPoints": self.most_points} if self.most_points else {}),
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
        """True to query the end of the range alone."""
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
    return told


def _reduce(calculation: str) -> Json:
    return {"calcs": [calculation], "fields": "", "values": False}


@dataclass(frozen=True)
class Stat(QueryPanel):
    """A panel with one number and, if it is high and not instant, its curve; or with a few numbers and their names."""

    instant: bool = False
    named: bool = False
    """True to show the legend beside each number."""
    _: KW_ONLY
    most_points: int | None = 100
    type: ClassVar[str] = "stat"

    def _is_instant(self) -> bool:
        return self.instant

    def _options(self) -> Json:
        flat = self.size[1] < 4
        return {
            "colorMode": "value",
            "graphMode": "none" if self.instant or self.named or flat else "area",
            # Grafana makes names and numbers so small that the longest name fits beside its number.
            **({"text": {"titleSize": 13, "valueSize": 24}} if self.named else {}),
            "justifyMode": "auto",
            # "vertical" sets several numbers side by side.
            "orientation": "vertical" if self.named else "auto",
            "percentChangeColorMode": "standard",
            "reduceOptions": _reduce("lastNotNull"),
            "showPercentChange": False,
            "textMode": "value_and_name" if self.named else "value",
            "wideLayout": not self.named,
        }


@dataclass(frozen=True)
class BarGauge(QueryPanel):
    """A panel with one bar a series, of one moment."""

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
    """A panel with Markdown."""

    content: str
    type: ClassVar[str] = "text"

    def _options(self) -> Json:
        return {"mode": "markdown", "content": self.content}


@dataclass(frozen=True)
class AnnotationsList(Panel):
    """A panel with the latest annotations of a tag in Grafana, newest first."""

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


FEW_POINTS: Final = 200
"""Points of panels that read the series of every rank, of which a job may have a thousand."""


@dataclass(frozen=True)
class TimeSeries(QueryPanel):
    """A panel with curves."""

    stacked: bool = False
    bars: bool = False
    legend_calculations: tuple[str, ...] = ("lastNotNull", "max")
    """With two the legend is a table, of which three lines fit below a panel; with one it is a list."""
    legend_on_the_right: bool = False
    smallest_step: str | None = None
    """The smallest step, as ``1h``; for bars that count events, else they are one pixel wide."""
    bands: bool = False
    """True to draw the field's thresholds as areas behind the curves."""
    type: ClassVar[str] = "timeseries"

    def to_json(self) -> Json:
        told = super().to_json()
        if self.smallest_step:
            told["interval"] = self.smallest_step
        return told

    def _colour(self) -> Json:
        return BY_SERIES

    def _options(self) -> Json:
        return {
            "legend": {
                "showLegend": True,
                "displayMode": "table" if self.legend_on_the_right or len(self.legend_calculations) > 1 else "list",
                "placement": "right" if self.legend_on_the_right else "bottom",
                "calcs": list(self.legend_calculations),
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        }

    def _custom(self) -> Json:
        return {
            "drawStyle": "bars" if self.bars else "line",
            "lineWidth": 0 if self.bars else 1,
            "fillOpacity": 70 if self.bars else 25 if self.stacked else 0 if self.bands else 8,
            "lineInterpolation": "linear",
            "showPoints": "never" if self.bars else "auto",
            "pointSize": 4,
            # A gap of a scrape or two is bridged; a job that was away for longer shows as a gap.
            "spanNulls": 60_000,
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "area" if self.bands else "off"},
            # A bar counts what happened since the one before it.
            "barAlignment": -1 if self.bars else 0,
            "axisPlacement": "auto",
            "axisBorderShow": False,
        }


@dataclass(frozen=True)
class Heatmap(QueryPanel):
    """A panel with one row a series and one column a moment, coloured by value."""

    scheme: str | None = None
    """A sequential one of d3's colour schemes, as Grafana lists them, that colour-blind people can read, on light and
    dark; ``None``: orange, from transparent to opaque."""
    least_colour: float | None = None
    most_colour: float | None = None
    row_name: str = "rank"
    _: KW_ONLY
    most_points: int | None = 120
    type: ClassVar[str] = "heatmap"

    def _colour(self) -> Json:
        return BY_SERIES

    def _options(self) -> Json:
        colour: Json = {
            "mode": "scheme" if self.scheme else "opacity",
            "scheme": self.scheme or "Oranges",
            "reverse": False,
            "steps": 64,
            "exponent": 1,
            "scale": "linear",
            "fill": "dark-orange",
        }
        if self.least_colour is not None:
            colour["min"] = self.least_colour
        if self.most_colour is not None:
            colour["max"] = self.most_colour
        return {
            # The series are the rows; Grafana must not count values into buckets.
            "calculate": False,
            "cellGap": 0,
            "cellValues": {"unit": self.field.unit},
            "color": colour,
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
            "filterValues": {},
            "legend": {"show": True},
            "rowsFrame": {"layout": "auto", "value": self.title},
            "showValue": "never",
            "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
            "yAxis": {"axisPlacement": "left", "reverse": True, "axisLabel": self.row_name},
        }


@dataclass(frozen=True)
class StateTimeline(QueryPanel):
    """A panel with one bar a series, coloured by its state."""

    _: KW_ONLY
    most_points: int | None = 300
    type: ClassVar[str] = "state-timeline"

    def _options(self) -> Json:
        return {
            "mergeValues": True,
            "showValue": "auto",
            "alignValue": "left",
            "rowHeight": 0.85,
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"},
        }

    def _custom(self) -> Json:
        return {"lineWidth": 0, "fillOpacity": 75}
