"""The text of a scrape, written by hand from the table of metrics: Prometheus' own format 0.0.4, or OpenMetrics 1.0.

prometheus_client escapes the labels of a rank anew for each of its series, and takes five times as long
(bench/scrape_cost.py). Here a label block is made once and kept between scrapes (``LabelBlocks``); what is left to do
for a sample is its number. The text is the one that prometheus_client would write: a property test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from tidegauge_exporter.metrics.label_blocks import LabelBlocks
from tidegauge_exporter.metrics.rows import Kind, Metric

INFO_VALUE = 1.0
_PLAIN_DIGITS = 6
"""A number of more digits before the point is written with an exponent, as clients of Prometheus do."""


class Format(Enum):
    """What a scraper can ask for; the value is the content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Exposition(NamedTuple):
    """An answer to a scrape."""

    body: bytes
    content_type: str


class Samples:
    """The samples of one scrape, by the rows of a table and in its order."""

    def __init__(self, table: Iterable[Metric], blocks: LabelBlocks | None = None) -> None:
        """``blocks``: those of the scrapes before."""
        self._blocks = LabelBlocks() if blocks is None else blocks
        self._blocks.begin_scrape()
        self._rows = {metric.name: metric for metric in table}
        self._lines: dict[str, list[str]] = {name: [] for name in self._rows}

    def add(self, metric: Metric, values: Sequence[object], number: float) -> None:
        """One sample. ``values`` are those of ``metric.labels``, in their order; they may be anything."""
        self.add_to(self.block(metric.labels, tuple(values)), metric, number)

    def block(self, names: tuple[str, ...], values: tuple[object, ...]) -> str:
        """``{name="value",...}``, for ``add_to``."""
        return self._blocks.block(names, values)

    def add_to(self, block: str, metric: Metric, number: float) -> None:
        """One sample of those that share a ``block``."""
        self._lines[metric.name].append(f"{metric.name}{block} {write_number(number)}\n")

    def exposition(self, form: Format, *, only: Collection[str] = ()) -> Exposition:
        """All of them, or those of the metrics called ``only``."""
        parts: list[str] = []
        for name, lines in self._lines.items():
            if lines and (not only or name in only):
                parts.append(_head(self._rows[name], form))
                parts += lines
        if form is Format.OPENMETRICS:
            parts.append("# EOF\n")
        return Exposition("".join(parts).encode(), form.value)


def write_number(number: float) -> str:
    """``1.0``, ``1.073741824e+09``, ``+Inf``, ``NaN``: gives the same number when it is read."""
    text = repr(float(number))
    point = text.find(".")
    if point > _PLAIN_DIGITS and number > 0:
        digits = f"{text[0]}.{text[1:point]}{text[point + 1 :]}".rstrip("0.")
        return f"{digits}e+{point - 1:02d}"
    if point < 0 and not math.isfinite(number):
        return "NaN" if math.isnan(number) else f"{'+' if number > 0 else '-'}Inf"
    return text


def _head(metric: Metric, form: Format) -> str:
    """What stands above the samples. OpenMetrics calls a counter and an info without their suffixes."""
    text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    if form is Format.TEXT:
        kind = Kind.GAUGE if metric.kind is Kind.INFO else metric.kind
        return f"# HELP {metric.name} {text}\n# TYPE {metric.name} {kind.value}\n"
    suffix = {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(metric.kind, "")
    name = metric.name.removesuffix(suffix)
    unit = f"# UNIT {name} {metric.exposed_unit}\n" if metric.exposed_unit else ""
    quoted = text.replace('"', '\\"')
    return f"# HELP {name} {quoted}\n# TYPE {name} {metric.kind.value}\n{unit}"
