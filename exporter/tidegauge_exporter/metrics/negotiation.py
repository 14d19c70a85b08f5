"""What a scraper's headers ask for: which of the two formats, and whether compressed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidegauge_exporter.metrics.exposition import Format

_TEXT = ("text/plain", "text/*", "*/*")


class _Choice(NamedTuple):
    """One of the things that a header lists."""

    name: str
    parameters: Mapping[str, str]
    quality: float
    """From 0 (not that) to 1."""


def choose_format(accept: str | None) -> Format:
    """OpenMetrics for whoever names it and does not like text better; text for everybody else."""
    openmetrics, text = 0.0, 0.0
    for choice in _choices(accept):
        version = choice.parameters.get("version")
        if choice.name == "application/openmetrics-text" and version in (None, "1.0.0"):
            openmetrics = max(openmetrics, choice.quality)
        elif choice.name in _TEXT and version in (None, "0.0.4"):
            text = max(text, choice.quality)
    return Format.OPENMETRICS if openmetrics > 0 and openmetrics >= text else Format.TEXT


def accepts_gzip(accept_encoding: str | None) -> bool:
    """Whether the answer may be compressed."""
    return any(choice.name == "gzip" and choice.quality > 0 for choice in _choices(accept_encoding))


def _choices(header: str | None) -> Iterator[_Choice]:
    for listed in (header or "").lower().split(","):
        name, *rest = listed.split(";")
        pairs = (pair.partition("=") for pair in rest)
        parameters = {key.strip(): value.strip().strip('"') for key, _, value in pairs}
        yield _Choice(name.strip(), parameters, _quality(parameters.get("q")))


def _quality(text: str | None) -> float:
    """What cannot be read is taken for 1, as if it were not there."""
    try:
        return 1.0 if text is None else float(text)
    except ValueError:
        return 1.0
