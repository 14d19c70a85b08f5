"""Lines of a story for the thread of its incident, each with a key, so that it is sent once."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from typing import NamedTuple

from tidegauge.core.incidents import ChangeKind, Incident, IncidentChange
from tidegauge.core.incidents.actions import Decision, DecisionRecord, DecisionStatus, Disposition
from tidegauge.core.incidents.acts import ActOutcome, PersonAct
from tidegauge.core.incidents.wording import best_evidence
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.ports import Message

MAX_CONSIDERED = 5
"""Bound of decisions not carried out (``would``, ``withheld``) in one thread; the report has all of them."""
EXEMPT = "exempt"
"""The brake that holds back whatever acts on a server: that it never does is said of no rung by itself."""
MAX_LINES_AT_ONCE = 20
"""Bound of lines that are sent at once after an outage of the chat."""

ACT_LINE_EVERY_S = 600.0
"""Of one person's acts of one kind a line is sent once in so long: a button that somebody presses on and on would take
the channel's turns from other incidents. The head says what holds now, the report has all of them."""


class StoryLine(NamedTuple):
    """A reply in the thread of an incident."""

    key: str
    at_unix_s: float
    what: IncidentChange | DecisionRecord | PersonAct


class Batch(NamedTuple):
    """Lines to send now, oldest first."""

    left_out: tuple[StoryLine, ...]
    """Lines of which only the number is sent."""
    lines: tuple[StoryLine, ...]


def lines_of(story: Story) -> list[StoryLine]:
    """All lines of a story, by time. The head of the thread has moving figures."""
    if story.replicas is None:
        changes = [_of_change(change) for change in _history(story) if change.kind is not ChangeKind.UPDATED]
    else:
        changes = _of_replicas(story)
    acts = {line.key: line for line in map(_of_act, reversed(_done(story.acts)))}  # the first of those with one key
    return sorted([*changes, *_of_decisions(story), *acts.values()], key=lambda line: line.at_unix_s)


def _of_replicas(story: Story) -> list[StoryLine]:
    """Of a server's replicas: the beginning, each severity and each finding once, and the end. How many they are, and
    that they recover, is in the head: the history of one that is long over is not there any more, and what one of them
    does is no news of the others."""
    lines: dict[str, StoryLine] = {}
    for change in story.history:
        if change.kind is ChangeKind.OPENED and change.incident.number == story.incident.number:
            line = _of_change(change)
        elif change.kind is ChangeKind.ESCALATED:
            key = digest("change", change.kind.value, change.incident.severity.value)
            line = StoryLine(key, change.at_unix_s, change)
        elif change.kind is ChangeKind.EVIDENCE:
            key = digest("change", change.kind.value, known(change.incident) or "")
            line = StoryLine(key, change.at_unix_s, change)
        else:
            continue
        lines.setdefault(line.key, line)
    return [*lines.values(), *([] if story.incident.is_open else [_of_change(_end(story.incident))])]


