"""Decisions about an incident and their outcomes in words, for a thread and for the owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, DecisionStatus, Disposition, Outcome
from tidegauge.core.incidents.acts import (
    PersonAct,
    acknowledgement,
    act_in_words,
    exemption_in_force,
    who_acted,
)
from tidegauge.core.incidents.wording import capitalised
from tidegauge_exporter.messages.text import clock, tidy

DONE_SIGN: Final = "\N{WHITE HEAVY CHECK MARK}"
FAILED_SIGN: Final = "\N{CROSS MARK}"
UNSURE_SIGN: Final = "\N{BLACK QUESTION MARK ORNAMENT}"
BUSY_SIGN: Final = "\N{HOURGLASS WITH FLOWING SAND}"
HELD_SIGN: Final = "\N{RAISED HAND}"
WOULD_SIGN: Final = "\N{EYES}"


ACKNOWLEDGED_SIGN: Final = "\N{BUST IN SILHOUETTE}"
EXEMPT_SIGN: Final = "\N{RAISED HAND}"
MAX_WHO_CHARS: Final = 64


def people_lines(acts: Sequence[PersonAct], *, now_unix_s: float) -> list[str]:
    """Who is looking at an incident, and who exempted its job until when; nothing if nobody did."""
    by, exempted = acknowledgement(acts), exemption_in_force(acts, now_unix_s=now_unix_s)
    lines = []
    if by is not None:
        when = clock(by.at_unix_s, now_unix_s)
        lines.append(f"{ACKNOWLEDGED_SIGN} Acknowledged by {_who(by)}{f', {when}' if when else ''}.")
    if exempted is not None and exempted.until_unix_s is not None:
        until = clock(exempted.until_unix_s, now_unix_s) or "a later time"
        lines.append(f"{EXEMPT_SIGN} No actions on this attempt of the job until {until}, by {_who(exempted)}.")
    return lines


def act_line(act: PersonAct) -> str:
    """What a person did, for the thread: "ada asked for evidence, on Slack"."""
    words = act_in_words(act, when=lambda at_unix_s: clock(at_unix_s, act.at_unix_s) or "a later time")
    return f"{ACKNOWLEDGED_SIGN} {capitalised(tidy(words, MAX_WHO_CHARS * 4))}."


def _who(act: PersonAct) -> str:
    return tidy(who_acted(act), MAX_WHO_CHARS)


class Roles(NamedTuple):
    """The words for the job and the owner, by reader."""

    job: str
    owner: str


IN_CHANNEL: Final = Roles("the job", "the owner")
TO_OWNER: Final = Roles("your job", "you")


class _Words(NamedTuple):
    name: str
    to_do: str
    doing: str
    done: str


_WORDS: Final = {
    ActionKind.NOTIFY: _Words("notification", "notify {owner}", "notifying {owner}", "notified {owner}"),
    ActionKind.ANNOTATE: _Words("annotation", "annotate {job}", "annotating {job}", "annotated {job}"),
    ActionKind.SNAPSHOT: _Words(
        "evidence request",
        "request evidence from {job}",
        "requesting evidence from {job}",
        "requested evidence from {job}: allocating line and holder",
    ),
    ActionKind.CAP: _Words(
        "memory cap",
        "cap the memory of {job} at its share",
        "capping the memory of {job} at its share",
        "capped the memory of {job} at its share",
    ),
    ActionKind.CHECKPOINT: _Words(
        "checkpoint", "checkpoint {job}", "waiting for {job} to checkpoint", "{job} has saved a checkpoint"
    ),
    ActionKind.REQUEUE: _Words("requeue", "requeue {job}", "requeueing {job}", "requeued {job}: it starts again"),
    ActionKind.HOLD: _Words(
        "hold", "stop and hold {job}", "stopping {job} to hold it", "stopped {job}: held until a person releases it"
    ),
    ActionKind.CANCEL: _Words("cancellation", "cancel {job}", "cancelling {job}", "cancelled {job}"),
}


class Deed(NamedTuple):
    """A decision, in words."""

    sign: str
    sentence: str
    """The outcome, without a full stop at its end."""
    remark: str
    """The answer of the scheduler or the job; may be empty."""
    at_unix_s: float


def deed(record: DecisionRecord, roles: Roles = IN_CHANNEL) -> Deed:
    """The words for a tamed decision."""
    decision = record.decision
    sign, sentence = _sign_and_sentence(record, roles)
    if record.outcome is Outcome.DONE and decision.action is ActionKind.NOTIFY and record.detail:
        # It says that the owner was notified, and where.
        return Deed(sign, capitalised(record.detail), "", _ended_s(record))
    return Deed(sign, capitalised(sentence), record.detail or "", _ended_s(record))


def latest_deeds(records: Sequence[DecisionRecord]) -> list[Deed]:
    """The last of tamed decisions that ended, and the last after it, preferably one in progress."""
    done = [record for record in records if record.outcome is not None]
    later = records[records.index(done[-1]) + 1 :] if done else records
    busy = [record for record in later if record.decision.disposition is Disposition.DO]
    return [deed(record) for record in (*done[-1:], *(busy or later)[-1:])]


def told_at(one: Deed, now_unix_s: float) -> str:
    """The line of a deed: sign, time, sentence and remark."""
    when = clock(one.at_unix_s, now_unix_s)
    return (
        f"{one.sign} {f'{when}: ' if when else ''}{one.sentence}.{f' {capitalised(one.remark)}' if one.remark else ''}"
    )


def _ended_s(record: DecisionRecord) -> float:
    """The end of the action; without one, the time of the decision."""
    return record.decision.decided_s if record.outcome is None or record.finished_s is None else record.finished_s


def _sign_and_sentence(record: DecisionRecord, roles: Roles) -> tuple[str, str]:
    decision = record.decision
    name, to_do, doing, done = (words.format(job=roles.job, owner=roles.owner) for words in _WORDS[decision.action])
    if decision.disposition is Disposition.WOULD:
        return WOULD_SIGN, f"mode {decision.mode}, no action taken: the policy would {to_do}"
    if decision.disposition is Disposition.WITHHELD:
        return HELD_SIGN, f"{name} on hold: {decision.reason.rstrip('.')}"
    if record.outcome is None:
        return BUSY_SIGN, f"in progress: {doing}" if record.status is DecisionStatus.STARTED else f"pending: {to_do}"
    return {
        Outcome.DONE: (DONE_SIGN, done),
        Outcome.FAILED: (FAILED_SIGN, f"failed to {to_do}"),
        Outcome.UNVERIFIED: (UNSURE_SIGN, f"tried to {to_do}, but could not confirm it: please check"),
        Outcome.NO_PROOF: (UNSURE_SIGN, f"tried to {to_do}, but got no proof in time"),
        Outcome.SUPERSEDED: (FAILED_SIGN, f"did not {to_do}: the run had ended or changed"),
        Outcome.STOPPED: (FAILED_SIGN, f"did not {to_do}: actions were stopped"),
    }[record.outcome]
