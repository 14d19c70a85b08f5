"""``tidegauge incidents`` lists memory incidents, shows one with its evidence and actions, and acknowledges it."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tidegauge.cli.arguments import SELECTION, add_examples, group
from tidegauge.cli.config import load_settings
from tidegauge.cli.errors import FINE, UsageError
from tidegauge.cli.jobs import incident_acts
from tidegauge.cli.output import print_json, print_page, print_table, print_wrapped
from tidegauge.cli.policy import grade as policy_grade
from tidegauge.cli.service_api import LONG_ANSWER_S, add_api_arguments, ask, read, web_pages, whose
from tidegauge.cli.timeline import Entry, last_action, timeline
from tidegauge.cli.times import ago, clock, day, moment, since_unix_s
from tidegauge.core.evidence.words import brief_sentences
from tidegauge.core.ids import job_name
from tidegauge.core.incidents import Incident, IncidentState, RankFinding
from tidegauge.core.incidents.actions import USER_BREAKER, DecisionRecord, LoopStatus
from tidegauge.core.incidents.acts import PersonAct, acknowledgement, exemption_in_force, who_acted
from tidegauge.core.incidents.grades import GradeAnswer
from tidegauge.core.incidents.post_mortem import next_step, post_mortem
from tidegauge.core.incidents.wording import (
    CLOSURES,
    MODE_WORDS,
    further_name,
    incident_sentence,
    list_ranks,
    meaning,
    other_half,
    ranks_besides,
    rate,
    since,
    snapshots_gone,
    state_in_words,
    time_left,
)
from tidegauge.core.text import one_line
from tidegauge.core.units import format_band, format_bytes, format_count, format_duration

HELP = "list memory incidents, show one in detail, acknowledge it"

HEADER = ("number", "job", "cause", "severity", "state", "ranks", "since step", "per step", "OOM in",
          "opened", "last action")  # fmt: skip
GIVES_WAY = ("since step", "opened", "state", "per step", "ranks", "severity")
"""Columns that are dropped on a narrow terminal, in this order."""
RANK_HEADER = ("rank", "host", "GPU", "pid", "step", "allocated", "reserved", "nontorch", "limit", "since step",
               "per step", "OOM in")  # fmt: skip
RANKS_GIVE_WAY = ("nontorch", "reserved", "pid", "since step", "limit", "step", "GPU", "allocated", "per step")
"""Columns of the table of ranks that are dropped on a narrow terminal, in this order."""
MAX_SENTENCE_CHARS = 1000
"""Maximum length of a sentence of evidence, characters."""
MAX_RANKS = 16
"""Rows of the table of ranks; ``--json`` has all of them."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", choices=["show", *(kind.value for kind in incident_acts.ACTS)],
        help="show one incident in detail; say that you are looking at it, or take that back; exempt its job from "
        "actions for a time",
    )  # fmt: skip
    parser.add_argument("number", nargs="?", type=int, help="number of the incident")
    incident_acts.prepare(parser)
    selection = group(parser, SELECTION)
    selection.add_argument("--all", action="store_true", help="include closed incidents")
    selection.add_argument(
        "--since", type=ago, metavar="7d", help="only incidents from the last 7d, including closed ones"
    )
    selection.add_argument(
        "--limit", type=int, default=200, metavar="N", help="limit the output to N incidents (default: 200)"
    )
    add_api_arguments(parser)
    add_examples(
        parser,
        "tidegauge incidents                    open incidents",
        "tidegauge incidents --since 7d         all incidents of the last week",
        "tidegauge incidents show 3             ranks, evidence and timeline of incident 3",
        "tidegauge incidents acknowledge 3      show others that you are looking at it",
        "tidegauge incidents exempt 3 --for 8h  no action on its job for 8 hours",
    )


def run(args: argparse.Namespace) -> int:
    if args.what is None:
        return _list(args)
    if args.number is None:
        raise UsageError(
            f"no incident number: use `tidegauge incidents {args.what} NUMBER`; `tidegauge incidents` lists them"
        )
    return _show(args) if args.what == "show" else incident_acts.run(args)


