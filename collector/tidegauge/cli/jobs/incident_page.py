"""The page of one incident: figures, ranks, evidence, timeline and next action. Functions take values and return text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from tidegauge.cli.timeline import MODE_WORDS, Entry
from tidegauge.cli.times import clock, day, moment
from tidegauge.core.evidence.words import brief_sentences
from tidegauge.core.incidents import Incident, IncidentState, RankFinding
from tidegauge.core.incidents.actions import USER_BREAKER, DecisionRecord, LoopStatus
from tidegauge.core.incidents.wording import CLOSURES, further_name, incident_sentence, meaning, rate, since, time_left
from tidegauge.core.text import one_line
from tidegauge.core.units import format_band, format_bytes, format_count, format_duration

RANK_HEADER = ("rank", "host", "GPU", "pid", "step", "allocated", "reserved", "nontorch", "limit", "since step",
               "per step", "OOM in")  # fmt: skip
RANKS_GIVE_WAY = ("nontorch", "reserved", "pid", "since step", "limit", "step", "GPU", "allocated", "per step")
"""Columns of the table of ranks that are dropped on a narrow terminal, in this order."""
MAX_SENTENCE_CHARS = 1000
"""Maximum length of a sentence of evidence, characters."""
MAX_RANKS = 16
"""Rows of the table of ranks; ``--json`` has all of them."""


def headline(incident: Incident) -> str:
    """The two lines at the top."""
    title = f"incident {incident.number}: {incident.key.cause.value}, {incident.severity.value}, {incident.state.value}"
    return f"{title}\n{incident_sentence(incident)}"


def figures(incident: Incident, *, now_s: float) -> list[tuple[str, str]]:
    """Names and values of the incident as a whole."""
    job = incident.key.job
    lines = [
        ("job", ", ".join(filter(None, (incident.called.job_id, incident.group_name, f"attempt {job.attempt}",
                                        further_name(incident))))),
        ("owner", f"{incident.user_name} (uid {job.uid})"),
        ("ranks", f"{len(incident.findings) + incident.ranks_left_out} of {incident.world_size}"
                  + (", all alike: a growing workload, or a leak in shared code" if incident.common else "")),
        ("scheduler", incident.scheduler or "none"),
        ("opened", f"{moment(incident.opened_unix_s)} ({_ago(incident.opened_unix_s, now_s)})"),
        ("state", _state(incident)),
        ("severity", _severity(incident)),
        ("growth", _growth(incident)),
        ("runs out in", _end(incident)),
        ("meaning", meaning(incident)),
        ("explanation", incident.explanation),
        ("reports", ", ".join(incident.reports)),
    ]  # fmt: skip
    return [(name, text) for name, text in lines if text]


def rank_rows(incident: Incident) -> list[Sequence[str]]:
    """The ranks to look at first, under ``RANK_HEADER``."""
    return [_rank_row(finding) for finding in incident.findings[:MAX_RANKS]]


def evidence_lines(incident: Incident) -> list[tuple[str, str]]:
    """Labels and texts: line, holder, cause and advice for each rank with evidence, then the places of snapshots."""
    lines: list[tuple[str, str]] = []
    for brief in incident.evidence:
        first, *advice = brief_sentences(brief)
        lines.append((f"  rank {brief.rank}: ", one_line(first, MAX_SENTENCE_CHARS)))
        lines += [("    advice: ", one_line(sentence, MAX_SENTENCE_CHARS)) for sentence in advice]
    lines += [("  snapshot: ", one_line(place, MAX_SENTENCE_CHARS)) for place in incident.snapshots]
    if lines:
        lines.append(("  ", f"stacks, curves and memory map: `tidegauge report {incident.number}`"))
    return lines


def story(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """Labels and texts of the timeline, with a line for each new day."""
    lines: list[tuple[str, str]] = []
    today = ""
    for entry in entries:
        if day(entry.at_s) != today:
            today = day(entry.at_s)
            lines.append(("", today))
        lines.append((f"  {clock(entry.at_s)}  ", entry.text))
    return lines


def below_ranks(
    incident: Incident, entries: Sequence[Entry], records: Sequence[DecisionRecord], status: LoopStatus
) -> list[tuple[str, str]]:
    """Labels and texts below the table of ranks: evidence, timeline and next action."""
    evidence = evidence_lines(incident)
    lines = [("", ""), ("", "Evidence"), *evidence] if evidence else []
    lines += [("", ""), ("", "What happened"), *story(entries)]
    lines += [("", ""), ("", "What happens next"), ("  ", what_next(incident, records, status))]
    return lines


def _held_back(records: Sequence[DecisionRecord], status: LoopStatus) -> Optional[str]:
    """The reason why the circuit breaker of the job's user is open, if it is."""
    reasons = tuple(one.decision.reason for one in records if one.decision.brake == USER_BREAKER)
    return next((why for why in status.user_breakers if why.startswith(reasons)), None)


