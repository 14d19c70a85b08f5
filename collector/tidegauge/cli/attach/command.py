"""``tidegauge attach`` starts or stops profiling of a running process (docs/attach.md)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from tidegauge.agent.processes.procfs import ProcFs
from tidegauge.cli.arguments import add_examples, add_json
from tidegauge.cli.attach.targets import NoTargetError, targets_of
from tidegauge.cli.attach.ways import AttachOutcome, attach, detach
from tidegauge.cli.errors import ENVIRONMENT, FINE, CommandError
from tidegauge.cli.output import print_json, print_table, print_wrapped, progress
from tidegauge.probe.levels import AUTO, WATCHING_LEVELS

HELP = "start profiling a process that is already running, or stop it (--detach)"

HEADER = ("pid", "rank", "user", "state", "level", "result")
WAIT_S = 30.0


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="+", metavar="PID|JOB",
        help="pid of a rank or of a launcher (torchrun, `tidegauge run`: all its ranks), or a job id (its ranks on "
        "this host)",
    )  # fmt: skip
    parser.add_argument("--level", choices=WATCHING_LEVELS, default=AUTO, help=f"profiling level (default: {AUTO})")
    parser.add_argument("--detach", action="store_true", help="stop profiling: the probe is detached")
    parser.add_argument("--job", action="store_true", help="treat numeric arguments as job ids, not pids")
    parser.add_argument(
        "--wait", type=_seconds, default=WAIT_S, metavar="S",
        help=f"how long to wait for a process to start its probe (default: {WAIT_S:g} s)",
    )  # fmt: skip
    add_json(parser)
    add_examples(
        parser,
        "tidegauge attach 12345                one rank, or all ranks of a launcher",
        "tidegauge attach 4711 --job           the ranks of job 4711 on this host",
        "tidegauge attach 12345 --detach       stop profiling",
    )


def run(args: argparse.Namespace) -> int:
    try:
        found = [target for word in args.what for target in targets_of(word, os.environ, is_job=args.job)]
    except NoTargetError as error:
        raise CommandError(str(error)) from error
    targets = list({target.seen.process: target for target in found}.values())
    with progress("attach") as say:
        outcomes = [
            detach(target) if args.detach else attach(target, args.level, wait_s=args.wait, environ=os.environ, say=say)
            for target in targets
        ]
    if args.json:
        print_json({"processes": [_as_json(outcome) for outcome in outcomes]})
    else:
        _print(outcomes)
    return FINE if all(outcome.good for outcome in outcomes) else ENVIRONMENT


def _print(outcomes: Sequence[AttachOutcome]) -> None:
    """Print the outcome of each process, and below them each refusal once."""
    names = ProcFs()
    rows = []
    refusals: dict[str, list[int]] = {}
    for outcome in outcomes:
        seen = outcome.target.seen
        if not outcome.good:
            refusals.setdefault(outcome.said, []).append(seen.process.pid)
        rows.append(
            (
                str(seen.process.pid),
                "-" if seen.rank is None else str(seen.rank),
                names.user_name(seen.uid),
                outcome.state,
                outcome.level or "-",
                outcome.said if outcome.good else "see below",
            )
        )
    print_table(HEADER, rows, gives_way=("user", "level"))
    for said, pids in refusals.items():
        print_wrapped(f"pid {', '.join(map(str, pids))}: ", said)


def _as_json(outcome: AttachOutcome) -> dict[str, Any]:
    seen = outcome.target.seen
    return {
        "pid": seen.process.pid,
        "rank": seen.rank,
        "uid": seen.uid,
        "state": outcome.state,
        "way": outcome.way,
        "level": outcome.level,
        "said": outcome.said,
    }


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and at most 3600")
    return seconds
