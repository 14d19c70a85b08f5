"""What was done about an incident, or would have been, in words: for a thread and for the owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, DecisionStatus, Disposition, Outcome
from tidegauge.core.incidents.wording import capitalised
from tidegauge_exporter.messages.text import clock

DONE_SIGN: Final = "\N{WHITE HEAVY CHECK MARK}"
FAILED_SIGN: Final = "\N{CROSS MARK}"
UNSURE_SIGN: Final = "\N{BLACK QUESTION MARK ORNAMENT}"
BUSY_SIGN: Final = "\N{HOURGLASS WITH FLOWING SAND}"
HELD_SIGN: Final = "\N{RAISED HAND}"
WOULD_SIGN: Final = "\N{EYES}"


class Roles(NamedTuple):
    """Who is spoken of, and so who is spoken to."""

    job: str
    owner: str


IN_CHANNEL: Final = Roles("the job", "the owner")
TO_OWNER: Final = Roles("your job", "you")


class _Words(NamedTuple):
    to_do: str
    doing: str
    done: str


_WORDS: Final = {
    ActionKind.NOTIFY: _Words("tell {owner}", "telling {owner}", "told {owner}"),
    ActionKind.ANNOTATE: _Words("put a remark on {job}", "putting a remark on {job}", "put a remark on {job}"),
    ActionKind.SNAPSHOT: _Words(
        "ask {job} which line allocates and what holds it",
        "asking {job} which line allocates and what holds it",
        "asked {job} which line allocates and what holds it",
    ),
    ActionKind.CAP: _Words(
        "limit the memory of {job} to its share",
        "limiting the memory of {job} to its share",
        "limited the memory of {job} to its share",
    ),
    ActionKind.CHECKPOINT: _Words(
        "have {job} save its state", "waiting for {job} to save its state", "{job} has saved its state"
    ),
    ActionKind.REQUEUE: _Words(
        "end {job} and have it start again",
        "ending {job}, so that it starts again",
        "{job} was ended, and starts again",
    ),
    ActionKind.HOLD: _Words(
        "end {job} and hold it",
        "ending {job}, to hold it",
        "{job} was ended and is held until a person releases it",
    ),
    ActionKind.CANCEL: _Words("end {job} for good", "ending {job} for good", "{job} was ended for good"),
}


class Deed(NamedTuple):
    """A decision, in words."""

    sign: str
    """Of how it went."""
    sentence: str
    """What became of it, without a full stop at its end."""
    remark: str
    """What the scheduler or the job said of it, or what held it back; may be empty."""
    at_unix_s: float


def deed(record: DecisionRecord, roles: Roles = IN_CHANNEL) -> Deed:
    """What became of a tamed decision."""
    decision = record.decision
    sign, sentence = _sign_and_sentence(record, roles)
    if record.outcome is Outcome.DONE and decision.action is ActionKind.NOTIFY and record.detail:
        # It says that the owner was told, and where.
        return Deed(sign, capitalised(record.detail), "", _ended_s(record))
    remark = decision.reason if decision.disposition is Disposition.WITHHELD else record.detail
    return Deed(sign, capitalised(sentence), remark or "", _ended_s(record))


def latest_deeds(records: Sequence[DecisionRecord]) -> list[Deed]:
    """What a reader must know of tamed decisions, oldest first: the last that ended, and what came after it: what is
    under way, or else the last thing that would have been done or was held back."""
    done = [record for record in records if record.outcome is not None]
    later = records[records.index(done[-1]) + 1 :] if done else records
    busy = [record for record in later if record.decision.disposition is Disposition.DO]
    return [deed(record) for record in (*done[-1:], *(busy or later)[-1:])]


def told_at(one: Deed, now_unix_s: float) -> str:
    """A deed as a line: sign, time, what became of it, and the remark."""
    when = clock(one.at_unix_s, now_unix_s)
    return (
        f"{one.sign} {f'{when}: ' if when else ''}{one.sentence}.{f' {capitalised(one.remark)}' if one.remark else ''}"
    )


def _ended_s(record: DecisionRecord) -> float:
    """When it ended; of what has not, or was only considered, when it was decided."""
    return record.decision.decided_s if record.outcome is None or record.finished_s is None else record.finished_s


def _sign_and_sentence(record: DecisionRecord, roles: Roles) -> tuple[str, str]:
    decision = record.decision
    to_do, doing, done = (words.format(job=roles.job, owner=roles.owner) for words in _WORDS[decision.action])
    if decision.disposition is Disposition.WOULD:
        return WOULD_SIGN, f"the policy would {to_do}, but its mode is {decision.mode}: nothing is done"
    if decision.disposition is Disposition.WITHHELD:
        return HELD_SIGN, f"held back: {to_do}"
    if record.outcome is None:
        under_way = record.status is DecisionStatus.STARTED
        return BUSY_SIGN, f"under way: {doing}" if under_way else f"decided: {to_do}"
    return {
        Outcome.DONE: (DONE_SIGN, done),
        Outcome.FAILED: (FAILED_SIGN, f"could not {to_do}"),
        Outcome.UNVERIFIED: (UNSURE_SIGN, f"asked to {to_do}, but that was not seen to happen: please look"),
        Outcome.NO_PROOF: (UNSURE_SIGN, f"asked to {to_do}, but there was no proof in time"),
        Outcome.SUPERSEDED: (FAILED_SIGN, f"not done, because {roles.job} had ended or changed: {to_do}"),
        Outcome.STOPPED: (FAILED_SIGN, f"not done, because actions were stopped: {to_do}"),
    }[record.outcome]
