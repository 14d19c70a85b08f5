"""The content of a report on an incident: evidence, memory curves and readable snapshots, from the service."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tidegauge.agent.evidence.snapshot_store import SnapshotStoreError, check_key
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.cli.config import load_settings
from tidegauge.cli.errors import CommandError, UsageError
from tidegauge.cli.jobs.names import Named, SeveralJobsError, meant
from tidegauge.cli.report.files import (
    MAX_SNAPSHOTS,
    Given,
    RankSnapshot,
    devices_told,
    evidence_of_files,
    of_one_device,
    read_rank_snapshot,
    sort_files,
    tried_settings,
)
from tidegauge.cli.service_api import LONG_ANSWER_S, ask, ask_story, read
from tidegauge.cluster.api.overview import JobPage, RankLine
from tidegauge.core.evidence import Evidence, SnapshotRef
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.wording import capitalised, name_ranks, rank_place, snapshots_gone
from tidegauge.core.job_records.memory import RankMemory
from tidegauge.core.verdicts import OK, Verdict

if TYPE_CHECKING:
    from tidegauge_exporter.messages.values import Story
    from tidegauge_exporter.reports.report_content import RankCurve, ReportContent

MAX_INCIDENTS = 1000
"""Maximum number of incidents, the newest, in which those of a job are searched."""


def content_of_job(what: str, files: Sequence[Path], args: argparse.Namespace, *, now_unix_s: float) -> ReportContent:
    """The content for an incident number, or for a job's newest incident, with the snapshots in ``files`` if any.

    Raises ``CommandError``.
    """
    from tidegauge_exporter.reports.report_content import incident_content

    story, curves = _story(_number(what, args), args)
    incident = story.incident
    absent: list[str] = []
    evidence = _evidence(incident, args, absent)
    given = sort_files(files, device=args.device)
    keep_s = load_settings(args).keep_snapshots_s
    gone = snapshots_gone(incident, kept_s=keep_s, now_s=now_unix_s)
    snapshots = given.snapshots or _stored(evidence, args.device, absent, gone)
    if len(snapshots) == MAX_SNAPSHOTS:
        verdict = incident.findings[0].verdict if incident.findings else OK
        evidence = _with_all_growth(evidence, given._replace(snapshots=snapshots), verdict)
    absent += devices_told(snapshots, args.device)
    whatif, why_not = (None, None) if not snapshots or args.no_whatif else tried_settings(snapshots[-1])
    absent += [why_not] if why_not else []
    if not story.memory:
        absent.append("No memory curve: the service has no readings of the rank to look at first.")
    return replace(
        incident_content(story, made_unix_s=now_unix_s, keep_snapshots_s=keep_s),
        ranks=curves,
        evidence=evidence,
        early=snapshots[0].trace if len(snapshots) > 1 else None,
        late=snapshots[-1].trace if snapshots else None,
        whatif=whatif,
        absent=tuple(absent),
    )


def _number(what: str, args: argparse.Namespace) -> int:
    """The number of the incident; a number in ``what`` may be an incident's or, under Slurm, a job's."""
    known = [read(Incident, raw) for raw in ask(args, f"/api/v1/incidents?all=1&limit={MAX_INCIDENTS}")["incidents"]]
    of_job = meant(known, what, _named)
    if len(ids := {one.key.job.job_id for one in of_job}) > 1:
        raise SeveralJobsError(what, ids)
    is_number = what.isascii() and what.isdigit()
    by_number = is_number and any(one.number == int(what) for one in known)
    if of_job and by_number and not (args.incident or args.job):
        raise UsageError(
            f"{what} is both an incident and a job: use --incident or --job (newest incident of the job: "
            f"{_newest(of_job).number})"
        )
    if of_job and not args.incident:
        _tell_others(_newest(of_job), of_job)
        return _newest(of_job).number
    if is_number and not args.job:
        return int(what)
    raise UsageError(
        f"no incident found for job {what!r}; `tidegauge incidents --all` lists all. A job without an incident has no "
        "report, even while its memory grows: see `tidegauge jobs`, `tidegauge top`, and `tidegauge snapshot "
        "--evidence` for what holds its memory"
    )


def _named(incident: Incident) -> Named:
    job = incident.key.job
    return Named(job.job_id, job.attempt, incident.array_name, incident.job_name, incident.group_name)


def _tell_others(chosen: Incident, of_job: Sequence[Incident]) -> None:
    others = [str(one.number) for one in of_job if one.is_open and one.number != chosen.number]
    if others:
        print(
            f"tidegauge report: incident {chosen.number}; other open incidents of this job: {', '.join(others)}",
            file=sys.stderr,
        )


def _newest(incidents: Sequence[Incident]) -> Incident:
    """The newest incident, open ones first."""
    return max(incidents, key=lambda one: (one.is_open, one.number))


def _story(number: int, args: argparse.Namespace) -> tuple[Story, tuple[RankCurve, ...]]:
    """The incident with its history, and the memory curves of its job's ranks."""
    story = ask_story(args, number)
    curves = _curves(story.incident, args)
    first = story.incident.findings[0].rank if story.incident.findings else None
    return replace(story, memory=next((curve.points for curve in curves if curve.rank == first), ())), curves


