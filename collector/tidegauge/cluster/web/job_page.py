"""The page of one job: its verdict, all ranks over time, each rank's figures, its groups, attempts, incidents and
profiles; of a job that ended, what its record keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from tidegauge.cluster.api.memory_api import JobAsked
from tidegauge.cluster.api.overview import JobLine, JobPage, RankLine
from tidegauge.cluster.api.record_api import RecordPage
from tidegauge.cluster.web.incidents_page import incidents_table
from tidegauge.cluster.web.markup import (
    bytes_text,
    facts_list,
    filter_form,
    job_link,
    name_text,
    oom_text,
    search_field,
    share_bar,
    state_chip,
)
from tidegauge.cluster.web.records import end_text
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.wording import capitalised, rank_place
from tidegauge.core.job_records.end_words import HOW, fullest_words, ran_s, size_advice
from tidegauge.core.job_records.facts import facts, head_room, used_share
from tidegauge.core.job_records.record import JobEnd, JobRecord, RankPeak
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.text import one_line
from tidegauge.core.units import format_count, format_duration
from tidegauge.core.verdicts import LeakState
from tidegauge.core.views import NEARLY_FULL, JobView
from tidegauge_exporter.links import heat_map_address, job_address, profile_address
from tidegauge_exporter.reports.html_page import NOTHING, lead, meta, moment, muted, section, table
from tidegauge_exporter.reports.memory_plot import memory_section, ranks_section
from tidegauge_exporter.reports.report import curve_lead
from tidegauge_exporter.reports.report_content import RankCurve, ReportContent

MAX_ROWS: Final = 100
"""Ranks in the table, the ones to look at first; the filter finds the others."""
MAX_CURVES: Final = 16
_RANK_HEADS: Final = ("State", "Rank", "Place", "Step", "Used", "Allocated", "Reserved", "Outside PyTorch", "Limit",
                      "Growth per step", "OOM in")  # fmt: skip
_PEAK_HEADS: Final = ("Rank", "Host", "Allocated", "Reserved", "Outside PyTorch", "Limit", "Head-room", "Of limit",
                      "Steps", "OOMs")  # fmt: skip
_ATTEMPT_HEADS: Final = ("Attempt", "Started", "Ran", "How", "Peak reserved", "Of limit")


@dataclass(frozen=True)
class LiveJob:
    """A watched job, as far as the page shows it."""

    view: JobView
    page: JobPage
    """With the ranks of the table, the one to look at first first."""
    curves: Mapping[int, Sequence[MemoryPoint]]
    """The memory history of some of them, by number; the chosen rank is among them."""
    groups: Sequence[JobLine] = ()
    """Other groups of ranks of the same job, and other attempts that are watched."""


@dataclass(frozen=True)
class JobShown:
    """The content of the page: one of ``live`` and ``record`` at least."""

    asked: JobAsked
    made_unix_s: float
    live: LiveJob | None
    record: RecordPage | None
    incidents: Sequence[Incident] = ()
    rank: int | None = None
    """The rank that the viewer chose."""
    words: str = ""
    """The filter of the table of ranks."""
    no_record: str | None = None


def job_title(shown: JobShown) -> str:
    name = _name(shown)
    return one_line(f"Job {shown.asked.job_id}" + (f" ({name})" if name else ""), 120)


def _name(shown: JobShown) -> str | None:
    """The name that its owner gave the job, if it is another than its id."""
    name = shown.record.record.job_name if shown.record is not None else None
    if shown.live is not None:
        name = shown.live.view.job_name
    return None if name is None or name == shown.asked.job_id else one_line(name, 200)


def job_page(shown: JobShown) -> list[str]:
    """The sections of the page."""
    live, record = shown.live, shown.record
    parts = [_subject(shown)]
    if live is not None:
        content = _content(shown, live)
        parts += [
            _lead(shown, live),
            _heat_map(live),
            memory_section(content),
            ranks_section(content) if len(live.view.ranks) <= MAX_CURVES else "",
            _ranks(shown, live),
            _groups(live.groups),
        ]
    elif record is not None:
        parts += [_lead_of_end(record.record), *_kept(shown, record)]
    parts.append(_incidents(shown.incidents))
    if record is not None:
        parts += [_attempts(record), section("Facts", facts_list((capitalised(name), escape(one_line(text)))
                  for name, text in facts(record.record, moment)))]  # fmt: skip
    elif shown.no_record is not None:
        parts.append(section("Record", muted(shown.no_record)))
    return parts


def _key(shown: JobShown) -> JobKey:
    if shown.live is not None:
        return shown.live.view.key
    assert shown.record is not None, "a page has a subject"
    return shown.record.record.job


def _subject(shown: JobShown) -> str:
    key = _key(shown)
    user = shown.live.view.user_name if shown.live is not None else None
    if user is None and shown.record is not None:
        user = shown.record.record.user_name
    facts = [
        ("Job", one_line(key.job_id, 200)), ("Name", _name(shown)),
        ("Attempt", str(key.attempt) if key.attempt else None), ("User", user),
    ]  # fmt: skip
    links = []
    if shown.record is not None and shown.record.has_profile:
        links.append(f'<a href="{escape(profile_address(key))}">Memory profile of its ranks</a>')
    if links:
        return f'{meta(facts, made_unix_s=shown.made_unix_s)}<p class="links">{" ".join(links)}</p>'
    return meta(facts, made_unix_s=shown.made_unix_s)


def _content(shown: JobShown, live: LiveJob) -> ReportContent:
    """The curves for the charts that reports have, the chosen rank first."""
    view = live.view
    places = {int(rank.identity.rank): place for place, rank in enumerate(view.ranks)}
    order = sorted(live.curves, key=lambda rank: rank != shown.rank) if shown.rank is not None else list(live.curves)
    curves = []
    for number in order:
        if number in places:
            rank, hostname = view.ranks[places[number]], view.rank_hostnames[places[number]]
            concerned = rank.verdict.state is not LeakState.OK
            curves.append(
                RankCurve(
                    number, rank_place(hostname, rank.gpu), tuple(live.curves[number]), rank.verdict, rank.limit_bytes,
                    concerned,
                )
            )  # fmt: skip
    return ReportContent(shown.made_unix_s, job_title(shown), (), ranks=tuple(curves))


def _lead(shown: JobShown, live: LiveJob) -> str:
    job, rank = live.page.job, shown.rank
    looked_at = job.first.rank if rank is None else rank
    chosen = next((one for one in live.view.ranks if one.identity.rank == looked_at), live.view.ranks[0])
    number = int(chosen.identity.rank)
    remarks = [
        None if rank in (None, number) else f"Rank {rank} is not known of this job: this is rank {number}.",
        f"{format_count(job.stale, 'rank')} on nodes that are not reporting: old figures." if job.stale else None,
        "The job is exempt from actions." if job.exempt else None,
        None if job.replicas is None else f"{job.replicas.told}.",
        f"{capitalised(live.view.change)}." if live.view.change else None,
    ]
    if not job.running:
        sentence, tone = "All its ranks have ended.", "note"
    elif chosen.verdict.state is not LeakState.OK:
        return curve_lead(RankCurve(number, "", (), chosen.verdict), remarks=remarks)
    elif not job.has_steps:
        sentence, tone = "It has counted no step yet.", "note"
    else:
        sentence = f"Rank {number} does not grow: its memory has not kept growing."
        tone = "warning" if job.stale else "ok"
    return lead(
        sentence, tone=tone, remarks=remarks,
        figures=[
            (f"{job.alive:,} of {job.world_size:,}", "ranks running"),
            (f"{job.nodes:,}", "nodes"),
            (f"{job.step:,}", "step"),
            (None if job.used_share is None else f"{job.used_share:.0%}", "of its limit, fullest rank"),
            (bytes_text(job.used_bytes), "used by the fullest rank"),
        ],
    )  # fmt: skip


def _heat_map(live: LiveJob) -> str:
    """The place of the map, which the script draws: rows of ranks, time from left to right."""
    if len(live.view.ranks) < 2:
        return ""
    note = "<noscript>The map needs JavaScript; the table below has the figures.</noscript>"
    address = f"api/v1/{escape(heat_map_address(live.view.key))}"
    return section(
        "Share of the limit, all ranks over time",
        f'<div class="drawn" data-own data-heat-map="{address}" data-nearly-full="{100 * NEARLY_FULL:g}">{note}</div>',
    )


def _ranks(shown: JobShown, live: LiveJob) -> str:
    found = [one for one in live.page.ranks if _fits(one, shown.words)]
    rows = [_rank_row(live.view.key, one) for one in found[:MAX_ROWS]]
    hidden = "".join(
        f'<input type="hidden" name="{name}" value="{escape(str(value))}">'
        for name, value in live.view.key._asdict().items()
        if value != ""
    )
    many = len(live.page.ranks) + live.page.left_out > MAX_ROWS
    form = filter_form(hidden, search_field("words", "Rank, host or state", shown.words)) if many or shown.words else ""
    left_out = len(found) - len(rows) + (0 if shown.words else live.page.left_out)
    more = muted(f"{left_out:,} more ranks, none of which needs a look first.") if left_out > 0 else ""
    return section("Ranks", form, table(_RANK_HEADS, rows, numbers=range(3, 10)) if rows else muted("None fits."), more)


def _fits(rank: RankLine, words: str) -> bool:
    text = f"{rank.hostname} {rank.state.value} {rank.pod or ''}".lower()
    return all(word == str(rank.rank) or word in text for word in words.lower().split())


def _rank_row(job: JobKey, rank: RankLine) -> Sequence[str]:
    growth = None if rank.bytes_per_step is None else rank.bytes_per_step.likely
    oom = " OOM !" if rank.oom_at_unix_s is not None else ""
    return (
        state_chip(rank.state, rank.severity, alive=rank.alive, stale=rank.stale, has_steps=rank.step > 0) + oom,
        f'<a href="{escape(job_address(job, rank=rank.rank))}">{rank.rank}</a>',
        f'<span class="named">{name_text(rank_place(rank.hostname, rank.gpu))}</span>'
        + (f"<small>{name_text(rank.pod)}</small>" if rank.pod else ""),
        f"{rank.step:,}",
        share_bar(rank.used_share),
        bytes_text(rank.allocated_bytes),
        bytes_text(rank.reserved_bytes),
        bytes_text(rank.nontorch_bytes),
        bytes_text(rank.limit_bytes),
        bytes_text(growth),
        oom_text(rank.seconds_to_oom, rank.steps_to_oom) if rank.alive else NOTHING,
    )


def _groups(groups: Sequence[JobLine]) -> str:
    rows = [
        (
            state_chip(one.state, one.severity, alive=one.running, stale=bool(one.stale), has_steps=one.has_steps),
            job_link(JobKey(one.job_id, one.attempt, one.uid, one.group), one.array, one.group_name),
            f"{one.alive:,}/{one.world_size:,}",
            share_bar(one.used_share),
        )
        for one in groups
    ]
    return (
        section("Its other groups of ranks and attempts", table(("State", "Group", "Ranks", "Fullest GPU"), rows))
        if rows
        else ""
    )


def _lead_of_end(record: JobRecord) -> str:
    ran, how = format_duration(ran_s(record)), HOW[record.end or JobEnd.UNKNOWN]
    if record.end is None:
        sentence, tone = f"It ran for {ran} when it was last heard of.", "note"
    else:
        sentence = f"It ended after {ran} ({how}): {fullest_words(record.fullest)}."
        tone = {JobEnd.OOM: "critical", JobEnd.KILLED: "warning", JobEnd.FAILED: "warning"}.get(record.end, "note")
    advice = size_advice(record)
    share = used_share(record.fullest)
    return lead(
        sentence, tone=tone, remarks=[f"{capitalised(f'this job {advice}')}." if advice else None, record.change],
        figures=[
            (end_text(record), "end"),
            (moment(record.ended_unix_s) if record.ended_unix_s else None, "ended"),
            (f"{record.world_size:,}", "ranks"),
            (f"{record.steps:,}" if record.steps else None, "steps"),
            (None if share is None else f"{share:.0%}", "of its limit reserved, fullest rank"),
        ],
    )  # fmt: skip


def _kept(shown: JobShown, page: RecordPage) -> list[str]:
    """Curves and peaks of ranks that ended."""
    memory = page.memory
    if memory is None:
        return [section("Ranks", muted("No peaks and curves of its ranks: none were reported, or they were deleted for "
                "room (the setting `keep_jobs_gib`)."))]  # fmt: skip
    peaks = {peak.rank: peak for peak in memory.peaks}
    curves = [
        RankCurve(one.rank, peaks[one.rank].hostname, one.points, limit_bytes=peaks[one.rank].limit_bytes)
        for one in sorted(memory.curves, key=lambda one: one.rank != shown.rank)
        if one.rank in peaks and one.points
    ]
    content = ReportContent(shown.made_unix_s, job_title(shown), (), ranks=tuple(curves))
    rows = [_peak_row(peak) for peak in memory.peaks[:MAX_ROWS]]
    left_out = max(page.record.world_size, len(memory.peaks)) - len(rows)
    more = muted(f"{left_out:,} more ranks; `tidegauge job --json` has those that are kept.") if left_out > 0 else ""
    return [
        memory_section(content), ranks_section(content),
        section("Peaks of the ranks, the fullest first", table(_PEAK_HEADS, rows, numbers=range(2, 10)), more),
    ]  # fmt: skip


def _peak_row(peak: RankPeak) -> Sequence[str]:
    return (
        str(peak.rank), name_text(peak.hostname), bytes_text(peak.allocated_bytes), bytes_text(peak.reserved_bytes),
        bytes_text(peak.nontorch_bytes), bytes_text(peak.limit_bytes), bytes_text(head_room(peak)),
        share_bar(used_share(peak)), f"{peak.steps:,}" if peak.steps else NOTHING,
        NOTHING if peak.ooms is None else f"{peak.ooms:,}",
    )  # fmt: skip


def _incidents(found: Sequence[Incident]) -> str:
    return section("Incidents", incidents_table(found)) if found else ""


def _attempt_link(one: JobRecord, shown: JobRecord) -> str:
    if one == shown:
        return f"{one.job.attempt} (this one)"
    return f'<a href="{escape(job_address(one.job))}">{one.job.attempt}</a>'


def _attempts(page: RecordPage) -> str:
    if len(page.attempts) < 2:
        return ""
    rows = [
        (
            _attempt_link(one, page.record),
            moment(one.started_unix_s), format_duration(ran_s(one)), escape(end_text(one)),
            bytes_text(one.fullest.reserved_bytes), share_bar(used_share(one.fullest)),
        )
        for one in page.attempts
    ]  # fmt: skip
    return section("Attempts, the newest first", table(_ATTEMPT_HEADS, rows, numbers=(2, 4)))
