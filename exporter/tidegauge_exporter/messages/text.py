"""Texts for messages, in which nothing that a job or another person chose has a meaning to Slack.

``plain`` is for ``plain_text`` objects and notifications: Slack's pages do not say whether entities are decoded there,
so the three control characters are replaced by look-alikes. ``code`` is for values inside ``mrkdwn``: in a code span
only an entity means anything. ``tidy`` comes before either of them: one line, nothing invisible, not too long.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from tidegauge.core.text import one_line
from tidegauge.core.units import format_band
from tidegauge.core.verdicts import Band

ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"
DASH: Final = "\N{EN DASH}"

_LOOK_ALIKES: Final = str.maketrans(
    {
        "<": "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}",
        ">": "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}",
        "&": "\N{FULLWIDTH AMPERSAND}",
    }
)
_ENTITIES: Final = str.maketrans({"<": "&lt;", ">": "&gt;", "&": "&amp;", "`": "'"})

_SAME_DAY_S: Final = 12 * 3600.0
_CLOCK_HORIZON_S: Final = 60 * 86400.0
"""Distance from now beyond which a time of day is noise, and the calendar may end."""


def tidy(text: str, most: int) -> str:
    """The text as one line of at most ``most`` characters, without anything invisible; cut with an ellipsis."""
    visible = one_line(text, 8 * most, replacement=" ")  # who writes megabytes of spaces shall not keep us busy
    return cut(" ".join(visible.split()), most)


def tidy_lines(text: str, most: int) -> list[str]:
    """The lines of a text that have something in them, each tidied; ``most`` characters in all."""
    lines: list[str] = []
    left = most
    for raw in text[: 8 * most].splitlines():
        line = tidy(raw, left)
        if line:
            lines.append(line)
            left -= len(line)
        if left <= 0:
            break
    return lines


def cut(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - 1].rstrip() + ELLIPSIS


def plain(text: str) -> str:
    """The text for ``plain_text`` and notifications: no mention, no link. The arrow of a path stays an arrow."""
    return text.replace("->", "\N{RIGHTWARDS ARROW}").translate(_LOOK_ALIKES)


def code(value: str) -> str:
    """A tidied value as a code span of ``mrkdwn``, in which Slack interprets nothing."""
    return f"`{value.translate(_ENTITIES)}`" if value else DASH


def clock(at_unix_s: float, now_unix_s: float) -> str | None:
    """ "06:14 UTC", with the day if it is not about now; ``None`` for what is too far away for a clock."""
    if not abs(at_unix_s - now_unix_s) <= _CLOCK_HORIZON_S:  # also NaN
        return None
    when = datetime.fromtimestamp(at_unix_s, timezone.utc)
    return f"{when:%H:%M} UTC" if _is_near(at_unix_s, now_unix_s) else f"{when.day} {when:%b %H:%M} UTC"


def clock_band(after_s: Band, now_unix_s: float) -> str | None:
    """The time after so many seconds: "06:14-06:22 UTC", "06:14 UTC or later"; ``None`` as ``clock``."""
    first, last = (clock(now_unix_s + seconds, now_unix_s) for seconds in (after_s.low, after_s.high))
    if first is None or last is None:
        return None if first is None else f"{first} or later"
    if first == last:
        return first
    if _is_near(now_unix_s + after_s.high, now_unix_s):
        return f"{first.removesuffix(' UTC')}{DASH}{last}"
    return f"{first} {DASH} {last}"


def local_clock(at_unix_s: float, now_unix_s: float) -> str | None:
    """A time in ``mrkdwn``, which Slack shows in the reader's time zone, else as UTC."""
    written = clock(at_unix_s, now_unix_s)
    if written is None:
        return None
    form = "{time}" if _is_near(at_unix_s, now_unix_s) else "{date_short} {time}"
    return f"<!date^{int(at_unix_s)}^{form}|{written}>"


def time_left(after_s: Band) -> str:
    """ "14-22 min"; what should have happened by now is "any moment now"."""
    return "any moment now" if after_s.high <= 0.0 else format_band(after_s)


def _is_near(at_unix_s: float, now_unix_s: float) -> bool:
    return abs(at_unix_s - now_unix_s) <= _SAME_DAY_S
