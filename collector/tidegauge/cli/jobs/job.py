"""``tidegauge job`` tells what one job used, while it runs and long after: from its record, by the service's API."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tidegauge.cli.arguments import SELECTION, add_examples, group
from tidegauge.cli.errors import FINE, CommandError, UsageError
from tidegauge.cli.jobs.history import in_percent
from tidegauge.cli.memory_chart import print_chart
from tidegauge.cli.output import print_json, print_table, print_wrapped, tame
from tidegauge.cli.service_api import LONG_ANSWER_S, NO_SUCH_PAGE, add_api_arguments, ask, read, web_pages
from tidegauge.cli.timeline import last_action
from tidegauge.cli.times import ago, moment, since_unix_s
from tidegauge.cluster.api.client import ApiError
from tidegauge.core.ids import job_name, known_as
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.incidents.wording import list_ranks, rate
from tidegauge.core.job_records.end_words import HOW, end_sentence, ran_s
from tidegauge.core.job_records.facts import facts, head_room, used_share, worst_state
from tidegauge.core.job_records.memory import JobMemory, RankMemory
from tidegauge.core.job_records.record import JobEnd, JobRecord, RankPeak
from tidegauge.core.memory_history import MemoryPoint, highest_of_stretches
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from tidegauge_exporter.links import Links

HELP = "show what one job used, running or ended: its ranks, its incidents and its attempts"

RANK_HEADER = ("rank", "host", "allocated", "reserved", "outside", "host memory", "limit", "head-room", "retries",
               "OOMs", "steps", "step")  # fmt: skip
RANKS_GIVE_WAY = ("host memory", "steps", "step", "outside", "limit", "retries", "host", "OOMs")
INCIDENT_HEADER = ("incident", "cause", "severity", "state", "ranks", "per step", "opened", "last action")
INCIDENTS_GIVE_WAY = ("per step", "ranks", "opened", "severity")
ATTEMPT_HEADER = ("attempt", "started", "ran", "how", "steps", "peak reserved", "of limit", "worst state")
ATTEMPTS_GIVE_WAY = ("steps", "peak reserved", "ran")
MAX_RANKS = 16
"""Rows of the table of ranks, the fullest; ``--json`` has more."""
CHART_COLUMNS = 120
MIN_CHART_SHARE = 0.5
"""Memory that takes less of its limit is drawn up to its own peak: else there would be nothing to see."""
NO_MEMORY = (
    "No peaks and curves of its ranks: none were reported, or they were deleted for room (the setting `keep_jobs_gib`)."
)
LOOK_EVERY_S = 0.2


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="id of the job, task of an array (123_4), or name of the job")
    selection = group(parser, SELECTION)
    selection.add_argument("--attempt", type=int, metavar="N", help="this attempt of the job (default: the latest)")
    selection.add_argument(
        "--uid", type=int, metavar="N", help="only a job of this user id, where several users have one of that name"
    )
    selection.add_argument(
        "--since", type=ago, metavar="TIME", help="only a job that still ran within this time, such as 90s or 2h"
    )
    parser.add_argument("--brief", action="store_true", help="one line, for job logs and mails")
    parser.add_argument(
        "--wait",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="wait for its end: what its ranks told last is in it",
    )
    add_api_arguments(parser)
    add_examples(
        parser,
        "tidegauge job 4711               what job 4711 used",
        "tidegauge job 4711 --attempt 0   its first attempt, if it was requeued",
        "tidegauge job llm-pretrain       the latest job of that name",
        "tidegauge history                ids and names of jobs that ended",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:  # nor nan
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def run(args: argparse.Namespace) -> int:
    until_s = time.monotonic() + args.wait
    while (answer := _ask(args))["record"]["end"] is None and time.monotonic() < until_s:
        time.sleep(LOOK_EVERY_S)
    record = read(JobRecord, answer["record"])
    pages = web_pages(args)
    if args.json:
        print_json({**answer, "url": pages.job_page(record.job)})
        return FINE
    if args.brief:
        print(tame(brief(record)))
        return FINE
    memory = JobMemory() if answer["memory"] is None else read(JobMemory, answer["memory"])
    print_wrapped("", headline(record))
    print()
    for name, text in facts(record, moment):
        print_wrapped(f"{name:<12}", text)
    if url := pages.job_page(record.job):
        print(f"{'web page':<12}{url}")  # whole, for a terminal to open it
    if answer["memory"] is None and record.end is not None:
        print()
        print_wrapped("", NO_MEMORY)
    _print_ranks(record, memory)
    _print_curve(record, memory)
    _print_incidents(answer["incidents"], pages)
    _print_attempts(record, [read(JobRecord, raw) for raw in answer["attempts"]], pages)
    others = [f"--uid {uid}" for uid in answer.get("other_uids", ())]  # missing in an older service's answer
    if others:
        print()
        print_wrapped("", f"other users have a job of this id, too: {', '.join(others)}")
    if answer["has_profile"]:
        print()
        print_wrapped("", f"`tidegauge profile {shlex.quote(_name(record))}` shows what filled its GPUs")
    return FINE


def _ask(args: argparse.Namespace) -> dict[str, Any]:
    """The job of that id, else the latest one of that name. Raises ``CommandError``."""
    attempt = {} if args.attempt is None else {"attempt": args.attempt}
    owner = {} if args.uid is None else {"uid": args.uid}
    wanted = tame(args.job)  # as it was recorded
    for key in ("job_id", "name"):
        found = _look(args, {key: wanted, **owner, **attempt})
        if found is not None:
            if _ended_before(found, args.since):
                raise UsageError(f"job {one_line(args.job)} ended before that time (--since), or is another one")
            return found
        if attempt and (other := _look(args, {key: wanted, **owner})) is not None:
            known = sorted({read(JobRecord, raw).job.attempt for raw in other["attempts"]})
            raise UsageError(
                f"job {one_line(args.job)} has no attempt {args.attempt} on record, but {', '.join(map(str, known))}"
            )
    pattern = shlex.quote(tame(args.job if "*" in args.job else f"{args.job[:3]}*"))
    of = "" if args.uid is None else f" of uid {args.uid}"
    raise UsageError(
        f"no job {one_line(args.job)}{of} is on record; `tidegauge history --since 90d --name {pattern}` looks for "
        "similar names, `tidegauge jobs` lists running jobs"
    )


def _ended_before(found: Mapping[str, Any], span_s: float | None) -> bool:
    """Schedulers give a number again: the record may be an earlier job's."""
    ended_unix_s = found["record"]["ended_unix_s"]
    return span_s is not None and ended_unix_s is not None and ended_unix_s < since_unix_s(span_s)


