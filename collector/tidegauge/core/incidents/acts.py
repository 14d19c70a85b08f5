"""Acts of people on an incident: acknowledge it, exempt its job from actions for a time, ask for evidence, grade it.

Values only. ``cluster.api.act_api`` decides who may, and writes each act down, refused ones as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.incidents.grades import Grade

MAX_EXEMPT_HOURS = 7 * 24
DEFAULT_EXEMPT_HOURS = 24
MAX_REQUEST_ID_CHARS = 64


class ActKind(str, Enum):
    """What a person wants."""

    ACKNOWLEDGE = "acknowledge"
    """To say "I am looking at it". The policy goes on as before."""
    UNACKNOWLEDGE = "unacknowledge"
    """To take that back, for whoever said it."""
    EXEMPT = "exempt"
    """To keep the policy from acting on this attempt of the job until a time; a time that is past ends it."""
    SNAPSHOT = "snapshot"
    """To ask the rank to look at first for evidence: allocation stacks and snapshots."""
    LEAK = "leak"
    NOT_A_LEAK = "not_a_leak"

    @property
    def grade(self) -> Optional[Grade]:
        """The answer that it is to whether the incident was a leak."""
        return {ActKind.LEAK: Grade.LEAK, ActKind.NOT_A_LEAK: Grade.NOT_A_LEAK}.get(self)


class ActWay(str, Enum):
    """How a person asked."""

    API = "api"
    """The HTTP API: its page, a command, ``tidegauge top``."""
    SLACK = "slack"
    """A button on Slack, passed on by the notifier."""


class ActOutcome(str, Enum):
    """What became of an act."""

    BEGUN = "begun"
    """Written down; whether it was done is not known yet."""
    DONE = "done"
    REFUSED = "refused"
    """The person may not, or it makes no sense now."""
    FAILED = "failed"


class PersonAct(NamedTuple):
    """An act, as it is written down."""

    request_id: str
    """The same for each repetition of one request, which is done once."""
    number: int
    """Of the incident."""
    kind: ActKind
    by: Optional[str]
    """Login name; ``None``: nobody here is known under the account on Slack."""
    as_admin: bool
    """They may see all jobs; else they own this one, or were refused."""
    at_unix_s: float
    way: ActWay = ActWay.API
    sender: Optional[str] = None
    """The account on Slack, ``TEAM/USER``."""
    until_unix_s: Optional[float] = None
    """The end of an exemption."""
    outcome: ActOutcome = ActOutcome.BEGUN
    detail: Optional[str] = None
    """For people: why it was refused, what the rank answered."""


_DONE_WORDS = {
    ActKind.ACKNOWLEDGE: "acknowledged the incident",
    ActKind.UNACKNOWLEDGE: "took the acknowledgement back",
    ActKind.EXEMPT: "exempted the job from actions",
    ActKind.SNAPSHOT: "asked for evidence",
    ActKind.LEAK: "said that it is a leak",
    ActKind.NOT_A_LEAK: "said that it is not a leak",
}
NOT_SILENCED = "The policy goes on as before."
"""What an acknowledgement does not do."""


def acknowledgement(acts: Sequence[PersonAct]) -> Optional[PersonAct]:
    """The latest acknowledgement that nobody took back; ``acts`` are oldest first."""
    said = [one for one in _done(acts) if one.kind in (ActKind.ACKNOWLEDGE, ActKind.UNACKNOWLEDGE)]
    return said[-1] if said and said[-1].kind is ActKind.ACKNOWLEDGE else None


def exemption_in_force(acts: Sequence[PersonAct], *, now_unix_s: float) -> Optional[PersonAct]:
    """The latest exemption, if its time is not over; ``acts`` are oldest first."""
    said = [one for one in _done(acts) if one.kind is ActKind.EXEMPT]
    return said[-1] if said and (said[-1].until_unix_s or 0.0) > now_unix_s else None


def who_acted(act: PersonAct) -> str:
    """ "ada", "root (admin)", "a stranger on Slack"."""
    name = act.by or "somebody unknown"
    return f"{name} (admin)" if act.as_admin else name


def act_in_words(act: PersonAct, *, when: Callable[[float], str]) -> str:
    """ "ada exempted the job from actions until 14:02, on Slack"; ``when`` writes a time."""
    if act.kind is ActKind.EXEMPT and act.until_unix_s is not None and act.until_unix_s <= act.at_unix_s:
        what = "ended the exemption of the job"
    else:
        what = _DONE_WORDS[act.kind]
        what += f" until {when(act.until_unix_s)}" if act.until_unix_s is not None else ""
    on = ", on Slack" if act.way is ActWay.SLACK else ""
    if act.outcome is ActOutcome.DONE:
        return f"{who_acted(act)} {what}{on}"
    why = f": {act.detail}" if act.detail else ""
    state = "in progress" if act.outcome is ActOutcome.BEGUN else act.outcome.value
    return f"{who_acted(act)}, {act.kind.value.replace('_', ' ')}{on}, {state}{why}"


def told_acts(acts: Sequence[PersonAct]) -> Sequence[PersonAct]:
    """Those that belong to the story of an incident: not the refused ones, which the log has."""
    return [one for one in acts if one.outcome is not ActOutcome.REFUSED]


def _done(acts: Sequence[PersonAct]) -> Sequence[PersonAct]:
    return [one for one in acts if one.outcome is ActOutcome.DONE]