def _list(args: argparse.Namespace) -> int:
    since_s = 0 if args.since is None else since_unix_s(args.since)
    closed_too = int(args.all or args.since is not None)
    answer = ask(args, f"/api/v1/incidents?all={closed_too}&since={since_s}&limit={max(args.limit, 0)}")
    pages = web_pages(args)
    urls = [pages.incident(raw["number"]) for raw in answer["incidents"]]
    if args.json:
        told = [{**raw, "url": url} for raw, url in zip(answer["incidents"], urls)]
        print_json({**answer, "incidents": told, "url": pages.page("incidents")})
        return FINE
    now_s = time.time()
    incidents = [read(Incident, raw) for raw in answer["incidents"]]
    ids_of: dict[str, set[str]] = defaultdict(set)
    for one in incidents:
        ids_of[one.called.job_id].add(one.key.job.job_id)
    rows = [
        _row(raw, one, by_id=len(ids_of[one.called.job_id]) > 1, now_s=now_s)
        for raw, one in zip(answer["incidents"], incidents)
    ]
    if rows:
        print_table(HEADER, rows, gives_way=GIVES_WAY, pages=urls)
        if len(rows) == args.limit:
            print(f"\nonly the newest {len(rows)} are shown; for more use --limit N")
    else:
        print(_none(whose(answer), closed_too=bool(closed_too)))
    print_page(pages.page("incidents"))
    return FINE


def _none(whose_only: str | None, *, closed_too: bool) -> str:
    of_yours, why = ("", "") if whose_only is None else (" of yours", f": {whose_only}")
    if closed_too:
        return f"no incidents{of_yours}{why}"
    return f"no open incidents{of_yours}{why}; `tidegauge incidents --all` includes closed ones"


def _row(raw: Mapping[str, Any], incident: Incident, *, by_id: bool, now_s: float) -> Sequence[str]:
    """A row of the table; ``by_id`` is set if another job has the same name."""
    job = incident.key.job
    last, by = raw.get("last_decision"), raw.get("acknowledged_by")
    ranks = raw.get("ranks", incident.ranks)
    return (
        str(incident.number),
        job_name(job.job_id if by_id else incident.called.job_id, job.attempt, group=incident.group_name),
        incident.key.cause.value,
        incident.severity.value,
        state_in_words(incident) + (", stale" if incident.stale else "") + (f", {by} is at it" if by else ""),
        list_ranks(ranks, common=incident.common, left_out=ranks_besides(incident, ranks)),
        "-" if incident.onset_step is None else str(incident.onset_step),
        rate(incident.bytes_per_step) or "-",
        _oom_in(incident) or "-",
        _ago(incident.opened_unix_s, now_s),
        "-" if last is None else last_action([read(DecisionRecord, last)]),
    )


def _show(args: argparse.Namespace) -> int:
    answer = ask(args, f"/api/v1/incident?number={args.number}", timeout_s=LONG_ANSWER_S)
    pages = web_pages(args)
    if args.json:
        print_json({**answer, "url": pages.incident(args.number)})
        return FINE
    incident = read(Incident, answer["incident"])
    records = [read(DecisionRecord, raw) for raw in answer["decisions"]]
    status = read(LoopStatus, ask(args, "/api/v1/policy"))
    acts = [read(PersonAct, raw) for raw in answer.get("acts", ())]  # missing in an older service's answer
    for text in _headline(incident).split("\n"):
        print_wrapped("", text)
    print()
    for name, text in [*figures(incident, now_s=time.time()), *people_figures(acts, now_s=time.time())]:
        print_wrapped(f"{name:<12}", text)
    if url := pages.incident(incident.number):
        print(f"{'web page':<12}{url}")  # whole, for a terminal to open it
    if incident.findings:
        print(f"\nRanks, worst first, at {moment(incident.updated_unix_s)}")
        rows = rank_rows(incident)
        print_table(RANK_HEADER, rows, gives_way=RANKS_GIVE_WAY)
        left_out = len(incident.findings) + incident.ranks_left_out - len(rows)
        if left_out > 0:
            print(f"and {left_out} more ranks; --json lists {'most' if incident.ranks_left_out else 'all'} of them")
    answers = [read(GradeAnswer, raw) for raw in answer.get("answers", ())]  # missing in an older service's answer
    entries = timeline(answer["history"], records, answers, acts)
    gone = snapshots_gone(incident, kept_s=load_settings(args).keep_snapshots_s, now_s=time.time())
    for start, text in below_ranks(incident, entries, records, status, gone=gone):
        print_wrapped(start, text)
    if incident.key.cause.is_growth:
        print()
        print_wrapped("", policy_grade.question(incident.number, pages.grade(incident.number)))
    return FINE


