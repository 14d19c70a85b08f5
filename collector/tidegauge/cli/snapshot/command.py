"""``tidegauge snapshot`` takes memory snapshots of ranks, or collects evidence on one (docs/snapshot.md)."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from typing import TYPE_CHECKING

from tidegauge.cli.arguments import OUTPUT, SELECTION, add_examples, file_or_folder_to_write, group
from tidegauge.cli.errors import ENVIRONMENT, FINE, CommandError, UsageError
from tidegauge.cli.output import print_json, print_table, print_wrapped, progress
from tidegauge.cli.service_api import add_api_arguments
from tidegauge.core.evidence.request import MAX_EVENTS
from tidegauge.core.wire import to_wire

if TYPE_CHECKING:
    from tidegauge.cli.attach.process import AttachTarget
    from tidegauge.cli.snapshot.ranks import TakenSnapshot

HELP = "take a memory snapshot of a running rank, or (--evidence) find the line that leaks and what holds it"

HEADER = ("rank", "pid", "step", "file", "size", "training paused")
MAX_ASKED_EVENTS = 100_000


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="PID|JOB", help="pid of a rank or launcher (all its ranks), or a job id (its ranks on this "
        "host, else one rank on another host, through the service)",
    )  # fmt: skip
    parser.add_argument(
        "--evidence", action="store_true",
        help="record about 30 steps with allocation stacks, compare, and search for what holds the growing tensors",
    )  # fmt: skip
    parser.add_argument("--now", action="store_true", help="do not wait for the end of a training step")
    selection = group(parser, SELECTION)
    selection.add_argument("--job", action="store_true", help="treat a numeric argument as a job id, not a pid")
    selection.add_argument("--rank", type=int, metavar="R", help="only this rank")
    selection.add_argument(
        "--group", metavar="NAME", help="only this group of ranks, if the job has several (see `tidegauge jobs`)"
    )
    output = group(parser, OUTPUT)
    output.add_argument(
        "-o", "--output", type=file_or_folder_to_write, metavar="FILE|FOLDER",
        help="folder (default: this one), NAME.snap.zst, or NAME.pickle for pytorch.org/memory_viz",
    )  # fmt: skip
    output.add_argument(
        "--events", type=_events, default=MAX_EVENTS, metavar="N",
        help=f"limit the allocation history to N events (default: {MAX_EVENTS:,})",
    )  # fmt: skip
    add_api_arguments(parser)
    add_examples(
        parser,
        "tidegauge snapshot 12345                           snapshot of one rank, into this folder",
        "tidegauge snapshot 4711 --rank 3 -o r3.pickle      for pytorch.org/memory_viz",
        "tidegauge snapshot 4711 --rank 3 --evidence        what grows on rank 3, and what holds it",
    )


def run(args: argparse.Namespace) -> int:
    if args.evidence and (args.now or args.output):
        raise UsageError(
            "--evidence cannot be combined with --now or -o: it covers several steps, and its snapshots go to the "
            "service's store"
        )
    from tidegauge.cli.attach.process import NoTargetError, targets_of

    if args.group is not None:
        from tidegauge.cli.snapshot.elsewhere import ask_elsewhere

        return ask_elsewhere(args, not_here="only the service knows the groups of ranks of a job")
    try:
        found = targets_of(args.what, os.environ, is_job=args.job)
    except NoTargetError as error:
        from tidegauge.cli.snapshot.elsewhere import ask_elsewhere

        return ask_elsewhere(args, not_here=str(error))
    targets = [target for target in found if args.rank in (None, target.seen.rank)]
    if not targets:
        known = ", ".join(sorted(str(target.seen.rank) for target in found if target.seen.rank is not None))
        raise CommandError(f"{args.what} has no rank {args.rank} on this host; ranks here: {known or 'none'}")
    return _find_evidence(args, targets) if args.evidence else _take(args, targets)


def _take(args: argparse.Namespace, targets: list[AttachTarget]) -> int:
    from tidegauge.cli.snapshot.ranks import NoAnswerError, outputs_of, take_snapshot

    outputs = outputs_of(args.output, several=len(targets) > 1)
    times_there = Counter(target.seen.rank for target in targets)
    taken: list[tuple[TakenSnapshot, str]] = []
    refused: list[str] = []
    with progress("snapshot") as say:
        for target in targets:
            say(f"taking a snapshot of rank {_rank(target)}")
            try:
                snapshot = take_snapshot(target, max_events=args.events, now=args.now)
                taken.append((snapshot, outputs.write(snapshot, with_pid=times_there[target.seen.rank] > 1)))
            except NoAnswerError as error:
                refused.append(f"rank {_rank(target)} (pid {target.seen.process.pid}): {error}")
    _print_taken(args, taken, refused)
    return FINE if not refused else ENVIRONMENT


def _print_taken(args: argparse.Namespace, taken: list[tuple[TakenSnapshot, str]], refused: list[str]) -> None:
    if args.json:
        snapshots = [
            {"rank": one.rank, "pid": one.pid, "step": one.step, "file": file, "bytes": os.path.getsize(file),
             "stall_s": one.stall_s}
            for one, file in taken
        ]  # fmt: skip
        print_json({"snapshots": snapshots, "refused": refused})
        return
    if taken:
        print_table(HEADER, [one.row(file) for one, file in taken], gives_way=("pid", "size"))
        first = taken[0][1]
        print(f"\nto view it: tidegauge report {first}; to compare two of one rank: tidegauge diff EARLY LATE")
    for sentence in refused:
        print_wrapped("", sentence)


def _find_evidence(args: argparse.Namespace, targets: list[AttachTarget]) -> int:
    from tidegauge.cli.snapshot.evidence import find_evidence, print_evidence
    from tidegauge.cli.snapshot.ranks import NoAnswerError

    if len(targets) > 1:
        numbers = [_rank(target) for target in targets]
        several = len(set(numbers)) < len(numbers)
        one_of = (
            f"use a pid: {', '.join(f'{target.seen.process.pid} (rank {_rank(target)})' for target in targets)}"
            if several
            else f"use --rank with one of {', '.join(numbers)}"
        )
        raise UsageError(f"evidence is collected on one rank at a time, to avoid slowing down all: {one_of}")
    try:
        with progress("snapshot") as say:
            evidence = find_evidence(targets[0], max_events=args.events, say=say)
    except NoAnswerError as error:
        raise CommandError(f"rank {_rank(targets[0])} (pid {targets[0].seen.process.pid}): {error}") from error
    if args.json:
        print_json(to_wire(evidence))
    else:
        print_evidence(evidence)
    return FINE


def _rank(target: AttachTarget) -> str:
    return "?" if target.seen.rank is None else str(target.seen.rank)


def _events(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_ASKED_EVENTS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of events from 0 to {MAX_ASKED_EVENTS:,}")
    return int(text)