def _look(args: argparse.Namespace, query: Mapping[str, object]) -> dict[str, Any] | None:
    try:
        return ask(args, f"/api/v1/job-record?{urlencode(query, errors='replace')}", timeout_s=LONG_ANSWER_S)
    except CommandError as error:
        cause = error.__cause__
        if not isinstance(cause, ApiError) or cause.status != NO_SUCH_PAGE:
            raise
        if cause.refusal is None:
            raise CommandError(
                "the service runs an older version of Tidegauge, which has no page for one job; `tidegauge jobs "
                "--ended 30d` lists what it knows of jobs that ended"
            ) from error
        return None


def brief(record: JobRecord) -> str:
    """How it ended, how full its fullest GPU was, and what to ask for instead; of a running job so far."""
    return f"job {job_name(record.job.job_id, record.job.attempt, record.array)}: {end_sentence(record)}"


def headline(record: JobRecord) -> str:
    """The job and how it ended, or that it is still running."""
    name = f"job {job_name(record.job.job_id, record.job.attempt, record.array)}"
    if record.job_name and record.job_name != record.job.job_id:
        name += f", {record.job_name}"
    ran = format_duration(ran_s(record))
    if record.ended_unix_s is None or record.end is None:
        return f"{name}: running for {ran}; its record so far, of {moment(record.updated_unix_s)}"
    last_seen = "last seen" if record.end is JobEnd.UNKNOWN else "ended"
    return f"{name}: {last_seen} at {moment(record.ended_unix_s)} after {ran} ({HOW[record.end]})"


