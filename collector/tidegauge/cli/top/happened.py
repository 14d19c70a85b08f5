"""What happened, in ``tidegauge top``: the log of changes, and the jobs that ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidegauge.cli.jobs.job import headline
from tidegauge.cli.timeline import became
from tidegauge.cli.times import moment
from tidegauge.cli.top.columns import LUXURY, Cell, Column, Tone, bytes_cell, name_job_shortly, share_cell
from tidegauge.cli.top.model import has_text
from tidegauge.cluster.views import Event, EventKind
from tidegauge.core.ids import JobKey, known_as
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import DecisionRecord, Disposition
from tidegauge.core.incidents.wording import name_job, state_in_words
from tidegauge.core.job_records.end_words import HOW, ran_s
from tidegauge.core.job_records.facts import facts, used_share, worst_state
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.units import format_duration

MAX_CHANGES = 500
"""Lines of the log, the newest."""
_WHAT = {
    EventKind.NODE_JOINED: Cell("node joined", Tone.GOOD),
    EventKind.AGENT_RESTARTED: Cell("agent", Tone.DIM),
    EventKind.NODE_STALE: Cell("node silent", Tone.WARNING),
    EventKind.NODE_BACK: Cell("node back", Tone.GOOD),
    EventKind.NODE_GONE: Cell("node gone", Tone.WARNING),
    EventKind.JOB_BEGAN: Cell("job began"),
    EventKind.RANK_VERDICT: Cell("verdict", Tone.STRONG),
}


class ChangeLine(NamedTuple):
    """One line of the log."""

    at_unix_s: float
    what: Cell
    text: str
    incident: int | None = None
    """The number of the incident that it is about."""


def changes(
    events: Iterable[Event],
    incidents: Iterable[Incident],
    decisions: Iterable[DecisionRecord],
    ended: Iterable[JobRecord],
    text: str = "",
) -> list[ChangeLine]:
    """What changed, the newest first: nodes, jobs, verdicts, incidents, actions; at most ``MAX_CHANGES`` lines."""
    found = [ChangeLine(event.at_unix_s, _WHAT[event.kind], event.text) for event in events]
    for incident in incidents:
        found += _of_incident(incident)
    found += [_of_decision(record) for record in decisions]
    found += [
        ChangeLine(record.ended_unix_s, Cell("job ended", _end_tone(record)), headline(record))
        for record in ended
        if record.ended_unix_s is not None
    ]
    chosen = [one for one in found if has_text(text, (one.what.text, one.text))]
    return sorted(chosen, key=lambda one: -one.at_unix_s)[:MAX_CHANGES]


def change_columns() -> Sequence[Column[ChangeLine]]:
    return (
        Column("time", lambda row, _: Cell(moment(row.at_unix_s)[5:19], Tone.DIM), 14),
        Column("what", lambda row, _: row.what, 15),
        Column("change", lambda row, _: Cell(row.text), 20, 400),
    )


def ended_columns() -> Sequence[Column[JobRecord]]:
    return (
        Column("ended", lambda row, _: Cell(moment(row.ended_unix_s or row.updated_unix_s)[:16]), 16),
        Column("how", lambda row, _: Cell(HOW[row.end or JobEnd.UNKNOWN], _end_tone(row)), 9),
        Column("job", _job, 10, 32),
        Column("name", lambda row, _: Cell(row.job_name or "-"), 12, 28, rank=4),
        Column("user", lambda row, _: Cell(row.user_name), 7, 12, rank=1),
        Column("ranks", lambda row, _: Cell(str(row.world_size)), 5, rank=5, right=True),
        Column("ran", lambda row, _: Cell(format_duration(ran_s(row))), 7, rank=3, right=True),
        Column("peak", lambda row, _: bytes_cell(row.fullest.reserved_bytes), 9, right=True),
        Column("limit", lambda row, _: bytes_cell(row.fullest.limit_bytes), 9, rank=2, right=True),
        Column("used", lambda row, _: share_cell(used_share(row.fullest)), 4, right=True),
        Column("steps", lambda row, _: Cell(f"{row.steps:,}"), 9, rank=LUXURY, right=True),
        Column("worst state", lambda row, _: Cell(worst_state(row)), 16, 20, rank=6),
    )


def ended_rows(records: Iterable[JobRecord], text: str, user: str | None) -> list[JobRecord]:
    """The records with ``text`` in id, name, user or how they ended, of ``user`` if one is given."""
    return [
        one
        for one in records
        if user in (None, one.user_name)
        and has_text(text, (one.job.job_id, one.array, one.job_name, one.user_name, HOW[one.end or JobEnd.UNKNOWN]))
    ]


def ended_page(record: JobRecord) -> list[tuple[str, str]]:
    """Names and texts of the page of a job that ended; it goes on in ``tidegauge job``."""
    more = f"`{job_command(record.job)}` shows its ranks, its memory over time, its incidents and its other attempts"
    reports = [f"`tidegauge report {number}` makes a page of incident {number}" for number in record.incidents[-3:]]
    return [
        ("", headline(record)),
        ("", ""),
        *facts(record, moment),
        ("", ""),
        ("more", more),
        *(("", one) for one in reports),
    ]


def job_command(job: JobKey) -> str:
    """The command that shows all of one attempt of a job."""
    return f"tidegauge job {job.job_id} --attempt {job.attempt} --uid {job.uid}"


def _job(record: JobRecord, width: int) -> Cell:
    called = record.job._replace(job_id=known_as(record.job.job_id, record.job_name))
    return Cell(name_job_shortly(called, record.array, width=width), Tone.STRONG)


def _end_tone(record: JobRecord) -> Tone:
    return Tone.ALARM if record.end is JobEnd.OOM else Tone.PLAIN


def _of_incident(incident: Incident) -> list[ChangeLine]:
    about = f"#{incident.number} {incident.key.cause.value} in {name_job(incident.called)} of {incident.user_name}"
    peak = "" if incident.worst_severity is None else f", peak {incident.worst_severity.value}"
    opened = ChangeLine(
        incident.opened_unix_s, Cell("incident opened", Tone.STRONG), f"{about}{peak}",
        incident.number,
    )  # fmt: skip
    if incident.closed_unix_s is None:
        return [opened]
    closed = f"{about}: {state_in_words(incident)}"
    return [opened, ChangeLine(incident.closed_unix_s, Cell("incident closed", Tone.DIM), closed, incident.number)]


def _of_decision(record: DecisionRecord) -> ChangeLine:
    decision = record.decision
    did = decision.disposition is Disposition.DO
    text = f"{decision.action.value} of {name_job(decision.called)}: {became(record)}. {decision.reason}"
    at_unix_s = record.finished_s if did and record.finished_s is not None else decision.decided_s
    return ChangeLine(at_unix_s, Cell("action" if did else "no action", Tone.PLAIN if did else Tone.DIM), text,
                  decision.incident.number)  # fmt: skip
