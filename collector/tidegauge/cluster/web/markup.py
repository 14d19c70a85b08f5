"""Markup that the pages of the web UI share: states with marks, links to jobs, bars, sparklines. Escapes every text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from tidegauge.core.ids import JobKey, short_job_name
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.wording import time_left
from tidegauge.core.memory_history import ChartScale
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import SEVERITY_MARKS, Band, LeakState, Severity, state_word
from tidegauge.core.views import NEARLY_FULL
from tidegauge_exporter.links import incident_address, job_address
from tidegauge_exporter.reports.html_page import NOTHING

MAX_NAME_CHARS: Final = 80
_SPARK_WIDTH: Final = 120
_SPARK_HEIGHT: Final = 22


def state_chip(
    state: LeakState, severity: Severity | None, *, alive: bool = True, stale: bool = False, has_steps: bool = True
) -> str:
    """The state in a word, with a mark for each degree of severity, so that no colour has to be seen."""
    if not alive:
        return _chip("ended", "note")
    marks = f" {SEVERITY_MARKS[severity]}" if state is LeakState.LEAK and severity is not None else ""
    if stale:
        return _chip(f"stale{marks}", "warning")
    word = state_word(state, severity, has_steps=has_steps)
    tones = {LeakState.OK: "note" if word == "no steps" else "ok", LeakState.SUSPECTED: "suspected"}
    return _chip(f"{word}{marks}", tones.get(state, (severity or Severity.WARNING).value))


def severity_chip(incident: Incident) -> str:
    """The severity of an open incident, or its state."""
    if not incident.is_open:
        return _chip(incident.state.value, "note")
    severity = incident.severity
    return _chip(f"{severity.value} {SEVERITY_MARKS[severity]}", severity.value)


def health_chip(word: str, *, is_well: bool) -> str:
    return _chip(word if is_well else f"{word} !", "ok" if is_well else "warning")


def _chip(words: str, tone: str) -> str:
    return f'<span class="verdict tone-{tone}">{escape(words)}</span>'


def name_text(text: str | None, most: int = MAX_NAME_CHARS) -> str:
    """A text that a job, user or scheduler chose; a dash without one."""
    return escape(one_line(text, most)) if text else NOTHING


def job_link(job: JobKey, array: str | None = None, group_name: str = "", *, words: str | None = None) -> str:
    """A link to a job's page, by default with the job's name in its short form."""
    words = words or one_line(short_job_name(job.job_id, job.attempt, array, group=group_name), MAX_NAME_CHARS)
    return f'<a class="named" href="{escape(job_address(job))}">{escape(words)}</a>'


def incident_link(number: int, words: str | None = None) -> str:
    return f'<a href="{escape(incident_address(number))}">{escape(words or f"#{number}")}</a>'


def bytes_text(count: float | None) -> str:
    return NOTHING if count is None else format_bytes(count)


def share_text(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def share_bar(share: float | None, *, title: str = "") -> str:
    """A bar of what is used; beyond ``NEARLY_FULL`` it has another colour and a mark."""
    if share is None:
        return NOTHING
    full = share >= NEARLY_FULL
    told = f"<title>{escape(title)}</title>" if title else ""
    return (
        '<span class="share"><svg class="bar" viewBox="0 0 100 9" preserveAspectRatio="none" aria-hidden="true">'
        f"{told}"
        f'<rect class="room" width="100" height="9"/><rect class="{"used full" if full else "used"}" '
        f'width="{100 * min(share, 1.0):.1f}" height="9"/></svg>'
        f"<span>{share:.0%}{' !' if full else ''}</span></span>"
    )


def sparkline(amounts: Sequence[int]) -> str:
    """Used memory over time, and the range that the curve covers: on the scale of a GPU nobody would see a leak of some
    hundred MiB."""
    if len(amounts) < 2:
        return NOTHING
    scale, step = ChartScale.of(amounts), _SPARK_WIDTH / (len(amounts) - 1)
    points = " ".join(
        f"{place * step:.1f},{_SPARK_HEIGHT - 1 - scale.share(amount) * (_SPARK_HEIGHT - 2):.1f}"
        for place, amount in enumerate(amounts)
    )
    return (
        f'<span class="spark"><svg viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" aria-hidden="true">'
        f'<polyline class="curve calm" points="{points}"/></svg><small>{scale.range_words}</small></span>'
    )


def oom_text(seconds: Band | None, steps: Band | None = None) -> str:
    """The predicted time to OOM."""
    left = time_left(seconds, steps)
    return NOTHING if left is None else escape(left)


def facts_list(facts: Iterable[tuple[str, str]]) -> str:
    """Names and markup, side by side."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{markup}</dd>" for name, markup in facts)
    return f'<dl class="facts">{rows}</dl>' if rows else ""


def choice(name: str, label: str, options: Mapping[str, str], chosen: str) -> str:
    """A select of a form, by value what it is called."""
    made = "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(words)}</option>'
        for value, words in options.items()
    )
    return f'<label>{escape(label)} <select name="{name}">{made}</select></label>'


def search_field(name: str, label: str, value: str) -> str:
    return (
        f'<label>{escape(label)} <input type="search" name="{name}" value="{escape(value)}" maxlength="200" '
        'autocomplete="off"></label>'
    )


def filter_form(*fields: str) -> str:
    """A form of this page; the script asks again as one types, without it the button does."""
    return f'<form class="tools filter" method="get">{"".join(fields)}<button>Show</button></form>'
