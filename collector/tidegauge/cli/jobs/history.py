"""``tidegauge history`` lists jobs that ended: who ran them, how full their GPUs were, and how they ended."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tidegauge.cli.arguments import SELECTION, add_examples, group, positive_count, some_text
from tidegauge.cli.errors import FINE, UsageError
from tidegauge.cli.output import print_json, print_page, print_table, print_wrapped
from tidegauge.cli.service_api import LONG_ANSWER_S, add_api_arguments, ask, read, web_pages, whose
from tidegauge.cli.times import ago, moment, since_unix_s
from tidegauge.core.ids import job_name
from tidegauge.core.job_records.end_words import HOW, ran_s
from tidegauge.core.job_records.facts import used_share, worst_state
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from tidegauge_exporter.links import Links

HELP = "list jobs that ended: how full their GPUs were, and how they ended"

HEADER = ("job", "name", "user", "account", "ranks", "steps", "ran", "ended", "how", "peak allocated", "peak reserved",
          "GPU limit", "of limit", "worst state")  # fmt: skip
GIVES_WAY = ("ranks", "steps", "peak allocated", "account", "GPU limit", "peak reserved", "ran", "user", "worst state",
             "name")  # fmt: skip
"""Columns that are dropped on a narrow terminal, in this order."""
"""How a job ended, in the column of that name and wherever a command says it."""
MAX_ENDED, FEW_ENDED = 1000, 200
"""Jobs in one answer of the API, and without --limit."""
SINCE = "30d"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    selection = group(parser, SELECTION)
    selection.add_argument("--user", type=some_text, metavar="NAME", help="only jobs of this user")
    selection.add_argument("--account", type=some_text, metavar="NAME", help="only jobs of this Slurm account")
    selection.add_argument(
        "--name", type=some_text, help="only jobs of this name; * stands for any characters: 'llm-*'"
    )
    selection.add_argument(
        "--since", type=ago, default=ago(SINCE), metavar=SINCE,
        help=f"only jobs that ended within this time (default: {SINCE})",
    )  # fmt: skip
    selection.add_argument("--until", type=ago, metavar="7d", help="only jobs that ended longer ago than this")
    selection.add_argument(
        "--ended", type=_how, choices=[end.value for end in JobEnd], metavar="HOW",
        help=f"only jobs that ended so: {', '.join(end.value for end in JobEnd)}",
    )  # fmt: skip
    selection.add_argument(
        "--limit", type=positive_count, default=FEW_ENDED, metavar="N",
        help=f"limit the output to the newest N jobs, {MAX_ENDED} at most (default: {FEW_ENDED})",
    )  # fmt: skip
    add_api_arguments(parser)
    add_examples(
        parser,
        "tidegauge history                          jobs of the last 30 days",
        "tidegauge history --name 'llm-*' --since 90d   earlier runs of one model",
        "tidegauge history --ended oom --user ada   jobs that died of an out-of-memory error",
        "tidegauge job 4711                         one of them, with all its ranks",
    )


def run(args: argparse.Namespace) -> int:
    if args.until is not None and args.until >= args.since:
        raise UsageError("no time is left between --since and --until: both are counted back from now")
    query = {
        "since": since_unix_s(args.since),
        "until": None if args.until is None else since_unix_s(args.until),
        "user": args.user,
        "account": args.account,
        "name": args.name,
        "ended": args.ended,
        "limit": min(args.limit, MAX_ENDED),
    }
    asked = urlencode({name: value for name, value in query.items() if value is not None}, errors="replace")
    answer = ask(args, f"/api/v1/ended-jobs?{asked}", timeout_s=LONG_ANSWER_S)
    pages = web_pages(args)
    if args.json:
        print_json({**answer, "url": pages.page("history")})
        return FINE
    records = [read(JobRecord, raw) for raw in answer["jobs"]]
    if records:
        print_records(records, pages)
        print()
        print_wrapped("", summary(records, left_out=answer["left_out"]))
    else:
        print_wrapped("", _none(args, answer))
    print_page(pages.page("history"))
    return FINE


def print_records(records: Sequence[JobRecord], pages: Links) -> None:
    """Print the table of jobs that ended; on a terminal, each leads to its one of ``pages``."""
    header, rows, gives_way = table_of(records)
    print_table(header, rows, gives_way=gives_way, pages=[pages.job_page(one.job) for one in records])


def table_of(records: Sequence[JobRecord]) -> tuple[Sequence[str], Sequence[Sequence[str]], Sequence[str]]:
    """Header, rows and the columns that give way, without the account where nobody has one."""
    rows = [_row(record) for record in records]
    if any(record.account for record in records):
        return HEADER, rows, GIVES_WAY
    at = HEADER.index("account")
    header, *others = ((*row[:at], *row[at + 1 :]) for row in (HEADER, *rows))
    return header, others, [name for name in GIVES_WAY if name != "account"]


def summary(records: Sequence[JobRecord], *, left_out: int) -> str:
    """The line below the table: how many jobs, how many died of OOM, and how full the fullest ranks were."""
    ooms = sum(record.end is JobEnd.OOM for record in records)
    parts = [f"{format_count(len(records), 'job')}, {ooms or 'none'} ended by OOM"]
    shares = sorted(share for record in records if (share := used_share(record.fullest)) is not None)
    if shares:
        middle = (shares[(len(shares) - 1) // 2] + shares[len(shares) // 2]) / 2
        parts.append(f"the fullest rank of a job reserved {in_percent(middle)} of its limit (median)")
    if left_out:
        parts.append(f"{left_out:,} more ended before these: --limit {MAX_ENDED}, or a shorter --since and --until")
    return "; ".join(parts)


def in_percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.0f}%"


def _how(text: str) -> str:
    """The value of ``JobEnd`` that the column "how" says in these words, in capitals or not."""
    return next((end.value for end, words in HOW.items() if words.lower() == text.lower()), text.lower())


def _row(record: JobRecord) -> Sequence[str]:
    peak = record.fullest
    return (
        job_name(record.job.job_id, record.job.attempt, record.array),
        record.job_name or "-",
        record.user_name,
        record.account or "-",
        str(record.world_size),
        str(record.steps),
        format_duration(ran_s(record)),
        moment(record.ended_unix_s or record.updated_unix_s)[: len("2026-11-21 06:12")],
        HOW[record.end or JobEnd.UNKNOWN],
        format_bytes(peak.allocated_bytes),
        format_bytes(peak.reserved_bytes),
        "-" if peak.limit_bytes is None else format_bytes(peak.limit_bytes),
        in_percent(used_share(peak)) or "-",
        worst_state(record),
    )


def _none(args: argparse.Namespace, answer: Mapping[str, Any]) -> str:
    """The message without a job: what was looked for, and where else to look."""
    since = f"since {moment(since_unix_s(args.since))}"
    filters = ("user", "account", "name", "ended")
    matching = [f"--{name} {value}" for name in filters if (value := getattr(args, name)) is not None]
    seen = whose(answer)
    parts = [f"no job{' of yours' if seen else ''} ended {since}{' with ' if matching else ''}{' '.join(matching)}"]
    if seen:
        parts.append(seen)
    further = "`tidegauge history --since 90d` looks further back, " if args.since < ago("90d") else ""
    return f"{': '.join(parts)}; {further}`tidegauge jobs` lists running jobs"