def _curves(incident: Incident, args: argparse.Namespace) -> tuple[RankCurve, ...]:
    """The curves of the affected ranks, in the incident's order, then of the others. Those that the incident keeps go
    on when the job has ended."""
    from tidegauge_exporter.reports.report_content import RankCurve

    asked = urlencode(incident.key.job._asdict())
    of_incident, of_job = _memory(f"incident={incident.number}", args), _memory(asked, args)
    memory = list({one.rank: one for one in (*of_job, *of_incident)}.values())
    lines = {line.rank: line for line in _rank_lines(asked, args)}
    findings = {finding.rank: finding for finding in incident.findings}
    order = {rank: place for place, rank in enumerate(incident.ranks)}
    curves = []
    for one in sorted(memory, key=lambda one: (order.get(one.rank, len(order)), one.rank)):
        finding, line = findings.get(one.rank), lines.get(one.rank)
        who = finding or line
        curves.append(
            RankCurve(
                one.rank,
                "" if who is None else rank_place(who.hostname, who.gpu),
                one.points,
                finding.verdict if finding is not None else _verdict(line),
                None if who is None else who.limit_bytes,
                concerned=finding is not None,
            )
        )
    return tuple(curves)


def _memory(asked: str, args: argparse.Namespace) -> Sequence[RankMemory]:
    return [read(RankMemory, raw) for raw in ask(args, f"/api/v1/memory?{asked}", timeout_s=LONG_ANSWER_S)["ranks"]]


def _rank_lines(asked: str, args: argparse.Namespace) -> Sequence[RankLine]:
    """The ranks of a job that is still watched; empty for another."""
    try:
        return read(JobPage, ask(args, f"/api/v1/job?{asked}")).ranks
    except CommandError:
        return ()


def _verdict(line: RankLine | None) -> Verdict:
    return OK if line is None else Verdict(line.state, line.severity, line.signal, bytes_per_step=line.bytes_per_step)


def _evidence(incident: Incident, args: argparse.Namespace, absent: list[str]) -> Evidence | None:
    """The most informative evidence; if there is none, ``absent`` gets the reason."""
    try:
        answer: dict[str, Any] = ask(args, f"/api/v1/evidence?incident={incident.number}", timeout_s=LONG_ANSWER_S)
    except CommandError as error:
        absent.append(f"The service returned no evidence: {error}.")
        return None
    pieces = [read(Evidence, raw) for raw in answer["evidence"]]
    if not pieces:
        absent.append(
            "No evidence was collected: that needs level auto and a rank that was still suspected. To collect it while "
            "the job runs: `tidegauge snapshot --evidence`."
        )
    others = sorted({piece.rank for piece in pieces} - {piece.rank for piece in pieces[:1]})
    if others:
        absent.append(
            f"{capitalised(name_ranks(others))} {'have' if len(others) > 1 else 'has'} evidence as well: see "
            f"`tidegauge incidents show {incident.number}`."
        )
    return _with_bound_now(pieces[0], incident) if pieces else None


def _with_bound_now(evidence: Evidence, incident: Incident) -> Evidence:
    """The evidence with the latest state of the growth bound, which is newer than its window."""
    bounds = {brief.evidence_id: brief.bound for brief in incident.evidence}
    return replace(evidence, bound=bounds.get(evidence.evidence_id, evidence.bound))


def _stored(
    evidence: Evidence | None, device: int | None, absent: list[str], gone: str | None
) -> tuple[RankSnapshot, ...]:
    """The snapshots of the evidence that are readable here, the earlier one first. ``gone``: of ``snapshots_gone``."""
    if evidence is None:
        return ()
    refs, why_not = sorted(evidence.snapshots, key=lambda ref: ref.step)[-MAX_SNAPSHOTS:], list[str]()
    found = [_read_stored(ref, device, why_not) for ref in refs]
    absent += why_not if gone is None or not why_not else [f"No memory map, as {gone}."]
    return of_one_device(tuple(one for one in found if one is not None))


def _read_stored(ref: SnapshotRef, device: int | None, absent: list[str]) -> RankSnapshot | None:
    try:
        return read_rank_snapshot(_place(ref), device)
    except (BadTraceError, SnapshotStoreError, FileNotFoundError) as error:
        absent.append(
            f"The snapshot of step {ref.step:,} cannot be read from this machine ({error}); it is at "
            f"`{ref.store}/{ref.key}`. For memory map and history, run this command there, or pass copies of the "
            "snapshots after the incident number."
        )
        return None


def _place(ref: SnapshotRef) -> str:
    """The file or URL of a snapshot. Raises ``FileNotFoundError``, ``SnapshotStoreError``."""
    check_key(ref.key)
    if "://" in ref.store:
        return f"{ref.store.rstrip('/')}/{ref.key}"
    host, _, folder = ref.store.partition(":")
    path = Path(folder) / ref.key
    if not path.exists():
        raise FileNotFoundError(f"it is on {host}, this is {socket.gethostname()}")
    return str(path)


def _with_all_growth(evidence: Evidence | None, given: Given, verdict: Verdict) -> Evidence | None:
    """The evidence with all stacks that grew, from both snapshots: the service keeps the first twenty."""
    own = evidence_of_files(given, verdict)
    if evidence is None or own is None:
        return own
    return replace(evidence, growth=own.growth, search=own.search or evidence.search)