def people_figures(acts: Sequence[PersonAct], *, now_s: float) -> list[tuple[str, str]]:
    """Who is looking at it, and who exempted the job; nothing if nobody did."""
    by, exempted = acknowledgement(acts), exemption_in_force(acts, now_unix_s=now_s)
    lines = [] if by is None else [("acknowledged", f"by {who_acted(by)}, {_ago(by.at_unix_s, now_s)}")]
    if exempted is not None and exempted.until_unix_s is not None:
        lines.append(("exempt", f"until {moment(exempted.until_unix_s)}, by {who_acted(exempted)}"))
    return [(f"{name} " if len(name) == 12 else name, text) for name, text in lines]


def _headline(incident: Incident) -> str:
    title = (
        f"incident {incident.number}: {incident.key.cause.value}, {incident.severity.value}, {state_in_words(incident)}"
    )
    return f"{title}\n{incident_sentence(incident, clock)}"


def figures(incident: Incident, *, now_s: float) -> list[tuple[str, str]]:
    """Names and values of the incident as a whole."""
    job = incident.key.job
    lines = [
        ("job", ", ".join(filter(None, (incident.called.job_id, incident.group_name, f"attempt {job.attempt}",
                                        further_name(incident))))),
        ("owner", f"{incident.user_name} (uid {job.uid})"),
        ("ranks", f"{len(incident.findings) + incident.ranks_left_out} of {incident.world_size}"
                  + (", all alike: a growing workload, or a leak in shared code" if incident.common else "")),
        ("scheduler", incident.scheduler or "none"),
        ("opened", f"{moment(incident.opened_unix_s)} ({_ago(incident.opened_unix_s, now_s)})"),
        ("state", _state(incident)),
        ("related", other_half(incident)),
        ("severity", _severity(incident)),
        ("growth", _growth(incident)),
        ("runs out in", _end(incident)),
        ("meaning", meaning(incident)),
        ("explanation", incident.explanation),
        ("changed", incident.change),
        ("reports", ", ".join(incident.reports)),
    ]  # fmt: skip
    return [(name, text) for name, text in lines if text]


def rank_rows(incident: Incident) -> list[Sequence[str]]:
    """The ranks to look at first, under ``RANK_HEADER``."""
    return [_rank_row(finding, is_open=incident.is_open) for finding in incident.findings[:MAX_RANKS]]


def evidence_lines(incident: Incident, *, gone: Optional[str] = None) -> list[tuple[str, str]]:
    """Labels and texts: line, holder, cause and advice for each rank with evidence, then the places of snapshots;
    ``gone``: that of ``snapshots_gone`` instead."""
    lines: list[tuple[str, str]] = []
    for brief in incident.evidence:
        first, *advice = brief_sentences(brief)
        lines.append((f"  rank {brief.rank}: ", one_line(first, MAX_SENTENCE_CHARS)))
        lines += [("    advice: ", one_line(sentence, MAX_SENTENCE_CHARS)) for sentence in advice]
    places = incident.snapshots if gone is None else ()
    lines += [("  snapshot: ", one_line(place, MAX_SENTENCE_CHARS)) for place in places]
    lines += [] if gone is None else [("  ", gone)]
    if lines:
        shown = "stacks and curves" if gone else "stacks, curves and memory map"
        lines.append(("  ", f"{shown}: `tidegauge report {incident.number}`"))
    return lines


