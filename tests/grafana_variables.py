"""What Grafana writes into a query in place of variables, as far as our dashboards rely on it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_VARIABLE = re.compile(r"\$\{(\w+)(?::(\w+))?\}|\$([A-Za-z_]\w*)")
"""``$1`` of a ``label_replace`` is no variable: Grafana leaves what it does not know as it is."""


class Chosen(NamedTuple):
    """The value of a variable: what the reader sees, and what goes into queries."""

    text: str
    in_queries: str


def one(value: str) -> Chosen:
    """A variable with one value: Grafana's Prometheus plugin escapes it for a string in PromQL."""
    return Chosen(value, value.replace("\\", "\\\\").replace('"', '\\"'))


def all_of_them(pattern: str) -> Chosen:
    """``All`` with ``allValue``, which is written as it is."""
    return Chosen("All", pattern)


def of_the_range(range_s: int, step_s: int, scrape_s: int = 15) -> dict[str, Chosen]:
    """The variables that Grafana always has."""
    rate_s = max(step_s + scrape_s, 4 * scrape_s)
    return {
        "__range": one(f"{range_s}s"),
        "__interval": one(f"{step_s}s"),
        "__rate_interval": one(f"{rate_s}s"),
    }


def interpolated(text: str, values: Mapping[str, Chosen]) -> str:
    """``text`` with the variables filled in. Raises ``KeyError`` for one that the dashboard does not have."""

    def filled(match: re.Match[str]) -> str:
        chosen = values[match[1] or match[3]]
        return chosen.text if match[2] == "text" else chosen.in_queries

    return _VARIABLE.sub(filled, text)


def options_of_query_result(regex: str, series: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What a variable with ``query_result`` offers: the shown text by value.

    Grafana's Prometheus plugin writes each series of the answer as a line, and takes from it what the groups ``value``
    and ``text`` of the variable's ``/regex/`` match; a line that does not match is left out.
    """
    pattern = re.compile(regex.strip("/").replace("(?<", "(?P<"))
    lines = (
        f"{{{','.join(f'{name}={quoted}' for name, quoted in _quoted(one['metric']))}}} {one['value'][1]} 1763700000000"
        for one in series
    )
    return {match["value"]: match["text"] for line in lines if (match := pattern.search(line))}


def _quoted(labels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Quotes in a value stay as they are, as in Grafana."""
    return ((name, f'"{value}"') for name, value in labels.items())
