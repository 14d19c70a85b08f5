"""The panels that show how values moved: curves, colours by rank and time, bars of states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from tidegauge_exporter.dashboards.model.fields import BY_SERIES, Json
from tidegauge_exporter.dashboards.model.panels import QueryPanel

FEW_POINTS: Final = 200
"""For panels that read the series of every rank: a job may have a thousand; Grafana would ask for a point a pixel."""


@dataclass(frozen=True)
class TimeSeries(QueryPanel):
    """Curves."""

    stacked: bool = False
    bars: bool = False
    legend_calculations: tuple[str, ...] = ("lastNotNull", "max")
    """With two the legend is a table, of which three lines fit below a panel; with one it is a list."""
    legend_on_the_right: bool = False
    smallest_step: str | None = None
    """No finer than this, as ``5m``; for bars that count events."""
    most_points: int | None = None
    show_limits: bool = False
    """Draws the field's thresholds as lines."""
    type: ClassVar[str] = "timeseries"

    def to_json(self) -> Json:
        told = super().to_json()
        if self.smallest_step:
            told["interval"] = self.smallest_step
        if self.most_points:
            told["maxDataPoints"] = self.most_points
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
            "fillOpacity": 70 if self.bars else 25 if self.stacked else 8,
            "lineInterpolation": "linear",
            "showPoints": "never" if self.bars else "auto",
            "pointSize": 4,
            # A gap of a scrape or two is bridged; a job that was away for longer shows as a gap.
            "spanNulls": 60_000,
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if self.show_limits else "off"},
            "axisPlacement": "auto",
            "axisBorderShow": False,
        }


@dataclass(frozen=True)
class Heatmap(QueryPanel):
    """One row a series, one column a moment, the colour is the value."""

    scheme: str
    """A name of d3's colour schemes, as Grafana lists them; those used here read on light and dark."""
    reverse: bool = False
    least_colour: float | None = None
    most_colour: float | None = None
    most_points: int = 120
    type: ClassVar[str] = "heatmap"

    def to_json(self) -> Json:
        return {**super().to_json(), "maxDataPoints": self.most_points}

    def _colour(self) -> Json:
        return BY_SERIES

    def _options(self) -> Json:
        colour: Json = {
            "mode": "scheme",
            "scheme": self.scheme,
            "reverse": self.reverse,
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
            "yAxis": {"axisPlacement": "left", "reverse": True, "axisLabel": "rank"},
        }


@dataclass(frozen=True)
class StateTimeline(QueryPanel):
    """One bar a series, coloured by its state."""

    most_points: int = 300
    type: ClassVar[str] = "state-timeline"

    def to_json(self) -> Json:
        return {**super().to_json(), "maxDataPoints": self.most_points}

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
