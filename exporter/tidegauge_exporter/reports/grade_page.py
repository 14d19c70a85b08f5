"""The page that asks whether an incident was a leak, to which messages link."""

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
from tidegauge.http.access import Viewer
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.headlines import noun, owners_job
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.messages.untrusted import MAX_REMARK_CHARS, tamed
from tidegauge_exporter.reports.html_page import inline, lead, listing, meta, moment, muted, page, section, with_note
from tidegauge_exporter.reports.incident_sections import incident_tone

_NO_EFFECT: Final = (
    "The answer does not affect the job; it counts toward the precision of this site's notifications "
    "(`tidegauge policy grade`)."
)
_FORM: Final = f"""<form method="post">
<input type="hidden" name="incident" value="{{number}}">
<p><label>Comment (optional): <input name="comment" maxlength="{MAX_COMMENT_CHARS}" size="50"></label></p>
<p class="buttons"><button name="grade" value="{Grade.LEAK.value}">It is a leak</button>
<button name="grade" value="{Grade.NOT_A_LEAK.value}">It is not a leak</button></p>
</form>"""
_NO_INCIDENT: Final = """<p>The address of this page ends with an incident number, as in
<code>/grade?incident=12</code>.</p>
<ul>
<li>In the Slack message, the mail or the report, open the link <b>Say whether it is a leak</b>.</li>
<li><code>tidegauge policy grade</code> lists the incidents without an answer,
<code>tidegauge incidents --all</code> all incidents that you may see.</li>
</ul>
<form method="get">
<p><label>Incident number: <input name="incident" inputmode="numeric" pattern="[0-9]+" required size="8"></label>
<button>Open</button></p>
</form>"""


def render_no_question() -> str:
    """The page for people who come without the number of an incident."""
    heading = "Which incident?"
    return page(heading, [lead(heading, tone="note"), section("Where to find its number", _NO_INCIDENT)])


def render_question(
    incident: Incident, answers: Sequence[GradeAnswer], viewer: Viewer, *, yours: GradeAnswer | None, links: Links
) -> str:
    """The page for one viewer: all ``answers``, oldest first, and ``yours``, the viewer's last."""
    told = tamed(incident)
    number = incident.number
    report = links.incident(number)
    parts = [
        meta([("Incident", str(number))]),
        lead(incident_sentence(told), tone=incident_tone(told)),
        _standing(yours, answers),
        section("Was this a leak?", _question(incident, viewer)),
        _answers(answers),
        f'<p class="links"><a href="{escape(report)}">Report</a></p>' if report else "",
    ]
    return page(f"Was it a leak? {noun(told)} in {owners_job(told)} (incident {number})", parts)


def _question(incident: Incident, viewer: Viewer) -> str:
    """The form with its viewer, or the reason why there is none."""
    if not incident.key.cause.is_growth:
        return "<p>This incident is a fact, not a forecast: there is nothing to grade.</p>"
    if viewer.name is None:
        return (
            "<p>This service asks nobody for a name, so it cannot tell who answers. On the head, the service's user or "
            f"root does by <code>tidegauge policy grade {incident.number} leak</code> or <code>not-a-leak</code>.</p>"
        )
    you = muted(f"You answer as {tidy(viewer.name, MAX_REMARK_CHARS)}.")
    return f"{_rule()}\n{_FORM.format(number=incident.number)}\n{you}"


def _standing(yours: GradeAnswer | None, answers: Sequence[GradeAnswer]) -> str:
    """The viewer's answer, and whether it counts."""
    if yours is None:
        return ""
    why_not = why_not_counted(yours, answers, when=moment)
    said = "Your answer is recorded, and it counts." if why_not is None else f"Your answer is recorded. {why_not}"
    return section("Your answer", f"<p>{escape(tidy(said, MAX_REMARK_CHARS))}</p>")


def _rule() -> str:
    rows = (
        (
            capitalised(GRADE_WORDS[grade]),
            with_note(escape(capitalised(f"{RULE[grade]}.")), f"Example: {_examples(grade)}."),
        )
        for grade in Grade
    )
    return f"{listing(rows)}\n<p>{escape(RULE_NOTE)} {inline(_NO_EFFECT)}</p>"


def _examples(grade: Grade) -> str:
    return "; ".join(text for answer, text in EXAMPLES if answer is grade)


def _answers(answers: Sequence[GradeAnswer]) -> str:
    counts = counting(answers)
    if counts is None:
        return ""
    rows = (
        (
            moment(one.at_unix_s),
            with_note(
                escape(capitalised(tidy(answer_in_words(one), MAX_REMARK_CHARS))),
                "this one counts" if one is counts else None,
            ),
        )
        for one in answers
    )
    return section("Answers so far", listing(rows))
