"""``tidegauge policy grade`` records whether an incident was a leak, and shows the precision of notifications."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidegauge.cli.arguments import add_examples
from tidegauge.cli.errors import FINE, UsageError
from tidegauge.cli.output import print_json, print_table, print_wrapped
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
from tidegauge.core.units import format_last
from tidegauge.core.wire import to_wire

HEADER = ("incidents", "notified", "would notify", "graded", "leak", "not a leak", "precision (graded)")
DEFAULT_SINCE_S = 30 * 86_400.0
MAX_INCIDENTS = 1000
"""Maximum number of incidents, the newest; the API returns no more at once."""
MAX_NAMED = 20
WORDS = {grade.value.replace("_", "-"): grade for grade in Grade}
NO_GPU_TIME = (
    "No rate per 1,000 GPU-days: the service does not record the GPU time of jobs without an incident. "
    "docs/policy.md shows how to get it from Prometheus or the scheduler."
)


def prepare(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{parser.description} {_rule()}"
    add_api_arguments(parser)
    parser.add_argument("incident", nargs="?", type=int, metavar="INCIDENT", help="incident to grade")
    parser.add_argument("grade", nargs="?", choices=list(WORDS), help="your verdict")
    parser.add_argument("--comment", metavar="TEXT", help=f"reason (up to {MAX_COMMENT_CHARS} characters)")
    parser.add_argument("--since", type=ago, metavar="30d", help="for the table: how far back (default: 30d)")
    add_examples(
        parser,
        "tidegauge policy grade                     precision of the last 30 days",
        "tidegauge policy grade 3 leak              incident 3 was a leak",
        "tidegauge policy grade 3 not-a-leak --comment 'buffer of fixed size'",
    )


def _rule() -> str:
    """The meaning of the grades, for the help."""
    meaning = "; ".join(f"{word}: {RULE[grade]}" for word, grade in WORDS.items())
    examples = "; ".join(f"{text} ({GRADE_WORDS[grade]})" for grade, text in EXAMPLES)
    return f"{meaning}. {RULE_NOTE} Examples: {examples}."


def run(args: argparse.Namespace) -> int:
    if args.incident is None:
        args.since = DEFAULT_SINCE_S if args.since is None else args.since
        if args.comment is not None:
            raise UsageError("--comment needs an incident and a grade")
        return _table(args)
    if args.since is not None:
        raise UsageError("--since cannot be combined with an incident")
    if args.grade is None:
        raise UsageError(f"no grade: use `tidegauge policy grade {args.incident} leak` or `not-a-leak`")
    return _answer(args)


def _answer(args: argparse.Namespace) -> int:
    fields = {"incident": str(args.incident), "grade": WORDS[args.grade].value}
    if args.comment:
        fields["comment"] = args.comment
    answer = send(args, "/api/v1/grades", fields)
    if args.json:
        print_json(answer)
        return FINE
    print_wrapped("", recorded_words(args.incident, answer))
    return FINE


def recorded_words(number: int, answer: Mapping[str, Any]) -> str:
    """What the service's answer to a grade means, for the one who gave it."""
    answers, yours = [read(GradeAnswer, raw) for raw in answer["answers"]], read(GradeAnswer, answer.get("yours", {}))
    counted = f"Incident {number} counts as {answer_in_words(yours)}"
    return f"Recorded. {why_not_counted(yours, answers, when=day) or counted}"


def _table(args: argparse.Namespace) -> int:
    answer = ask(args, f"/api/v1/grades?since={since_unix_s(args.since)}&limit={MAX_INCIDENTS}")
    incidents = [read(GradedIncident, raw) for raw in answer["incidents"]]
    rows = precision_rows(incidents)
    if args.json:
        print_json({**answer, "precision": [_as_json(row) for row in rows]})
        return FINE
    if not incidents:
        print(f"nothing to grade: no notifications in the last {format_last(args.since)}")
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
    """The precision with Wilson's 95 % interval: ``83 % (44 to 97)``."""
    if row.precision is None or row.low is None or row.high is None:
        return "-"
    return f"{100 * row.precision:.0f} % ({100 * row.low:.0f} to {100 * row.high:.0f})"


def _in_words(row: PrecisionRow, incidents: Sequence[GradedIncident], answer: dict[str, Any]) -> Iterator[str]:
    """Sentences below the table, which say how many incidents are not graded."""
    if row.unanswered and row.precision_of_all is not None:
        lowest, highest = row.precision_of_all
        yield (
            f"{row.unanswered} of {len(incidents)} incidents are not graded, and the graded ones may not be "
            f"representative. Precision over all: {100 * lowest:.0f} % if every ungraded one was false, "
            f"{100 * highest:.0f} % if every one was right."
        )
        unanswered = [str(one.number) for one in incidents if one.answer is None]
        more = f" and {len(unanswered) - MAX_NAMED} more" if len(unanswered) > MAX_NAMED else ""
        how = "`tidegauge policy grade INCIDENT leak` or `not-a-leak`"
        yield f"Not graded: {', '.join(unanswered[:MAX_NAMED])}{more}. {how}."
    if row.told + row.would_tell:
        yield (
            "notified: the owner got a message; would notify: suppressed by policy mode observe. Ranges are Wilson "
            "95 % intervals, assuming independent incidents."
        )
        yield NO_GPU_TIME
    if answer["left_out"]:
        yield f"{answer['left_out']} older incidents are not counted; use a shorter --since to count all."
    whose_only = whose(answer)
    if whose_only is not None:
        yield f"Only your jobs: {whose_only}."


def _as_json(row: PrecisionRow) -> dict[str, Any]:
    raw = to_wire(row)
    assert isinstance(raw, dict), "a row is an object"
    return {**raw, "unanswered": row.unanswered, "precision_of_all": to_wire(row.precision_of_all)}


def question(number: int, url: str | None) -> str:
    words = " | ".join(WORDS)
    return f"Was this a leak? tidegauge policy grade {number} {words}" + (f", or {url}" if url else "")
