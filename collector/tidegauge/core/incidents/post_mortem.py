"""What ended a job, for people: cause, error, forecast, evidence, what was done, what was missing, the next step. Pure.

Labels and sentences, so that the report, the terminal and ``tidegauge top`` say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Optional

from tidegauge.core.incidents import Incident, OomEnd
from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, DecisionStatus, Disposition, Outcome
from tidegauge.core.incidents.oom_ends import oom_end
from tidegauge.core.incidents.wording import (
    MAX_AHEAD_S,
    OUTCOME_WORDS,
    best_evidence,
    capitalised,
    evidence_sentences,
    meaning,
    utc_clock,
    wanted_and_free,
)
from tidegauge.core.units import format_band, format_count, format_duration

_TRACE = "start it with `TIDEGAUGE_PROFILE=trace`: the report then names the line that allocates and what holds it"


def post_mortem(
    incident: Incident, records: Sequence[DecisionRecord], clock: Callable[[float], str] = utc_clock
) -> list[tuple[str, str]]:
    """Labels and sentences; none for an incident that did not end by an out-of-memory error. ``records``: its
    decisions, oldest first. ``clock`` writes times of day."""
    end = oom_end(incident)
    if end is None:
        return []
    rows = _of_growth(incident, end, records, clock) if incident.key.cause.is_growth else _of_error(incident, end)
    return [(label, _sentence(text)) for label, text in (*rows, ("What was done", _done(records)))]


def next_step(incident: Incident) -> Optional[str]:
    """What its owner can do after an out-of-memory error; ``None``: it did not end by one."""
    if oom_end(incident) is None:
        return None
    if incident.grew_in is not None:
        return f"Incident {incident.grew_in}, the growth before it, says what to change."
    best = best_evidence(incident)
    if best is not None and best.advice:
        return _sentence(best.advice)
    return _sentence(f"Before the next start, {_TRACE}" if incident.key.cause.is_growth else incident.explanation or "")


def _of_growth(
    incident: Incident, end: OomEnd, records: Sequence[DecisionRecord], clock: Callable[[float], str]
) -> Iterable[tuple[str, str]]:
    yield "Cause", next(iter(evidence_sentences(incident)), meaning(incident))
    yield "Error", incident.explanation or wanted_and_free(end.oom)
    yield "Forecast", _forecast(incident, end, clock)
    yield "Evidence", _evidence(incident)
    missing = list(_missing(incident, records))
    yield "What was missing", "; ".join(missing) if missing else "nothing that is known"


def _of_error(incident: Incident, end: OomEnd) -> Iterable[tuple[str, str]]:
    yield "Cause", incident.explanation or wanted_and_free(end.oom)
    grew = incident.grew_in
    yield "Forecast", "none: these ranks had no incident of growth" if grew is None else f"incident {grew} has it"


def _forecast(incident: Incident, end: OomEnd, clock: Callable[[float], str]) -> str:
    """ "made at 07:59:32 UTC, 28 s before the error: 17-28 s; it was right"."""
    first = incident.foreseen
    if first is None:
        return "none was made"
    ahead_s = max(end.oom.at_unix_s - first.at_unix_s, 0.0)
    made, said = f"made at {clock(first.at_unix_s)}", format_band(first.seconds)
    if not ahead_s < MAX_AHEAD_S:  # also NaN
        return f"{made}: {said}"
    said = f"{made}, {format_duration(ahead_s)} before the error: {said}"
    if ahead_s < first.seconds.low:
        judged = f"the error came {format_duration(first.seconds.low - ahead_s)} earlier"
    elif ahead_s > first.seconds.high:
        judged = f"the error came {format_duration(ahead_s - first.seconds.high)} later"
    else:
        judged = "it was right"
    return f"{said}; {judged}"


def _evidence(incident: Incident) -> str:
    """ "the line that allocates, what holds it, 2 snapshots"; what they say is the cause."""
    best, count = best_evidence(incident), len(incident.snapshots)
    known = [] if best is None or best.line is None else ["the line that allocates"]
    known += [] if best is None or best.holder is None else ["what holds it"]
    known += [format_count(count, "snapshot")] if count else []
    return ", ".join(known) or "none"


def _done(records: Sequence[DecisionRecord]) -> str:
    """Decisions that were carried out or tried: "notify: done; checkpoint: not proven in time"."""
    done = [
        f"{record.decision.action.value}: {OUTCOME_WORDS[record.outcome]}"
        for record in records
        if record.decision.disposition is Disposition.DO and record.outcome is not None
    ]
    return "; ".join(dict.fromkeys(done)) or "nothing"


def _missing(incident: Incident, records: Sequence[DecisionRecord]) -> Iterable[str]:
    first = incident.findings[0] if incident.findings else None
    if incident.foreseen is None:
        is_unknown = first is not None and first.limit_bytes is None
        yield "a forecast: the memory limit of the rank was not known" if is_unknown else "a forecast"
    if best_evidence(incident) is None:
        yield "evidence of the line that allocates and of what holds it"
    told = [record for record in records if record.decision.action is ActionKind.NOTIFY]
    if all(record.outcome is not Outcome.DONE for record in told):
        yield f"a message to the owner: {_why_none(told)}"
    acting = [record for record in records if record.decision.action.is_acting]
    if any(record.outcome is Outcome.DONE for record in acting):
        return
    if records and records[-1].decision.facts.checkpoint is None:
        yield "a way to have the job save its state (`tidegauge.on_checkpoint_request`, or a checkpoint signal)"
    yield f"an action in time: {_why_none(acting)}"


def _why_none(records: Sequence[DecisionRecord]) -> str:
    """Why these decisions, all of one purpose, came to nothing."""
    if not records:
        return "the policy asked for none until then"
    last = records[-1]
    action = last.decision.action.value
    if last.decision.disposition is Disposition.WOULD:
        return f"{action} was due, but the policy's mode was {last.decision.mode}"
    if last.decision.disposition is Disposition.WITHHELD:
        return f"{action} was on hold ({last.decision.brake})"
    if last.status is not DecisionStatus.FINISHED or last.outcome is None:
        return f"{action} was not over"
    return f"{action} was {OUTCOME_WORDS[last.outcome]}"


def _sentence(text: str) -> str:
    return capitalised(text) + ("" if not text or text.endswith((".", "!", "?", "\u2026")) else ".")
