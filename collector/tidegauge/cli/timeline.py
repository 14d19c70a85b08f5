"""The timeline of an incident: its changes, decisions and their outcomes. Functions take values and return text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tidegauge.cli.times import moment
from tidegauge.core.incidents import ChangeKind
from tidegauge.core.incidents.actions import Decision, DecisionRecord, DecisionStatus, Disposition
from tidegauge.core.incidents.acts import PersonAct, act_in_words, told_acts
from tidegauge.core.incidents.grades import GradeAnswer, answer_in_words
from tidegauge.core.incidents.wording import OUTCOME_WORDS


class Entry(NamedTuple):
    """A line of the timeline."""

    at_s: float
    text: str


def timeline(
    history: Iterable[Mapping[str, Any]], records: Iterable[DecisionRecord], answers: Iterable[GradeAnswer] = (),
    acts: Sequence[PersonAct] = (),
) -> list[Entry]:  # fmt: skip
    """The entries, oldest first, from ``history`` as the API returns it; updated figures alone have no entry."""
    entries = [Entry(raw["at_unix_s"], raw["text"]) for raw in history if raw["kind"] != ChangeKind.UPDATED.value]
    for record in records:
        entries += _entries(record)
    entries += [Entry(answer.at_unix_s, f"graded: {answer_in_words(answer)}") for answer in answers]
    others = [act for act in told_acts(acts) if act.kind.grade is None]
    entries += [Entry(act.at_unix_s, act_in_words(act, when=moment)) for act in others]
    return sorted(entries, key=lambda entry: entry.at_s)


def whence(decision: Decision) -> str:
    """The part of the policy that made a decision: "rule leak-with-checkpoint, rung 2, try 2"."""
    again = f", try {decision.attempt}" if decision.attempt > 1 else ""
    return f"rule {decision.rule}, rung {decision.rung + 1}{again}"


def became(record: DecisionRecord) -> str:
    """The outcome of a decision in a few words."""
    decision = record.decision
    if decision.disposition is Disposition.WOULD:
        return f"not taken (mode {decision.mode})"
    if decision.disposition is Disposition.WITHHELD:
        return f"on hold ({decision.brake})"
    if record.outcome is not None:
        return OUTCOME_WORDS[record.outcome]
    return "in progress" if record.status is DecisionStatus.STARTED else "queued"


def last_action(records: Sequence[DecisionRecord]) -> str:
    """The last action in a table: "checkpoint: done", "would requeue", or "-" without a decision."""
    if not records:
        return "-"
    decision = records[-1].decision
    if decision.disposition is Disposition.WOULD:
        return f"would {decision.action.value}"
    return f"{decision.action.value}: {became(records[-1])}"


def _entries(record: DecisionRecord) -> list[Entry]:
    decision = record.decision
    why = decision.reason if whence(decision) in decision.reason else f"({whence(decision)}) {decision.reason}"
    if decision.disposition is Disposition.WOULD:
        return [Entry(decision.decided_s, f"would {decision.action.value}: {why}")]
    if decision.disposition is Disposition.WITHHELD:
        return [Entry(decision.decided_s, f"{decision.action.value} on hold (brake {decision.brake}): {why}")]
    entries = [Entry(decision.decided_s, f"decided: {decision.action.value}: {why}")]
    if record.started_s is not None:
        times = f" (start {record.starts}, after a crash or a temporary failure)" if record.starts > 1 else ""
        entries.append(Entry(record.started_s, f"{decision.action.value}: started{times}"))
    if record.outcome is not None and record.finished_s is not None:
        detail = f": {record.detail}" if record.detail else ""
        entries.append(Entry(record.finished_s, f"{decision.action.value}: {OUTCOME_WORDS[record.outcome]}{detail}"))
    return entries
