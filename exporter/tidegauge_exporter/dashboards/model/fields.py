"""The display of values: units, thresholds, words for numbers, links (a panel's ``fieldConfig``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegauge.core.views import NEARLY_FULL

Json = dict[str, Any]

BYTES: Final = "bytes"
COUNT: Final = "none"
"""The unit of counts: ``short`` would make 1.2 K of 1,234 ranks."""
SHARE: Final = "percentunit"
"""The unit of shares from 0 to 1, shown as per cent."""
PERCENT: Final = "percent"
SECONDS: Final = "s"
HOURS: Final = "suffix:h"
"""The unit of axes with times: their ticks are round numbers, of seconds they are not ("2.78 hours")."""
WATTS: Final = "watt"
PER_S: Final = "suffix:/s"
STEPS_PER_S: Final = "suffix:steps/s"
RATIO: Final = "none"
WHEN: Final = "dateTimeAsIso"
"""The unit of unix *milliseconds* that are shown as a date."""
AGO: Final = "dateTimeFromNow"
"""The unit of unix *milliseconds* that are shown as "2 hours ago"."""
TEXT: Final = "string"

PLAIN: Final = "text"
"""The theme's own colour of text: dark on light, light on dark."""
GOOD: Final = PLAIN
"""What is well has no colour, so that the eye finds the rest."""
NOTE: Final = "blue"
CARE: Final = "orange"
BAD: Final = "red"
"""Blue against orange is told apart with every kind of colour vision; red beside orange by the marks in the text."""
QUIET: Final = "#8e8e8e"
"""The grey of large areas that are well; visible on light and dark."""
NO_COLOUR: Final = "transparent"


@dataclass(frozen=True)
class ThresholdSteps:
    """Colours by value: ``first`` below all limits and where there is no value, then each colour from its limit on."""

    first: str
    limits: tuple[tuple[float, str], ...] = ()

    def to_json(self) -> Json:
        """The JSON of ``thresholds``; the first step has no value (minus infinity)."""
        steps: list[Json] = [{"color": self.first, "value": None}]
        steps += [{"color": colour, "value": value} for value, colour in self.limits]
        return {"mode": "absolute", "steps": steps}


NO_STEPS: Final = ThresholdSteps(PLAIN)
ANY_IS_BAD: Final = ThresholdSteps(GOOD, ((1, BAD),))
ANY_NEEDS_CARE: Final = ThresholdSteps(GOOD, ((1, CARE),))
HOW_FULL: Final = ThresholdSteps(NOTE, ((NEARLY_FULL, CARE), (0.95, BAD)))
"""Shares of a rank's limit: above 95 % the next larger batch, or a library's work space, ends the job."""
ROOM_LEFT: Final = ThresholdSteps(GOOD, ((-1, BAD), (0.05, CARE), (0.15, GOOD)))
HOUR_S: Final = 3600
NEVER_S: Final = 1e9
"""Seconds, 31 years: times of tables from here on say that there is no forecast and give the order of the rows."""
TIME_LEFT: Final = ThresholdSteps(GOOD, ((0, BAD), (0.5 * HOUR_S, CARE), (4 * HOUR_S, GOOD)))
"""A checkpoint and a requeue take up to half an hour at most sites; four hours is time to think."""
HOURS_LEFT: Final = ThresholdSteps(NO_COLOUR, ((0, BAD), (0.5, CARE), (4, NO_COLOUR)))
"""The same of hours, as bands behind curves."""
LEAK_STEPS: Final = ThresholdSteps(QUIET, ((1, NOTE), (2, CARE)))
"""Red is left to incidents and forecasts."""

Words = Mapping[float, tuple[str, str]]
"""The word and colour of each value; marks stand beside each colour, as in ``tidegauge top``."""
LEAK_WORDS: Final[Words] = {0: ("ok", QUIET), 1: ("suspected !", NOTE), 2: ("growing !!", CARE)}
SEVERITY_WORDS: Final[Words] = {1: ("note !", NOTE), 2: ("warning !!", CARE), 3: ("critical !!!", BAD)}


def words_to_json(words: Words, from_on: tuple[float, str] | None = None) -> list[Json]:
    """The JSON of ``mappings``, perhaps empty. ``from_on``: a text in place of numbers from this one on."""
    if from_on is not None:
        least, text = from_on
        return [{"type": "range", "options": {"from": least, "to": None, "result": {"text": text, "index": 0}}}]
    if not words:
        return []
    options = {
        f"{value:g}": {"text": text, "color": colour, "index": index}
        for index, (value, (text, colour)) in enumerate(words.items())
    }
    return [{"type": "value", "options": options}]


@dataclass(frozen=True)
class PanelLink:
    """A link from a value, a row or a series."""

    title: str
    url: str
    new_tab: bool = False

    def to_json(self) -> Json:
        """The entry of a field's ``links``."""
        return {"title": self.title, "url": self.url, "targetBlank": self.new_tab}


@dataclass(frozen=True)
class Field:
    """Settings of all values of a panel."""

    unit: str
    no_value: str
    """The text in place of the panel or the number where there is no value, with its meaning."""
    steps: ThresholdSteps = NO_STEPS
    words: Words | None = None
    decimals: int | None = None
    """``None``: Grafana chooses."""
    least: float | None = None
    most: float | None = None
    links: tuple[PanelLink, ...] = ()
    """Of a number: a click on its tile follows the first."""

    def to_json(self, colour: Json, custom: Json) -> Json:
        """The JSON of ``fieldConfig.defaults``; ``custom`` has the settings of this type of panel."""
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
    return {"mode": "fixed", "fixedColor": colour}


def override(matcher: str, options: str, properties: Mapping[str, Any]) -> Json:
    """An entry of ``fieldConfig.overrides``: ``matcher`` is ``byName`` (a column) or ``byFrameRefID`` (a query)."""
    return {
        "matcher": {"id": matcher, "options": options},
        "properties": [{"id": name, "value": value} for name, value in properties.items()],
    }
