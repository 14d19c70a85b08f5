"""``tidegauge diff`` compares two memory snapshots by the lines that allocated."""

from __future__ import annotations

import argparse
import json

from tidegauge.cli.arguments import OUTPUT, add_examples, add_json, group, positive_count
from tidegauge.cli.errors import FINE, bad_file
from tidegauge.cli.output import said_when_slow

HELP = "compare two memory snapshots: which lines hold more memory, and how much"
TOP = 10


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "early", metavar="EARLY",
        help="PyTorch snapshot (torch.cuda.memory._dump_snapshot) or Tidegauge snapshot (file or URL)",
    )  # fmt: skip
    parser.add_argument("late", metavar="LATE", help="later snapshot of the same rank, or a snapshot of another rank")
    parser.add_argument("--device", type=int, metavar="N", help="device to use if a snapshot has several")
    output = group(parser, OUTPUT)
    output.add_argument(
        "--by", choices=("line", "stack", "size"), default=None,
        help="group by line of your own code, whole stack, or block size (default: line; with --json: stack)",
    )  # fmt: skip
    output.add_argument(
        "--top",
        type=positive_count,
        metavar="N",
        help=f"limit the output to the largest N (default: {TOP}; with --json: all)",
    )
    add_json(parser, "print a JSON list, largest growth first")
    add_examples(
        parser,
        "tidegauge diff step100.pickle step200.pickle",
        "tidegauge diff --by stack --top 3 step100.pickle step200.pickle",
    )


def run(args: argparse.Namespace) -> int:
    # The modules that read and compare are loaded here, because other commands do not need them.
    from tidegauge.analysis.bad_traces import BadTraceError
    from tidegauge.analysis.growth.diff import compare
    from tidegauge.analysis.snapshots.reading import read_snapshot
    from tidegauge.analysis.snapshots.traces import trace_with_memory
    from tidegauge.cli.offline.diff_page import Compared, as_json, print_page

    traces, steps = [], []
    with said_when_slow("reading and comparing the snapshots"):
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
