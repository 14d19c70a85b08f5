"""How values are shown: units, thresholds, words for numbers, links. Grafana calls this a panel's ``fieldConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

BYTES: Final = "bytes"
COUNT: Final = "none"
"""A count is written out: ``short`` would make 1.2 K of 1,234 ranks."""
SHARE: Final = "percentunit"
"""0 to 1, shown as per cent."""
PERCENT: Final = "percent"
SECONDS: Final = "s"
PER_S: Final = "suffix:/s"
STEPS_PER_S: Final = "suffix:steps/s"
RATIO: Final = "none"
WHEN: Final = "dateTimeAsIso"
"""Unix *milliseconds* as a date."""
AGO: Final = "dateTimeFromNow"
"""Unix *milliseconds* as "2 hours ago"."""
TEXT: Final = "string"

GOOD: Final = "green"
CARE: Final = "orange"
BAD: Final = "red"
PLAIN: Final = "text"
"""The theme's own colour of text: dark on light, light on dark."""


@dataclass(frozen=True)
class ThresholdSteps:
    """Colours by value: ``first`` below all limits, then each colour from its limit on."""

    first: str
    limits: tuple[tuple[float, str], ...] = ()

    def to_json(self) -> Json:
        """As ``thresholds``; the first step has no value (minus infinity)."""
        steps: list[Json] = [{"color": self.first, "value": None}]
        steps += [{"color": colour, "value": value} for value, colour in self.limits]
        return {"mode": "absolute", "steps": steps}


NO_STEPS: Final = ThresholdSteps(PLAIN)
ANY_IS_BAD: Final = ThresholdSteps(GOOD, ((1, BAD),))
ANY_NEEDS_CARE: Final = ThresholdSteps(GOOD, ((1, CARE),))
HOW_FULL: Final = ThresholdSteps(GOOD, ((0.85, CARE), (0.95, BAD)))
"""Of what a rank may take: above 95 % the next larger batch, or a library's work space, ends the job."""
ROOM_LEFT: Final = ThresholdSteps(BAD, ((0.05, CARE), (0.15, GOOD)))
TIME_LEFT: Final = ThresholdSteps(BAD, ((1_800, CARE), (14_400, GOOD)))
"""Half an hour is what a checkpoint and a requeue take at most sites; four hours is time to think."""
LEAK_STEPS: Final = ThresholdSteps(GOOD, ((1, "blue"), (2, CARE)))
"""Red is for danger: incidents, and time that runs out."""

Words = Mapping[float, tuple[str, str]]
"""A value to its word and colour."""
LEAK_WORDS: Final[Words] = {0: ("ok", GOOD), 1: ("suspected", "blue"), 2: ("growing", CARE)}
SEVERITY_WORDS: Final[Words] = {1: ("note", "blue"), 2: ("warning", CARE), 3: ("critical", BAD)}


def words_to_json(words: Words) -> list[Json]:
    """As ``mappings``; an empty list where there are none."""
    if not words:
        return []
    options = {
        f"{value:g}": {"text": text, "color": colour, "index": index}
        for index, (value, (text, colour)) in enumerate(words.items())
    }
    return [{"type": "value", "options": options}]


@dataclass(frozen=True)
class PanelLink:
    """Where a value, a row or a series leads to."""

    title: str
    url: str
    new_tab: bool = False

    def to_json(self) -> Json:
        """As one of ``links`` of a field."""
        return {"title": self.title, "url": self.url, "targetBlank": self.new_tab}


@dataclass(frozen=True)
class Field:
    """What all values of a panel have in common."""

    unit: str
    no_value: str
    """Said in place of the panel, or of the number, where there is nothing: what it means that there is nothing."""
    steps: ThresholdSteps = NO_STEPS
    words: Words | None = None
    decimals: int | None = None
    """``None``: as many as Grafana thinks fit."""
    least: float | None = None
    most: float | None = None
    links: tuple[PanelLink, ...] = ()

    def to_json(self, colour: Json, custom: Json) -> Json:
        """As ``fieldConfig.defaults``; ``custom`` is what only this type of panel knows."""
        told: Json = {
            "unit": self.unit,
            "noValue": self.no_value,
            "thresholds": self.steps.to_json(),
            "mappings": words_to_json(self.words or {}),
            "color": colour,
        }
        if custom:
            told["custom"] = custom
        for name, value in (("decimals", self.decimals), ("min", self.least), ("max", self.most)):
            if value is not None:
                told[name] = value
        if self.links:
            told["links"] = [link.to_json() for link in self.links]
        return told


BY_STEPS: Final[Json] = {"mode": "thresholds"}
BY_SERIES: Final[Json] = {"mode": "palette-classic"}
"""One colour a series; Grafana's palette is made for both themes."""


def fixed(colour: str) -> Json:
    """Always this colour."""
    return {"mode": "fixed", "fixedColor": colour}


def override(matcher: str, options: str, properties: Mapping[str, Any]) -> Json:
    """An entry of ``fieldConfig.overrides``: ``matcher`` is ``byName`` (a column) or ``byFrameRefID`` (a query)."""
    return {
        "matcher": {"id": matcher, "options": options},
        "properties": [{"id": name, "value": value} for name, value in properties.items()],
    }
