"""``tidegauge export``: a snapshot, or the growth between two, in a form that other tools read."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from tidegauge.cli.errors import ENVIRONMENT, FINE, USAGE, CommandError, bad_file
from tidegauge.cli.own_files import write_own

if TYPE_CHECKING:
    from tidegauge.analysis.snapshots.traces import Snapshot

HELP = "write a memory snapshot, or the growth between two, for other tools: memory_viz, flame graphs, pprof"
ENDINGS = {
    ".pickle": "torch",
    ".pkl": "torch",
    ".folded": "folded",
    ".collapsed": "folded",
    ".speedscope.json": "speedscope",
    ".pprof": "pprof",
    ".pb.gz": "pprof",
    ".json": "json",
}
"""The first that fits decides."""
FORMATS = tuple(dict.fromkeys(ENDINGS.values()))
BINARY = ("torch", "pprof")
STANDARD_OUTPUT = "-"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshot", metavar="SNAPSHOT", help="a snapshot of PyTorch's or Tidegauge's, or a URL")
    parser.add_argument(
        "late",
        metavar="LATE",
        nargs="?",
        help="a later one: what has grown from SNAPSHOT to it, instead of what is alive",
    )
    parser.add_argument(
        "--to", choices=FORMATS,
        help="torch: PyTorch's own pickle, for pytorch.org/memory_viz; folded: folded stacks, for flamegraph.pl; "
        "speedscope: for speedscope.app; pprof: for go tool pprof; json (default: by the ending of FILE)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FILE", default=STANDARD_OUTPUT, help="default: standard output")
    parser.add_argument("--device", type=int, metavar="N", help="which device, where a snapshot has several")


def run(args: argparse.Namespace) -> int:
    wanted = args.to or format_of(args.output)
    if wanted is None:
        raise CommandError(
            f"the ending of {args.output!r} says no format: give --to {'|'.join(FORMATS)}, or a name that ends in "
            f"{', '.join(ENDINGS)}",
            exit_code=USAGE,
        )
    if args.late is not None and wanted == "torch":
        raise CommandError(
            "PyTorch's pickle is of one snapshot: leave LATE out, or choose another --to", exit_code=USAGE
        )
    if args.output == STANDARD_OUTPUT and wanted in BINARY and sys.stdout.isatty():
        raise CommandError(f"{wanted} is no text: give -o FILE, or a pipe", exit_code=USAGE)
    # What reads and compares is loaded here: the other commands start without it.
    from tidegauge.cli.offline.export_forms import exported

    files = [args.snapshot] if args.late is None else [args.snapshot, args.late]
    _write(args.output, exported([(file, _read(file)) for file in files], wanted, args.device))
    return FINE


def format_of(name: str) -> Optional[str]:
    """By the ending of a file's name; of standard output, none."""
    return next((form for ending, form in ENDINGS.items() if name.lower().endswith(ending)), None)


def _read(file: str) -> Snapshot:
    from tidegauge.analysis.bad_traces import BadTraceError
    from tidegauge.analysis.snapshots.files import read_snapshot

    try:
        return read_snapshot(file)
    except BadTraceError as error:
        raise bad_file(file, error) from error


def _write(output: str, content: bytes) -> None:
    if output == STANDARD_OUTPUT:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        write_own(Path(output), content)
    except OSError as error:
        raise CommandError(f"{output}: cannot be written: {error.strerror or error}", exit_code=ENVIRONMENT) from error