def story(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """Labels and texts of the timeline, with a line for each new day."""
    lines: list[tuple[str, str]] = []
    today = ""
    for entry in entries:
        if day(entry.at_s) != today:
            today = day(entry.at_s)
            lines.append(("", today))
        lines.append((f"  {clock(entry.at_s)}  ", entry.text))
    return lines


def below_ranks(
    incident: Incident,
    entries: Sequence[Entry],
    records: Sequence[DecisionRecord],
    status: LoopStatus,
    *,
    gone: Optional[str] = None,
) -> list[tuple[str, str]]:
    """Labels and texts below the table of ranks: evidence, timeline and next action."""
    ended = [(f"  {label.lower()}: ", text) for label, text in post_mortem(incident, records, clock)]
    evidence = evidence_lines(incident, gone=gone)
    lines = [("", ""), ("", "What ended it"), *ended] if ended else []
    lines += [("", ""), ("", "Evidence"), *evidence] if evidence else []
    lines += [("", ""), ("", "What happened"), *story(entries)]
    lines += [("", ""), ("", "What happens next"), ("  ", what_next(incident, records, status))]
    return lines


def _held_back(records: Sequence[DecisionRecord], status: LoopStatus) -> Optional[str]:
    """The reason why the circuit breaker of the job's user is open, if it is."""
    reasons = tuple(one.decision.reason for one in records if one.decision.brake == USER_BREAKER)
    return next((why for why in status.user_breakers if why.startswith(reasons)), None)


def what_next(incident: Incident, records: Sequence[DecisionRecord], status: LoopStatus) -> str:
    """The next action, and the command that changes it."""
    if not incident.is_open:
        return next_step(incident) or "Nothing: the incident is closed."
    ours = {record.decision.decision_id for record in records}
    for under_way in status.under_way:
        if under_way.decision_id in ours:
            return f"Under way: {under_way.action.value}: {under_way.what}."
    if status.store_problem is not None:
        return f"Nothing until the database works again: {status.store_problem}"
    if status.paused is not None:
        return f"Nothing until `tidegauge policy resume`: actions are paused {status.paused}."
    if status.breaker is not None:
        return f"Nothing until `tidegauge policy resume`: the circuit breaker is open ({status.breaker})."
    held = _held_back(records, status)
    if held is not None:
        return f"Nothing for this user's jobs until `tidegauge policy resume`: {held}."
    if incident.stale:
        return "Nothing until every node of the job reports again: the figures are stale."
    if incident.state is IncidentState.RECOVERING:
        return "The incident closes unless the problem returns."
    mode = f"The policy's mode is {status.mode}: {MODE_WORDS[status.mode]}."
    return f"The policy's rules apply (`tidegauge policy show`). {mode}"


def _ago(unix_s: float, now_s: float) -> str:
    return f"{format_duration(max(now_s - unix_s, 0.0))} ago"


def _state(incident: Incident) -> str:
    parts = [incident.state.value]
    if incident.recovering_since_unix_s is not None and incident.state is IncidentState.RECOVERING:
        parts.append(f"since {moment(incident.recovering_since_unix_s)}")
    if incident.closed_unix_s is not None:
        parts.append(f"at {moment(incident.closed_unix_s)}")
    text = " ".join(parts)
    if incident.closure is not None:
        text += f": {CLOSURES[incident.closure]}"
    if incident.flaps:
        text += f"; returned {format_count(incident.flaps, 'time')} during recovery"
    if incident.stale:
        text += "; a node of the job is not reporting: the figures are stale, and no action is taken on them"
    return text


def _severity(incident: Incident) -> str:
    worst = incident.worst_severity
    was_worse = worst is not None and worst is not incident.severity
    return incident.severity.value + (f" (peak: {worst.value})" if worst is not None and was_worse else "")


def _growth(incident: Incident) -> Optional[str]:
    band = incident.bytes_per_step
    if band is None:
        return None
    grown = "" if incident.grown_bytes is None else f", {format_bytes(incident.grown_bytes)} gained"
    return f"{rate(band)} per step ({format_band(band, format_bytes)}){grown}{since(incident.onset_step)}"


def _end(incident: Incident) -> Optional[str]:
    end = _oom_in(incident)
    return f"{end} (from {moment(incident.updated_unix_s)})" if end else None


def _oom_in(incident: Incident) -> Optional[str]:
    is_to_come = incident.is_open and incident.ran_out is None
    return time_left(incident.seconds_to_oom) if is_to_come else None


def _rank_row(finding: RankFinding, *, is_open: bool) -> Sequence[str]:
    verdict = finding.verdict
    return (
        str(finding.rank),
        finding.hostname if finding.pod is None else f"{finding.pod} on {finding.hostname}",
        "-" if finding.gpu is None else str(finding.gpu),
        str(finding.process.pid),
        str(finding.step),
        format_bytes(finding.allocated_bytes),
        format_bytes(finding.reserved_bytes),
        "-" if finding.nontorch_bytes is None else format_bytes(finding.nontorch_bytes),
        "-" if finding.limit_bytes is None else format_bytes(finding.limit_bytes),
        "-" if verdict.onset_step is None else str(verdict.onset_step),
        rate(verdict.bytes_per_step) or "-",
        (time_left(verdict.seconds_to_oom, verdict.steps_to_oom) if is_open else None) or "-",
    )
