"""The page of incidents: open ones, and those that closed lately."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from tidegauge.cluster.web.markup import choice, filter_form, incident_link, job_link, name_text, severity_chip
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.wording import incident_sentence, other_number
from tidegauge.core.units import format_count
from tidegauge_exporter.messages.untrusted import tamed
from tidegauge_exporter.reports.html_page import lead, moment, muted, section, table

MAX_INCIDENTS: Final = 200
SHOW: Final = {"open": "open ones", "all": "closed ones as well"}
_HEADS: Final = ("Incident", "Severity", "Job", "User", "What", "Opened")


def incidents_page(found: Sequence[Incident], *, show: str) -> list[str]:
    """The sections of the page; ``found`` are the newest first."""
    is_open = [one for one in found if one.is_open]
    first = sorted(is_open, key=lambda one: -one.severity.level)
    rest = [one for one in found if not one.is_open]
    sentence = f"{format_count(len(is_open), 'incident')} open." if is_open else "No incident is open."
    tone = first[0].severity.value if first else "ok"
    listed = incidents_table([*first, *rest]) if found else muted("None.")
    return [
        lead(sentence, tone=tone),
        section("Incidents", filter_form(choice("show", "Show", SHOW, show)), listed,
                muted(f"Only the newest {MAX_INCIDENTS:,} are shown.") if len(found) >= MAX_INCIDENTS else ""),
    ]  # fmt: skip


def incidents_table(found: Sequence[Incident]) -> str:
    """A row for each, as they come."""
    return table(_HEADS, map(_row, found))


def _row(incident: Incident) -> Sequence[str]:
    told, other = tamed(incident), other_number(incident)
    sentence = escape(incident_sentence(told))
    return (
        incident_link(incident.number),
        severity_chip(incident),
        job_link(incident.key.job, group_name=told.called.group),
        name_text(incident.user_name),
        sentence + (f"<small>{incident_link(other, f'with incident {other}')}</small>" if other is not None else ""),
        moment(incident.opened_unix_s),
    )