def what_next(incident: Incident, records: Sequence[DecisionRecord], status: LoopStatus) -> str:
    """The next action, and the command that changes it."""
    if not incident.is_open:
        return "Nothing: the incident is closed."
    ours = {record.decision.decision_id for record in records}
    for under_way in status.under_way:
        if under_way.decision_id in ours:
            return f"Under way: {under_way.action.value}: {under_way.what}."
    if status.store_problem is not None:
        return f"Nothing until the database works again: {status.store_problem}"
    if status.paused is not None:
        return f"Nothing until `tidegauge policy resume`: actions are paused {status.paused}."
    if status.breaker is not None:
        return f"Nothing until `tidegauge policy resume`: the circuit breaker is open ({status.breaker})."
    held = _held_back(records, status)
    if held is not None:
        return f"Nothing for this user's jobs until `tidegauge policy resume`: {held}."
    if incident.stale:
        return "Nothing until every node of the job reports again: the figures are stale."
    if incident.state is IncidentState.RECOVERING:
        return "The incident closes unless the problem returns."
    mode = f"The policy's mode is {status.mode}: {MODE_WORDS[status.mode]}."
    return f"The policy's rules apply (`tidegauge policy show`). {mode}"


def _ago(unix_s: float, now_s: float) -> str:
    return f"{format_duration(max(now_s - unix_s, 0.0))} ago"


def _state(incident: Incident) -> str:
    parts = [incident.state.value]
    if incident.recovering_since_unix_s is not None and incident.state is IncidentState.RECOVERING:
        parts.append(f"since {moment(incident.recovering_since_unix_s)}")
    if incident.closed_unix_s is not None:
        parts.append(f"at {moment(incident.closed_unix_s)}")
    text = " ".join(parts)
    if incident.closure is not None:
        text += f": {CLOSURES[incident.closure]}"
    if incident.flaps:
        text += f"; returned {format_count(incident.flaps, 'time')} during recovery"
    if incident.stale:
        text += "; a node of the job is not reporting: the figures are stale, and no action is taken on them"
    return text


def _severity(incident: Incident) -> str:
    worst = incident.worst_severity
    was_worse = worst is not None and worst is not incident.severity
    return incident.severity.value + (f" (peak: {worst.value})" if worst is not None and was_worse else "")


def _growth(incident: Incident) -> Optional[str]:
    band = incident.bytes_per_step
    if band is None:
        return None
    grown = "" if incident.grown_bytes is None else f", {format_bytes(incident.grown_bytes)} gained"
    return f"{rate(band)} per step ({format_band(band, format_bytes)}){grown}{since(incident.onset_step)}"


def _end(incident: Incident) -> Optional[str]:
    end = time_left(incident.seconds_to_oom) if incident.is_open else None
    return f"{end} (from {moment(incident.updated_unix_s)})" if end else None


def _rank_row(finding: RankFinding) -> Sequence[str]:
    verdict = finding.verdict
    return (
        str(finding.rank),
        finding.hostname if finding.pod is None else f"{finding.pod} on {finding.hostname}",
        "-" if finding.gpu is None else str(finding.gpu),
        str(finding.process.pid),
        str(finding.step),
        format_bytes(finding.allocated_bytes),
        format_bytes(finding.reserved_bytes),
        "-" if finding.nontorch_bytes is None else format_bytes(finding.nontorch_bytes),
        "-" if finding.limit_bytes is None else format_bytes(finding.limit_bytes),
        "-" if verdict.onset_step is None else str(verdict.onset_step),
        rate(verdict.bytes_per_step) or "-",
        time_left(verdict.seconds_to_oom, verdict.steps_to_oom) or "-",
    )
