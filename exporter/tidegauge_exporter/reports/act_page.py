"""The page by which people act on an incident: acknowledge it, exempt its job from actions for a time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.acts import (
    NOT_SILENCED,
    ActKind,
    PersonAct,
    acknowledgement,
    act_in_words,
    exemption_in_force,
    told_acts,
)
from tidegauge.core.incidents.wording import capitalised, incident_sentence
from tidegauge.http.access import Viewer
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.headlines import noun, owners_job
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.messages.untrusted import MAX_REMARK_CHARS, tamed
from tidegauge_exporter.reports.html_page import lead, listing, meta, moment, muted, page, section
from tidegauge_exporter.reports.incident_sections import incident_tone

EXEMPT_HOURS: Final = (4, 24, 72)
"""Times to choose from."""
MAX_SHOWN: Final = 50


def render_act_page(
    incident: Incident, acts: Sequence[PersonAct], viewer: Viewer, *, now_unix_s: float, said: str | None, links: Links
) -> str:
    """The page for one viewer: all ``acts``, oldest first, and what was ``said`` to the form that they sent."""
    told = tamed(incident)
    report = links.incident(incident.number)
    parts = [
        meta([("Incident", str(incident.number))]),
        lead(incident_sentence(told), tone=incident_tone(told)),
        f'<p role="status"><b>{escape(tidy(said, MAX_REMARK_CHARS))}</b></p>' if said else "",
        _forms(incident, acts, viewer, now_unix_s),
        acts_section(acts),
        f'<p class="links"><a href="{escape(report)}">Report</a></p>' if report else "",
    ]
    return page(f"Act on {noun(told)} in {owners_job(told)} (incident {incident.number})", parts)


def acts_section(acts: Sequence[PersonAct]) -> str:
    """What people asked for, newest first; nothing if nobody did."""
    told = told_acts(acts)[::-1][:MAX_SHOWN]
    rows = (
        (moment(one.at_unix_s), escape(capitalised(tidy(act_in_words(one, when=moment), MAX_REMARK_CHARS))))
        for one in told
    )
    return section("What people did", listing(rows)) if told else ""


def _forms(incident: Incident, acts: Sequence[PersonAct], viewer: Viewer, now_unix_s: float) -> str:
    if not incident.is_open:
        return "<p>The incident is closed: there is nothing to do about it any more.</p>"
    if viewer.name is None:
        return (
            "<p>This service asks nobody for a name, so it cannot tell who acts. On the head, the service's user or "
            f"root does by <code>tidegauge incidents acknowledge {incident.number}</code>.</p>"
        )
    by = acknowledgement(acts)
    if by is not None and by.by == viewer.name:
        acknowledge = _button(incident.number, ActKind.UNACKNOWLEDGE, "Take my acknowledgement back")
    else:
        acknowledge = _button(incident.number, ActKind.ACKNOWLEDGE, "Acknowledge: I am looking at it")
    hours = "".join(f'<option value="{one}">{one} hours</option>' for one in EXEMPT_HOURS)
    if exemption_in_force(acts, now_unix_s=now_unix_s) is not None:
        hours += '<option value="0">no time: end it now</option>'
    chosen = f'<label>for <select name="hours">{hours}</select></label> '
    return "\n".join(
        [
            section("Acknowledge", acknowledge, muted(f"It shows others that somebody is at it. {NOT_SILENCED}")),
            section(
                "Exempt the job from actions",
                _button(incident.number, ActKind.EXEMPT, "Exempt the job", before=chosen),
                muted("Tidegauge then acts on this attempt of the job no more; its owner still gets messages."),
            ),
            muted(f"You act as {tidy(viewer.name, MAX_REMARK_CHARS)}."),
        ]
    )


def _button(number: int, kind: ActKind, label: str, *, before: str = "") -> str:
    return (
        f'<form method="post"><input type="hidden" name="incident" value="{number}">\n<p class="buttons">{before}'
        f'<button name="act" value="{kind.value}">{escape(label)}</button></p></form>'
    )
