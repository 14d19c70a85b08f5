"""The page of jobs: those that are watched, the one to look at first on top, and those that ended lately."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tidegauge.cluster.api.overview import JobLine, Overview
from tidegauge.cluster.web.markup import (
    bytes_text,
    choice,
    filter_form,
    job_link,
    name_text,
    oom_text,
    search_field,
    share_bar,
    sparkline,
    state_chip,
)
from tidegauge.cluster.web.records import records_table
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.wording import capitalised
from tidegauge.core.job_records.record import JobRecord
from tidegauge.core.units import format_bytes, format_count
from tidegauge.core.verdicts import LeakState, Severity, state_word
from tidegauge_exporter.reports.html_page import NOTHING, lead, muted, section, table

MAX_JOBS: Final = 300
"""Rows at most, the most alarming first; the filter finds the others."""
SORTS: Final[Mapping[str, str]] = {
    "alarm": "what to look at first",
    "share": "fullest GPU",
    "name": "name",
    "user": "user",
    "size": "number of ranks",
}
_KEYS: Final[Mapping[str, Callable[[JobLine], object]]] = {
    "share": lambda job: -(job.used_share or 0.0),
    "name": lambda job: (job.job_name or job.job_id, job.job_id),
    "user": lambda job: job.user_name,
    "size": lambda job: -job.world_size,
}
_HEADS: Final = ("State", "Job", "User", "Ranks", "Fullest GPU", "Memory of the rank to look at", "Growth per step",
                 "OOM in", "Incident")  # fmt: skip


class JobsAsked(NamedTuple):
    """What the viewer filters and sorts by."""

    words: str = ""
    """All of them occur in id, name, user or state of a shown job, in capitals or not."""
    sort: str = "alarm"


class JobsShown(NamedTuple):
    """The content of the page."""

    overview: Overview
    incidents: Mapping[JobKey, Sequence[int]]
    """Numbers of open incidents by job, the newest first."""
    ended: Sequence[JobRecord]
    """Those that ended last."""
    no_records: str | None = None
    """Why nothing is known of incidents and ended jobs."""


def jobs_page(shown: JobsShown, asked: JobsAsked) -> list[str]:
    """The sections of the page."""
    found = [job for job in shown.overview.jobs if _fits(job, asked.words)]
    if asked.sort in _KEYS:
        found.sort(key=_KEYS[asked.sort])  # type: ignore[arg-type]
    left_out = len(found) - MAX_JOBS
    form = filter_form(
        search_field("words", "Filter", asked.words),
        choice("sort", "Sort by", SORTS, asked.sort if asked.sort in SORTS else "alarm"),
    )
    rows = [_row(job, shown.incidents.get(_key(job), ())) for job in found[:MAX_JOBS]]
    jobs = table(_HEADS, rows, numbers=(3, 6)) if rows else muted(_none(shown.overview, asked))
    more = muted(f"{left_out:,} more jobs: filter for them.") if left_out > 0 else ""
    ended = records_table(shown.ended) if shown.ended else muted("None on record.")
    return [
        _lead(shown.overview),
        section("Jobs", form, jobs, more),
        section("Ended lately", ended if shown.no_records is None else muted(shown.no_records),
                '<p><a href="history">All jobs that ended</a></p>'),
    ]  # fmt: skip


def _lead(overview: Overview) -> str:
    running = [job for job in overview.jobs if job.running]
    leaking = [job for job in running if job.state is LeakState.LEAK]
    worst = [job for job in leaking if job.severity is Severity.CRITICAL]
    silent = {health: count for health, count in overview.nodes.items() if health != "ok" and count}
    used = None
    if overview.gpu_total_bytes and overview.gpu_used_bytes is not None:
        used = f"{overview.gpu_used_bytes / overview.gpu_total_bytes:.0%}"
    if worst:
        are = "jobs are" if len(worst) > 1 else "job is"
        sentence, tone = f"{len(worst)} {are} leaking, and will run out of memory.", "critical"
    elif leaking:
        sentence, tone = f"{format_count(len(leaking), 'job')} with growing memory, none of them critical.", "warning"
    elif running:
        sentence, tone = "No job leaks.", "warning" if silent else "ok"
    elif not any(overview.nodes.values()):
        sentence, tone = "No node has reported yet: which jobs run is not known.", "warning"
    else:
        sentence, tone = "No job is running.", "note"
    actions = overview.actions
    remarks = [
        f"{format_count(sum(silent.values()), 'node')} not reporting: see Nodes." if silent else None,
        "Actions are paused." if actions.paused is not None else None,
        "The circuit breaker is open: no action is taken." if actions.breaker is not None else None,
    ]
    return lead(
        sentence, tone=tone, remarks=remarks,
        figures=[
            (f"{len(running):,}", "running jobs"),
            (f"{sum(job.alive for job in running):,}", "ranks"),
            (f"{overview.gpus:,}", "GPUs"),
            (used, "of GPU memory in use"),
            (f"{actions.incidents_open:,}", "open incidents"),
            (capitalised(actions.mode), "mode of the policy"),
        ],
    )  # fmt: skip


def _key(job: JobLine) -> JobKey:
    return JobKey(job.job_id, job.attempt, job.uid, job.group)


def _fits(job: JobLine, words: str) -> bool:
    state = state_word(job.state, job.severity, has_steps=job.has_steps)
    text = f"{job.job_id} {job.array or ''} {job.job_name or ''} {job.user_name} {job.scheduler or ''} {state}".lower()
    return all(word in text for word in words.lower().split())


def _row(job: JobLine, incidents: Sequence[int]) -> Sequence[str]:
    first, ranks = job.first, f"{job.alive:,}/{job.world_size:,}"
    name = f"<small>{name_text(job.job_name)}</small>" if job.job_name and job.job_name != job.job_id else ""
    name += f"<small>{name_text(job.replicas.told)}</small>" if job.replicas is not None else ""
    growth = None if first.bytes_per_step is None else first.bytes_per_step.likely
    ends = NOTHING
    if job.running and first.bound is not None and first.bound.holds:
        ends = f"ends at {format_bytes(first.bound.end_bytes.likely)}"
    elif job.running:
        ends = oom_text(first.seconds_to_oom, first.steps_to_oom)
    numbers = ", ".join(f'<a href="report?incident={number}">#{number}</a>' for number in incidents[:3])
    return (
        state_chip(job.state, job.severity, alive=job.running, stale=bool(job.stale), has_steps=job.has_steps),
        job_link(_key(job), job.array, job.group_name) + name,
        name_text(job.user_name),
        f"{ranks}{' !' if job.running and job.alive < job.world_size else ''}",
        share_bar(job.used_share),
        sparkline(first.line),
        bytes_text(growth),
        ends,
        numbers or NOTHING,
    )


def _none(overview: Overview, asked: JobsAsked) -> str:
    if overview.jobs:
        return f"None of {format_count(len(overview.jobs), 'job')} matches {asked.words!r}."
    return "No job is watched. `tidegauge run -- python train.py` starts one that is."