def _of_act(act: PersonAct) -> StoryLine:
    when = int(act.at_unix_s // ACT_LINE_EVERY_S)
    ends = act.until_unix_s is not None and act.until_unix_s <= act.at_unix_s
    return StoryLine(digest("act", act.by or "", act.kind.value, str(ends), str(when)), act.at_unix_s, act)


def new_lines(story: Story, told: Container[str], *, told_before_unix_s: float) -> Batch:
    """The lines that are not in ``told`` and not older than ``told_before_unix_s``."""
    untold = [line for line in lines_of(story) if line.key not in told and not line.at_unix_s < told_before_unix_s]
    first = max(0, len(untold) - MAX_LINES_AT_ONCE)
    return Batch(tuple(untold[:first]), tuple(untold[first:]))


def left_out_message(count: int) -> Message:
    """The message in place of lines that are left out."""
    lines = "1 earlier update" if count == 1 else f"{count} earlier updates"
    return Message(f"{lines} skipped after an outage of this channel; the incident report has all of them.")


def face(story: Story) -> str:
    """A digest of the facts that update the head of a thread at once; other figures may wait."""
    incident, latest = story.incident, _latest_action(story)
    return digest(
        incident.state.value,
        incident.severity.value,
        "" if incident.closure is None else incident.closure.value,
        "stale" if incident.stale else "",
        str(len(incident.reports)),
        known(incident) or "",
        "" if latest is None else _state_of(latest),
        *([] if story.replicas is None else story.replicas.names),
        *people_face(story),
    )


def people_face(story: Story) -> list[str]:
    """The facts of what people did, for a digest; none if nobody did anything."""
    done = _done(story.acts)
    return [done[-1].request_id, str(len(done))] if done else []


def _done(acts: Sequence[PersonAct]) -> list[PersonAct]:
    return [act for act in acts if act.outcome is ActOutcome.DONE]


def known(incident: Incident) -> str | None:
    """A digest of the evidence: line, cause, confidence, and whether there is a holder. ``None``: no evidence."""
    best = best_evidence(incident)
    if best is None:
        return None
    held = "" if best.holder is None else "held"
    searching = ["searching"] if best.searching else []
    return digest(repr(best.line), held, best.cause.value, best.confidence.value, *searching)


def has_ended(record: DecisionRecord) -> bool:
    """True if the decision was carried out or tried, with its ``outcome``."""
    return record.status is DecisionStatus.FINISHED and record.outcome is not None


def ended_s(record: DecisionRecord) -> float:
    """The end on the policy clock; if unknown, the time of the decision."""
    return record.decision.decided_s if record.finished_s is None else record.finished_s


def digest(*texts: str) -> str:
    """A short digest of the texts: names of jobs and rules may be long, and may hold anything."""
    whole = "\0".join(texts).encode(errors="surrogatepass")
    return hashlib.blake2b(whole, digest_size=9).hexdigest()


def incident_key(incident: Incident) -> str:
    """The key in the journal."""
    return key_of_incident(incident.number, incident.opened_unix_s)


def key_of_incident(number: int, opened_unix_s: float) -> str:
    """The number alone would not do: a new database begins at 1 again."""
    return f"incident/{number}@{round(opened_unix_s * 1000)}"


def decision_digest(decision: Decision) -> str:
    """A digest of one decision: ids have the incident's number, which a new database gives again."""
    return decision_key(decision.decision_id, decision.decided_s)


def decision_key(decision_id: str, decided_s: float) -> str:
    return digest(decision_id, f"{decided_s:.3f}")


def rung_digest(decision: Decision) -> str:
    """A digest of what asked for it: the same for all replicas of a server, and for all tries."""
    return digest(decision.rule, str(decision.rung))


def _history(story: Story) -> Sequence[IncidentChange]:
    """The history with the end of the incident, even if the given history lacks it."""
    incident = story.incident
    if incident.is_open or any(change.kind is ChangeKind.CLOSED for change in story.history):
        return story.history
    return (*story.history, _end(incident))


def _end(incident: Incident) -> IncidentChange:
    at_unix_s = incident.updated_unix_s if incident.closed_unix_s is None else incident.closed_unix_s
    return IncidentChange(ChangeKind.CLOSED, at_unix_s, incident)


def _of_change(change: IncidentChange) -> StoryLine:
    # An incident is closed once, whatever the clock said.
    moment = "" if change.kind is ChangeKind.CLOSED else repr(change.at_unix_s)
    return StoryLine(digest("change", change.kind.value, moment), change.at_unix_s, change)


def _of_decisions(story: Story) -> list[StoryLine]:
    """Lines of ended decisions, and of the first few kinds of decisions not carried out."""
    ended: dict[str, StoryLine] = {}
    for record in filter(has_ended, story.decisions):
        key = _ended_key(record) if story.replicas is None else _ended_key_of_server(record)
        ended.setdefault(key, StoryLine(key, ended_s(record), record))
    considered: dict[str, StoryLine] = {}
    for record in story.decisions:
        decision = record.decision
        if decision.disposition is not Disposition.DO:
            # Not by the reason's words: they hold figures that move, and it would be told again and again.
            rung = "" if story.replicas is not None and decision.brake == EXEMPT else decision.action.value
            key = digest(decision.disposition.value, rung, decision.brake or "")
            considered.setdefault(key, StoryLine(key, decision.decided_s, record))
    return [*ended.values(), *list(considered.values())[:MAX_CONSIDERED]]


def _ended_key(record: DecisionRecord) -> str:
    return digest("ended", record.decision.decision_id)


def _ended_key_of_server(record: DecisionRecord) -> str:
    """The same for what a rung of the policy says of each replica of a server."""
    outcome = "" if record.outcome is None else record.outcome.value
    return digest("ended", record.decision.action.value, rung_digest(record.decision), outcome)


def _latest_action(story: Story) -> DecisionRecord | None:
    carried_out = [record for record in story.decisions if record.decision.disposition is Disposition.DO]
    return carried_out[-1] if carried_out else None


def _state_of(record: DecisionRecord) -> str:
    outcome = "" if record.outcome is None else record.outcome.value
    return f"{record.decision.decision_id} {record.status.value} {outcome}"
