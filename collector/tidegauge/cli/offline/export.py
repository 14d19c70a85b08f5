"""``tidegauge export`` converts a snapshot, or the growth between two, for other tools; or writes what the head keeps
about a user."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from tidegauge.cli.arguments import OUTPUT, STANDARD_OUTPUT, add_examples, group, output_to_write
from tidegauge.cli.config import add_settings_arguments
from tidegauge.cli.errors import FINE, UsageError, bad_file
from tidegauge.cli.output import spare_what_is_read, write_output

if TYPE_CHECKING:
    from tidegauge.analysis.snapshots.traces import Snapshot

HELP = "convert a memory snapshot, or the growth between two, for other tools: memory_viz, flame graphs, pprof"
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
"""Formats by file name ending; the first match decides."""
FORMATS = tuple(dict.fromkeys(ENDINGS.values()))
BINARY = ("torch", "pprof")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "snapshot", metavar="SNAPSHOT", nargs="?", help="PyTorch or Tidegauge snapshot (file or URL)"
    )  # fmt: skip
    parser.add_argument(
        "late", metavar="LATE", nargs="?",
        help="later snapshot: export the growth from SNAPSHOT to LATE instead of live memory",
    )  # fmt: skip
    parser.add_argument(
        "--user", metavar="USER",
        help="instead of a snapshot: everything that the service keeps about a user, as JSON; on the head",
    )  # fmt: skip
    parser.add_argument("--device", type=int, metavar="N", help="device to use if a snapshot has several")
    output = group(parser, OUTPUT)
    output.add_argument(
        "--to", choices=FORMATS,
        help="torch: PyTorch pickle for pytorch.org/memory_viz; folded: stacks for flamegraph.pl; speedscope: for "
        "speedscope.app; pprof: for go tool pprof; json (default: from the extension of FILE)",
    )  # fmt: skip
    output.add_argument(
        "-o", "--output", type=output_to_write, metavar="FILE", default=STANDARD_OUTPUT,
        help="output file, or with --user a new folder (default: standard output)",
    )  # fmt: skip
    add_settings_arguments(parser)
    add_examples(
        parser,
        "tidegauge export rank-0.snap.zst -o rank-0.pickle         for pytorch.org/memory_viz",
        "tidegauge export early.pickle late.pickle -o leak.folded  flame graph of the growth",
        "tidegauge export --user ada -o ada                        what is kept about a user",
    )


def run(args: argparse.Namespace) -> int:
    if (args.user is None) is (args.snapshot is None):
        raise UsageError("name a snapshot, or a user with --user USER, and not both")
    if args.user is not None:
        from tidegauge.cli.persons.export import export_person

        return export_person(args)
    wanted = args.to or format_of(args.output.name)
    if wanted is None:
        named = "" if args.output == STANDARD_OUTPUT else f" for '{args.output}'"
        raise UsageError(
            f"no output format{named}: use --to {'|'.join(FORMATS)}, or -o FILE with one of the endings "
            f"{', '.join(ENDINGS)}"
        )
    if args.late is not None and wanted == "torch":
        raise UsageError("a PyTorch pickle holds one snapshot: omit LATE, or choose another --to")
    if args.output == STANDARD_OUTPUT and wanted in BINARY and sys.stdout.isatty():
        raise UsageError(f"{wanted} is a binary format: use -o FILE, or a pipe")
    # The modules that read and compare are loaded here, because other commands do not need them.
    from tidegauge.cli.offline.export_forms import exported

    files = [args.snapshot] if args.late is None else [args.snapshot, args.late]
    spare_what_is_read(args.output, files)
    _write(args.output, exported([(file, _read(file)) for file in files], wanted, args.device))
    return FINE


def format_of(name: str) -> Optional[str]:
    """The format for a file name; ``None`` for standard output."""
    return next((form for ending, form in ENDINGS.items() if name.lower().endswith(ending)), None)


def _read(file: str) -> Snapshot:
    from tidegauge.analysis.bad_traces import BadTraceError
    from tidegauge.analysis.snapshots.reading import read_snapshot

    try:
        return read_snapshot(file)
    except BadTraceError as error:
        raise bad_file(file, error) from error


def _write(output: Path, content: bytes) -> None:
    if output == STANDARD_OUTPUT:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    write_output(output, content)
