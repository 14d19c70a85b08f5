"""``tidegauge policy grade``: say whether an incident was a leak, and how often this site's notifications are right."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from tidegauge.cli.errors import FINE, USAGE, CommandError
from tidegauge.cli.output import print_table, print_wrapped
from tidegauge.cli.service_api import add_api_arguments, ask, read, send, whose
from tidegauge.cli.times import ago, day, since_unix_s
from tidegauge.core.incidents.grades import (
    EXAMPLES,
    GRADE_WORDS,
    MAX_COMMENT_CHARS,
    RULE,
    RULE_NOTE,
    Grade,
    GradeAnswer,
    GradedIncident,
    PrecisionRow,
    answer_in_words,
    precision_rows,
    why_not_counted,
)
from tidegauge.core.units import format_duration
from tidegauge.core.wire import to_wire

HEADER = ("incidents", "told", "would tell", "answered", "leak", "not a leak", "precision of those answered")
DEFAULT_SINCE_S = 30 * 86_400.0
MAX_INCIDENTS = 1000
"""The newest of the time, as many as the API gives at once."""
MAX_NAMED = 20
WORDS = {grade.value.replace("_", "-"): grade for grade in Grade}
NO_GPU_TIME = (
    "How many there are per 1,000 GPU-days is left out: the service keeps no GPU time of jobs without an incident. "
    "docs/policy.md says how to count it from Prometheus or the scheduler."
)


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{parser.description} {_rule()}"
    add_api_arguments(parser)
    parser.add_argument("incident", nargs="?", type=int, metavar="INCIDENT", help="the incident to grade")
    parser.add_argument("grade", nargs="?", choices=list(WORDS), help="what it was")
    parser.add_argument("--comment", metavar="TEXT", help=f"why ({MAX_COMMENT_CHARS} characters at most)")
    parser.add_argument("--since", type=ago, metavar="30d", help="for the table alone: how far back (default: 30d)")


def _rule() -> str:
    """Which answer is right, for the help."""
    meaning = "; ".join(f"{word}: {RULE[grade]}" for word, grade in WORDS.items())
    examples = "; ".join(f"{text} ({GRADE_WORDS[grade]})" for grade, text in EXAMPLES)
    return f"{meaning}. {RULE_NOTE} Examples: {examples}."


def run(args: argparse.Namespace) -> int:
    if args.incident is None:
        args.since = DEFAULT_SINCE_S if args.since is None else args.since
        if args.comment is not None:
            raise CommandError("a comment belongs to an answer: name the incident, too", exit_code=USAGE)
        return _table(args)
    if args.since is not None:
        raise CommandError("--since is for the table: leave out the incident, or --since", exit_code=USAGE)
    if args.grade is None:
        raise CommandError(
            f"was incident {args.incident} a leak? `tidegauge policy grade {args.incident} leak` or `not-a-leak`",
            exit_code=USAGE,
        )
    return _answer(args)


def _answer(args: argparse.Namespace) -> int:
    fields = {"incident": str(args.incident), "grade": WORDS[args.grade].value}
    if args.comment:
        fields["comment"] = args.comment
    answer = send(args, "/api/v1/grades", fields)
    if args.json:
        print(json.dumps(answer, indent=2))
        return FINE
    answers, yours = [read(GradeAnswer, raw) for raw in answer["answers"]], read(GradeAnswer, answer.get("yours", {}))
    counted = f"Incident {args.incident} counts as {answer_in_words(yours)}"
    print_wrapped("", f"recorded. {why_not_counted(yours, answers, when=day) or counted}")
    return FINE


def _table(args: argparse.Namespace) -> int:
    answer = ask(args, f"/api/v1/grades?since={since_unix_s(args.since)}&limit={MAX_INCIDENTS}")
    incidents = [read(GradedIncident, raw) for raw in answer["incidents"]]
    rows = precision_rows(incidents)
    if args.json:
        print(json.dumps({**answer, "precision": [_as_json(row) for row in rows]}, indent=2))
        return FINE
    if not incidents:
        print(f"no incident of the last {format_duration(args.since)} told its owner, or would have: nothing to grade")
    else:
        print_table(HEADER, list(map(_row, rows)))
        print()
    for text in _in_words(rows[0], incidents, answer):
        print_wrapped("", text)
    return FINE


def _row(row: PrecisionRow) -> Sequence[str]:
    numbers = (row.told, row.would_tell, row.answered, row.leaks, row.answered - row.leaks)
    return (row.group, *map(str, numbers), _precision(row))


def _precision(row: PrecisionRow) -> str:
    """``83 % (44 to 97)``, with Wilson's 95 % interval."""
    if row.precision is None or row.low is None or row.high is None:
        return "-"
    return f"{100 * row.precision:.0f} % ({100 * row.low:.0f} to {100 * row.high:.0f})"


def _in_words(row: PrecisionRow, incidents: Sequence[GradedIncident], answer: dict[str, Any]) -> Iterator[str]:
    """What the table does not say, so that nobody takes those that were answered for all."""
    if row.unanswered and row.precision_of_all is not None:
        lowest, highest = row.precision_of_all
        yield (
            f"{row.unanswered} of {len(incidents)} have no answer, and those that have one may not be like the others. "
            f"Precision of all: {100 * lowest:.0f} % if every one without an answer was false, {100 * highest:.0f} % "
            "if every one was right."
        )
        unanswered = [str(one.number) for one in incidents if one.answer is None]
        more = f" and {len(unanswered) - MAX_NAMED} more" if len(unanswered) > MAX_NAMED else ""
        how = "`tidegauge policy grade INCIDENT leak` or `not-a-leak`"
        yield f"Without an answer: {', '.join(unanswered[:MAX_NAMED])}{more}. {how}."
    if row.told + row.would_tell:
        yield (
            "told: the owner got a message; would tell: the policy's mode (observe) kept it back. Ranges are Wilson's "
            "95 % intervals, as if incidents were independent of each other."
        )
        yield NO_GPU_TIME
    if answer["left_out"]:
        yield f"{answer['left_out']} older incidents of this time are left out; a shorter --since counts all."
    whose_only = whose(answer)
    if whose_only is not None:
        yield f"Of your jobs alone: {whose_only}."


def _as_json(row: PrecisionRow) -> dict[str, Any]:
    raw = to_wire(row)
    assert isinstance(raw, dict), "a row is an object"
    return {**raw, "unanswered": row.unanswered, "precision_of_all": to_wire(row.precision_of_all)}


def question(number: int, url: str | None) -> str:
    """For the page of an incident: how to answer."""
    words = " | ".join(WORDS)
    return f"Was this a leak? tidegauge policy grade {number} {words}" + (f", or {url}" if url else "")
