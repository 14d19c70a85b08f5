"""``tidegauge profile`` shows what fills the GPU at the peak of a recorded snapshot."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tidegauge.cli.arguments import add_examples, add_json, positive_count
from tidegauge.cli.errors import FINE, bad_file

HELP = "show what fills the GPU at the peak of a recorded snapshot: by category, phase and line"
DEFAULT_TOP = 12


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "snapshot", metavar="SNAPSHOT", type=Path,
        help="PyTorch or Tidegauge snapshot with allocation history and Python stacks of one training step or more",
    )  # fmt: skip
    parser.add_argument("--device", type=int, metavar="N", help="device to use if a snapshot has several")
    parser.add_argument(
        "--top", type=positive_count, default=DEFAULT_TOP, metavar="N",
        help=f"show the N lines that hold most (default: {DEFAULT_TOP}); --json has all",
    )  # fmt: skip
    add_json(parser, "print the profile as one JSON object")
    add_examples(parser, "tidegauge profile snapshot.pickle", "tidegauge profile --json --device 1 rank-1.snap.zst")


def run(args: argparse.Namespace) -> int:
    # The modules that read and replay are loaded here, because other commands do not need them.
    from tidegauge.analysis.compiling import prepare_model
    from tidegauge.analysis.traces.reading import open_trace

    try:
        trace = open_trace(args.snapshot, device=args.device, on_read=prepare_model)
        # Only now: how the model is imported depends on the length of the trace.
        from tidegauge.analysis.profile.profile import profile_of

        profile = profile_of(trace)
    except ValueError as error:
        raise bad_file(args.snapshot, error) from error
    from tidegauge.cli.offline.profile_page import print_page
    from tidegauge.core.wire import to_wire

    if args.json:
        print(json.dumps({"file": str(args.snapshot), **dict(to_wire(profile))}))  # type: ignore[arg-type] # SAFETY: a dataclass becomes a dict
    else:
        print_page(profile, args.top)
    return FINE
