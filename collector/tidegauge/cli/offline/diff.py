"""``tidegauge diff``: what has grown between two memory snapshots, by the line that allocated it."""

from __future__ import annotations

import argparse
import json

from tidegauge.cli.errors import FINE, bad_file

HELP = "compare two memory snapshots: which line's memory has grown, and by how much"
TOP = 10


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "early",
        metavar="EARLY",
        help="a snapshot of PyTorch's (torch.cuda.memory._dump_snapshot) or Tidegauge's, or a URL",
    )
    parser.add_argument(
        "late", metavar="LATE", help="a later one of the same rank, or one of another rank at that step"
    )
    parser.add_argument(
        "--by", choices=("line", "stack", "size"), default=None,
        help="what to group by: the line of your own code, the whole stack, or the blocks' size (default: line; with "
        "--json, stack)",
    )  # fmt: skip
    parser.add_argument(
        "--top", type=_count, metavar="N", help=f"show the largest N (default: {TOP}; with --json, all)"
    )
    parser.add_argument("--device", type=int, metavar="N", help="which device, where a snapshot has several")
    parser.add_argument("--json", action="store_true", help="a JSON list, the largest growth first")


def run(args: argparse.Namespace) -> int:
    # What reads and compares is loaded here: the other commands start without it.
    from tidegauge.analysis.bad_traces import BadTraceError
    from tidegauge.analysis.growth.diff import compare
    from tidegauge.analysis.snapshots.files import read_snapshot
    from tidegauge.analysis.snapshots.traces import trace_with_memory
    from tidegauge.cli.offline.diff_page import Compared, as_json, print_page

    traces, steps = [], []
    for file in (args.early, args.late):
        try:
            snapshot = read_snapshot(file)
            traces.append(trace_with_memory(snapshot, args.device))
        except BadTraceError as error:
            raise bad_file(file, error) from error
        step = snapshot.facts.get("step")
        steps.append(step if isinstance(step, int) else None)
    compared = Compared(compare(*traces), steps[0], steps[1])
    if args.json:
        print(json.dumps(as_json(compared, args.by or "stack", args.top)))
    else:
        print_page(compared, args.by or "line", args.top or TOP)
    return FINE


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)
