"""The page that asks whether an incident was a leak: two buttons, for whoever follows a link in a message."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.grades import (
    EXAMPLES,
    GRADE_WORDS,
    MAX_COMMENT_CHARS,
    RULE,
    RULE_NOTE,
    Grade,
    GradeAnswer,
    answer_in_words,
    counting,
    why_not_counted,
)
from tidegauge.core.incidents.wording import capitalised, incident_sentence
from tidegauge.web.access import Viewer
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.headlines import noun, owners_job
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.messages.untrusted import MAX_REMARK_CHARS, tamed
from tidegauge_exporter.reports.html_page import lead, moment, page, section
from tidegauge_exporter.reports.incident_sections import incident_tone

_NO_EFFECT: Final = (
    "The answer changes nothing about the job; it is counted in the precision of this site's notifications "
    "(<code>tidegauge policy grade</code>)."
)
_FORM: Final = f"""<form method="post">
<input type="hidden" name="incident" value="{{number}}">
<p><label>Comment, if you like: <input name="comment" maxlength="{MAX_COMMENT_CHARS}" size="50"></label></p>
<p class="buttons"><button name="grade" value="{Grade.LEAK.value}">It is a leak</button>
<button name="grade" value="{Grade.NOT_A_LEAK.value}">It is not a leak</button></p>
</form>"""
_NO_INCIDENT: Final = """<p>The address of this page ends with the number of an incident, as in
<code>/grade?incident=12</code>.</p>
<ul>
<li>In the Slack message, the mail and the report, open the link <b>Say whether it is a leak</b>.</li>
<li><code>tidegauge policy grade</code> lists the numbers of incidents without an answer,
<code>tidegauge incidents --all</code> those of all incidents that you may see.</li>
</ul>
<form method="get">
<p><label>Number of the incident: <input name="incident" inputmode="numeric" pattern="[0-9]+" required size="8"></label>
<button>Open</button></p>
</form>"""


def render_no_question() -> str:
    """For whoever comes without the number of an incident: where it is to be found."""
    heading = "This page asks about one incident: which?"
    return page(
        heading, [lead(heading, tone="note", remarks=[], figures=[]), section("Where its number is", _NO_INCIDENT)]
    )


def render_question(
    incident: Incident, answers: Sequence[GradeAnswer], viewer: Viewer, *, yours: GradeAnswer | None, links: Links
) -> str:
    """The page for one person; ``answers`` of everybody, oldest first, and ``yours``, the last of theirs. Texts that
    others chose are escaped."""
    told = tamed(incident)
    number = incident.number
    report = links.incident(number)
    parts = [
        f'<header><p class="meta"><span>Incident <b>{number}</b></span></p></header>',
        lead(incident_sentence(told), tone=incident_tone(told), remarks=[], figures=[]),
        _standing(yours, answers),
        section("Was this a leak?", _question(incident, viewer)),
        _answers(answers),
        f'<p class="links"><a href="{escape(report)}">Report</a></p>' if report else "",
    ]
    return page(f"Was it a leak? {noun(told)} in {owners_job(told)} (incident {number})", parts)


def _question(incident: Incident, viewer: Viewer) -> str:
    """Who answers, and how; or why nobody can here."""
    if not incident.key.cause.is_growth:
        return "<p>This incident is a fact, not a forecast: there is nothing to grade.</p>"
    if viewer.name is None:
        return (
            "<p>This service asks nobody for a name, so it cannot tell who answers. On the head, the service's user or "
            f"root does by <code>tidegauge policy grade {incident.number} leak</code> or <code>not-a-leak</code>.</p>"
        )
    you = f'<p class="muted">You answer as {escape(tidy(viewer.name, MAX_REMARK_CHARS))}.</p>'
    return f"{_rule()}\n{_FORM.format(number=incident.number)}\n{you}"


def _standing(yours: GradeAnswer | None, answers: Sequence[GradeAnswer]) -> str:
    """Whether the viewer's answer counts."""
    if yours is None:
        return ""
    why_not = why_not_counted(yours, answers, when=moment)
    said = "Your answer is recorded, and it counts." if why_not is None else f"Your answer is recorded. {why_not}"
    return section("Your answer", f"<p>{escape(tidy(said, MAX_REMARK_CHARS))}</p>")


def _rule() -> str:
    """Which answer is right."""
    rows = "".join(
        f"<tr><td>{capitalised(GRADE_WORDS[grade])}</td><td>{escape(capitalised(RULE[grade]))}."
        f"<small>For example: {escape(_examples(grade))}.</small></td></tr>"
        for grade in Grade
    )
    return f'<table class="timed">{rows}</table>\n<p>{escape(RULE_NOTE)} {_NO_EFFECT}</p>'


def _examples(grade: Grade) -> str:
    return "; ".join(text for answer, text in EXAMPLES if answer is grade)


def _answers(answers: Sequence[GradeAnswer]) -> str:
    counts = counting(answers)
    if counts is None:
        return ""
    rows = "".join(
        f"<tr><td>{moment(one.at_unix_s)}</td><td>{escape(capitalised(tidy(answer_in_words(one), MAX_REMARK_CHARS)))}"
        f"{'<small>this one counts</small>' if one is counts else ''}</td></tr>"
        for one in answers
    )
    return section("Answers so far", f'<table class="timed">{rows}</table>')
