"""The parts of a page about an incident: what it is, what it knows, who is concerned, what was done and what happened.

Of an incident that is tamed (``messages.untrusted``); every text is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.evidence.words import CAUSES, CONFIDENCES, line_words
from tidegauge.core.incidents import ChangeKind, Incident, IncidentChange, IncidentState, RankFinding
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.incidents.wording import (
    CLOSURES,
    capitalised,
    change_in_words,
    evidence_sentences,
    incident_sentence,
    list_ranks,
    meaning,
    rate,
)
from tidegauge.core.units import format_bytes, format_duration
from tidegauge.core.verdicts import Severity
from tidegauge_exporter.messages.action_text import deed
from tidegauge_exporter.messages.headlines import as_of, seconds_left
from tidegauge_exporter.messages.text import time_left
from tidegauge_exporter.reports.html_page import lead, moment, section
from tidegauge_exporter.reports.rank_table import RankRow, rank_table

MAX_LINES: Final = 200
"""Of the history, and of what was decided: the newest."""


def lead_section(incident: Incident, now_unix_s: float) -> str:
    stale = "A node of the job does not report: the figures are old, and nothing is done on them."
    return lead(
        incident_sentence(as_of(incident, now_unix_s)),
        tone=incident_tone(incident),
        remarks=[
            _standing(incident),
            stale if incident.stale else None,
            _ended(incident.explanation or ""),
            " ".join(evidence_sentences(incident)) or meaning(incident),
        ],
        figures=_figures(incident, now_unix_s),
    )


def incident_tone(incident: Incident) -> str:
    if incident.state is IncidentState.OPEN:
        return str(incident.severity.value)
    return "ok" if incident.state is IncidentState.CLOSED else str(Severity.NOTE.value)


def _standing(incident: Incident) -> str | None:
    """What the headline, which is about the alarm, does not say."""
    if incident.state is IncidentState.RECOVERING:
        return "It has stopped since, and the incident is closed if it does not come back for a while."
    if incident.state is IncidentState.CLOSED:
        how = f": {CLOSURES[incident.closure]}" if incident.closure is not None else ""
        return f"This incident is closed{how}. What is said here is as of the last alarm."
    return None


def _figures(incident: Incident, now_unix_s: float) -> list[tuple[str | None, str]]:
    left = seconds_left(incident, now_unix_s)
    end_s = now_unix_s if incident.closed_unix_s is None else incident.closed_unix_s
    return [
        (_state(incident), f"opened {moment(incident.opened_unix_s)}"),
        (None if left is None else time_left(left), "until out of memory"),
        (format_duration(max(end_s - incident.opened_unix_s, 0.0)), "open so far" if incident.is_open else "was open"),
        (capitalised(_ranks(incident)), f"of {incident.world_size:,} in the job"),
        (rate(incident.bytes_per_step), "growth per step"),
        (None if incident.grown_bytes is None else format_bytes(incident.grown_bytes), "gained since it began"),
        (None if incident.onset_step is None else f"{incident.onset_step:,}", "began at step"),
    ]


def _ranks(incident: Incident) -> str:
    return list_ranks(incident.ranks, common=incident.common, left_out=incident.ranks_left_out)


def _state(incident: Incident) -> str:
    now = incident.severity if incident.state is IncidentState.OPEN else incident.state
    worst = incident.worst_severity
    was_worse = worst is not None and worst.level > incident.severity.level
    return capitalised(now.value) + (f" (was {worst.value})" if worst is not None and was_worse else "")


def ranks_section(incident: Incident) -> str:
    if not incident.findings:
        return ""
    heading = "Ranks concerned" if incident.state is IncidentState.OPEN else "Ranks concerned, at the last alarm"
    return section(heading, rank_table([_row(finding) for finding in incident.findings]))


def _evidence_cells(brief: EvidenceBrief) -> str:
    grew = None if brief.grown_bytes is None else format_bytes(brief.grown_bytes)
    if grew is not None and brief.window_steps:
        grew += f" in {brief.window_steps:,} steps"
    where = None if brief.line is None else f"<code>{escape(line_words(brief.line))}</code>"
    held = None if brief.holder is None else f"<code>{escape(brief.holder)}</code>"
    why = f"{escape(capitalised(CAUSES[brief.cause]))}<small>{escape(CONFIDENCES[brief.confidence])}</small>"
    cells = (str(brief.rank), where, grew, held, why)
    return "".join(f"<td>{'not known' if cell is None else cell}</td>" for cell in cells)


def _row(finding: RankFinding) -> RankRow:
    return RankRow(
        rank=finding.rank,
        hostname=finding.hostname,
        gpu=finding.gpu,
        gpu_name=None,
        uuid=finding.uuid,
        verdict=finding.verdict,
        allocated_bytes=finding.allocated_bytes,
        reserved_bytes=finding.reserved_bytes,
        nontorch_bytes=finding.nontorch_bytes,
        limit_bytes=finding.limit_bytes,
        oom=finding.oom,
    )


def evidence_section(incident: Incident) -> str:
    """The line, the holder and the cause, a row for each rank that was looked into."""
    if not incident.evidence:
        return ""
    head = "".join(f"<th>{name}</th>" for name in ("Rank", "Allocated at", "Grew", "Held by", "Cause"))
    rows = "\n".join(f"<tr>{_evidence_cells(one)}</tr>" for one in incident.evidence)
    table = f'<div class="scroll"><table class="evidence">\n<tr>{head}</tr>\n{rows}\n</table></div>'
    more = f"<code>tidegauge report {incident.number}</code> makes a page of it, with flame graph and allocator map."
    return section("What keeps the memory", f'{table}\n<p class="muted">{more}</p>')


def deeds_section(records: Sequence[DecisionRecord], *, is_open: bool) -> str:
    """What was done or would have been, oldest first."""
    if not records:
        return section("What was done", f'<p class="muted">Nothing{" so far" if is_open else ""}.</p>')
    lines = []
    for record in records[-MAX_LINES:]:
        done, decision = deed(record), record.decision
        origin = f"rule {decision.rule}, rung {decision.rung + 1}"
        why = origin if done.remark == decision.reason else f"{origin}: {decision.reason}"
        lines.append((done.at_unix_s, f"{_ended(done.sentence)} {_ended(done.remark)}".rstrip(), why))
    return section("What was done", _timed(lines, left_out=len(records) - len(lines)))


def history_section(changes: Sequence[IncidentChange]) -> str:
    """What happened to the incident, oldest first. New figures alone are not worth a line."""
    told = [change for change in changes if change.kind is not ChangeKind.UPDATED]
    if not told:
        return ""
    shown = told[-MAX_LINES:]
    lines = [(change.at_unix_s, _ended(change_in_words(change)), "") for change in shown]
    return section("What happened", _timed(lines, left_out=len(told) - len(lines)))


def _timed(lines: Iterable[tuple[float, str, str]], *, left_out: int) -> str:
    """Time, what happened, and why."""
    rows = "\n".join(
        f"<tr><td>{moment(at_unix_s)}</td><td>{escape(text)}{f'<small>{escape(why)}</small>' if why else ''}</td></tr>"
        for at_unix_s, text, why in lines
    )
    more = f'<p class="muted">{left_out:,} earlier lines are left out.</p>\n' if left_out else ""
    return f'{more}<div class="scroll"><table class="timed">\n{rows}\n</table></div>'


def _ended(text: str) -> str:
    """As a sentence."""
    return capitalised(text) + ("" if not text or text.endswith((".", "!", "?", "\u2026")) else ".")