def rank_rows(peaks: Sequence[RankPeak]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Header and rows of the fullest ranks, without columns in which nothing is known."""
    rows = [_rank_row(peak) for peak in peaks[:MAX_RANKS]]
    known = [place for place in range(len(RANK_HEADER)) if any(row[place] != "-" for row in rows)]
    header, *shown = (tuple(row[place] for place in known) for row in (RANK_HEADER, *rows))
    return header, shown


def _rank_row(peak: RankPeak) -> Sequence[str]:
    return (
        str(peak.rank),
        peak.hostname,
        format_bytes(peak.allocated_bytes),
        format_bytes(peak.reserved_bytes),
        _bytes(peak.nontorch_bytes),
        _bytes(peak.host_bytes),
        _bytes(peak.limit_bytes),
        _bytes(head_room(peak)),
        _count(peak.alloc_retries),
        _count(peak.ooms),
        _count(peak.steps or None),
        "-" if peak.step_s is None else _step_words(peak.step_s),
    )


def _step_words(step_s: float) -> str:
    """Three digits: 0.99997 s are 1 s, not 1e+03 ms."""
    milliseconds = float(f"{1000 * step_s:.3g}")
    if milliseconds < 1000:
        return f"{milliseconds:g} ms"
    return f"{step_s:.3g} s" if milliseconds < 1e6 else format_duration(step_s)


def stretched(points: Sequence[MemoryPoint], columns: int) -> tuple[list[int], list[int]]:
    """The highest allocated and reserved bytes in each of ``columns`` equal stretches of time."""
    times_s = [point.at_unix_s - points[0].at_unix_s for point in points]
    columns, span_s = min(columns, len(points)), max(times_s[-1], 1e-9)
    allocated, reserved = (
        highest_of_stretches(zip(times_s, amounts), columns, span_s=span_s)
        for amounts in ((point.allocated_bytes for point in points), (point.reserved_bytes for point in points))
    )
    return list(map(int, allocated)), list(map(int, reserved))


def _print_ranks(record: JobRecord, memory: JobMemory) -> None:
    if not memory.peaks:
        return
    header, rows = rank_rows(memory.peaks)
    print("\nPeaks of the ranks, the fullest first")
    print_table(header, rows, gives_way=[name for name in RANKS_GIVE_WAY if name in header])
    left_out = max(record.world_size, len(memory.peaks)) - len(rows)
    if left_out > 0:
        has = "them" if len(memory.peaks) >= record.world_size else "the fullest of them"
        print(f"and {format_count(left_out, 'more rank')}; --json has {has}")


def _print_curve(record: JobRecord, memory: JobMemory) -> None:
    curve = next((one for one in memory.curves if one.rank == record.fullest.rank and one.points), None)
    curve = curve or next((one for one in memory.curves if one.points), None)
    if curve is None:
        return
    _print_chart(curve, {peak.rank: peak.limit_bytes for peak in (*memory.peaks, record.fullest)}.get(curve.rank))
    others = sum(bool(one.points) for one in memory.curves) - 1
    if others:
        print(f"(--json has the curves of {format_count(others, 'more rank')})")


def _print_chart(curve: RankMemory, limit_bytes: int | None) -> None:
    allocated, reserved = stretched(curve.points, CHART_COLUMNS)
    highest, limit = max(*allocated, *reserved, 1), ""
    if limit_bytes is not None and MIN_CHART_SHARE * limit_bytes <= highest <= limit_bytes:
        highest, limit = limit_bytes, " up to its limit"
    print_chart(f"Memory of rank {curve.rank}{limit}", allocated, reserved, highest_bytes=highest)
    print(f"from {moment(curve.points[0].at_unix_s)} to {moment(curve.points[-1].at_unix_s)}")


def _print_incidents(raw_incidents: Sequence[Mapping[str, Any]], pages: Links) -> None:
    if not raw_incidents:
        return
    incidents = [read(Incident, raw) for raw in raw_incidents]
    print("\nIncidents")
    rows = [_incident_row(one, raw) for one, raw in zip(incidents, raw_incidents)]
    urls = [pages.incident(one.number) for one in incidents]
    print_table(INCIDENT_HEADER, rows, gives_way=INCIDENTS_GIVE_WAY, pages=urls)
    last = incidents[0].number
    print_wrapped(
        "", f"`tidegauge incidents show {last}` tells its story, `tidegauge report {last}` makes a page of it"
    )


def _incident_row(incident: Incident, raw: Mapping[str, Any]) -> Sequence[str]:
    last = raw.get("last_decision")
    return (
        str(incident.number),
        incident.key.cause.value,
        (incident.worst_severity or incident.severity).value,
        incident.state.value,
        list_ranks(raw["ranks"], common=incident.common),
        rate(incident.bytes_per_step) or "-",
        moment(incident.opened_unix_s),
        "-" if last is None else last_action([read(DecisionRecord, last)]),
    )


def _print_attempts(record: JobRecord, attempts: Sequence[JobRecord], pages: Links) -> None:
    if len(attempts) < 2:
        return
    print("\nAttempts, the newest first")
    rows = [_attempt_row(one, record) for one in attempts]
    urls = [pages.job_page(one.job) for one in attempts]
    print_table(ATTEMPT_HEADER, rows, gives_way=ATTEMPTS_GIVE_WAY, pages=urls)
    other = next((one.job.attempt for one in attempts if one.job.attempt != record.job.attempt), None)
    if other is not None:
        print_wrapped("", f"`tidegauge job {shlex.quote(_name(record))} --attempt {other}` shows another one")


def _attempt_row(one: JobRecord, shown: JobRecord) -> Sequence[str]:
    return (
        f"{one.job.attempt} (this one)" if one == shown else str(one.job.attempt),
        moment(one.started_unix_s),
        format_duration(ran_s(one)),
        "running" if one.end is None else HOW[one.end],
        f"{one.steps:,}",
        format_bytes(one.fullest.reserved_bytes),
        in_percent(used_share(one.fullest)) or "-",
        worst_state(one),
    )


def _name(record: JobRecord) -> str:
    return tame(known_as(record.job.job_id, record.job_name))


def _bytes(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


def _count(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
