"""``tidegauge incidents`` lists memory incidents, and shows one with its evidence and actions."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tidegauge.cli.arguments import SELECTION, add_examples, group
from tidegauge.cli.config import load_settings
from tidegauge.cli.errors import FINE, UsageError
from tidegauge.cli.jobs import incident_page
from tidegauge.cli.jobs.names import job_name
from tidegauge.cli.output import print_json, print_table, print_wrapped
from tidegauge.cli.policy import grade as policy_grade
from tidegauge.cli.service_api import LONG_ANSWER_S, add_api_arguments, ask, read, whose
from tidegauge.cli.timeline import last_action, timeline
from tidegauge.cli.times import ago, moment, since_unix_s
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import DecisionRecord, LoopStatus
from tidegauge.core.incidents.grades import GradeAnswer
from tidegauge.core.incidents.wording import list_ranks, ranks_besides, rate, time_left
from tidegauge.core.units import format_duration

HELP = "list memory incidents, or show one in detail"

HEADER = ("number", "job", "cause", "severity", "state", "ranks", "since step", "per step", "OOM in",
          "opened", "last action")  # fmt: skip
GIVES_WAY = ("since step", "opened", "state", "per step", "ranks", "severity")
"""Columns that are dropped on a narrow terminal, in this order."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=["show"], help="show one incident in detail")
    parser.add_argument("number", nargs="?", type=int, help="number of the incident to show")
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
    )


def run(args: argparse.Namespace) -> int:
    if args.what is None:
        return _list(args)
    if args.number is None:
        raise UsageError("no incident number: use `tidegauge incidents show NUMBER`; `tidegauge incidents` lists them")
    return _show(args)


def _list(args: argparse.Namespace) -> int:
    since_s = 0 if args.since is None else since_unix_s(args.since)
    closed_too = int(args.all or args.since is not None)
    answer = ask(args, f"/api/v1/incidents?all={closed_too}&since={since_s}&limit={max(args.limit, 0)}")
    if args.json:
        print_json(answer)
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
        print_table(HEADER, rows, gives_way=GIVES_WAY)
        if len(rows) == args.limit:
            print(f"\nonly the newest {len(rows)} are shown; for more use --limit N")
    else:
        print(_none(whose(answer), closed_too=bool(closed_too)))
    return FINE


def _none(whose_only: str | None, *, closed_too: bool) -> str:
    of_yours, why = ("", "") if whose_only is None else (" of yours", f": {whose_only}")
    if closed_too:
        return f"no incidents{of_yours}{why}"
    return f"no open incidents{of_yours}{why}; `tidegauge incidents --all` includes closed ones"


def _row(raw: Mapping[str, Any], incident: Incident, *, by_id: bool, now_s: float) -> Sequence[str]:
    """A row of the table; ``by_id`` is set if another job has the same name."""
    job = incident.key.job
    last = raw.get("last_decision")
    ranks = raw.get("ranks", incident.ranks)
    return (
        str(incident.number),
        job_name(job.job_id if by_id else incident.called.job_id, job.attempt, group=incident.group_name),
        incident.key.cause.value,
        incident.severity.value,
        incident.state.value + (", stale" if incident.stale else ""),
        list_ranks(ranks, common=incident.common, left_out=ranks_besides(incident, ranks)),
        "-" if incident.onset_step is None else str(incident.onset_step),
        rate(incident.bytes_per_step) or "-",
        (time_left(incident.seconds_to_oom) if incident.is_open else None) or "-",
        f"{format_duration(max(now_s - incident.opened_unix_s, 0.0))} ago",
        "-" if last is None else last_action([read(DecisionRecord, last)]),
    )


def _show(args: argparse.Namespace) -> int:
    answer = ask(args, f"/api/v1/incident?number={args.number}", timeout_s=LONG_ANSWER_S)
    if args.json:
        print_json(answer)
        return FINE
    incident = read(Incident, answer["incident"])
    records = [read(DecisionRecord, raw) for raw in answer["decisions"]]
    status = read(LoopStatus, ask(args, "/api/v1/policy"))
    for text in incident_page.headline(incident).split("\n"):
        print_wrapped("", text)
    print()
    for name, text in incident_page.figures(incident, now_s=time.time()):
        print_wrapped(f"{name:<12}", text)
    if incident.findings:
        print(f"\nRanks, worst first, at {moment(incident.updated_unix_s)}")
        rows = incident_page.rank_rows(incident)
        print_table(incident_page.RANK_HEADER, rows, gives_way=incident_page.RANKS_GIVE_WAY)
        left_out = len(incident.findings) + incident.ranks_left_out - len(rows)
        if left_out > 0:
            print(f"and {left_out} more ranks; --json lists {'most' if incident.ranks_left_out else 'all'} of them")
    answers = [read(GradeAnswer, raw) for raw in answer.get("answers", ())]  # missing in an older service's answer
    entries = timeline(answer["history"], records, answers)
    for start, text in incident_page.below_ranks(incident, entries, records, status):
        print_wrapped(start, text)
    if incident.key.cause.is_growth:
        from tidegauge_exporter.links import Links

        links = Links(service_url=load_settings(args).public_url or args.api)
        print()
        print_wrapped("", policy_grade.question(incident.number, links.grade(incident.number)))
    return FINE
