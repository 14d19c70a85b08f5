"""``tidegauge report`` writes an HTML report on an incident, a job or snapshots."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tidegauge.cli.arguments import (
    OUTPUT,
    SELECTION,
    STANDARD_OUTPUT,
    add_examples,
    group,
    output_to_write,
    parse_cap,
)
from tidegauge.cli.errors import EXTRAS_NEED_PYTHON, FINE, CommandError, UsageError
from tidegauge.cli.output import print_json, spare_what_is_read, write_output
from tidegauge.cli.service_api import add_api_arguments, web_pages

if TYPE_CHECKING:
    from tidegauge_exporter.reports.report_content import ReportContent

HELP = "write an HTML report on an incident, a job or snapshots: what grows, what holds it, and why"
FILE_SUFFIXES = {".csv", ".gz", ".json", ".npz", ".pickle", ".pkl", ".snap", ".zst"}
"""A word with one of them is taken for a file, even if no such file exists."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="+", metavar="JOB|INCIDENT|FILE",
        help="incident number, job id, or files: an early and a late snapshot of one rank, a step series (CSV), an "
        "evidence file (.evidence.json). Snapshots given with an incident are included",
    )  # fmt: skip
    kind = group(parser, SELECTION).add_mutually_exclusive_group()
    kind.add_argument("--incident", action="store_true", help="treat a numeric argument as an incident number")
    kind.add_argument("--job", action="store_true", help="treat a numeric argument as a job id")
    group(parser, SELECTION).add_argument(
        "--device", type=int, metavar="N", help="device to use if a snapshot has several"
    )
    output = group(parser, OUTPUT)
    output.add_argument(
        "-o", "--output", type=output_to_write, metavar="FILE",
        help="output file, - for standard output (default: tidegauge-report-….html)",
    )  # fmt: skip
    output.add_argument(
        "--capacity-bytes", type=parse_cap, metavar="SIZE",
        help="device memory available to the process, such as 80GiB: for the OOM prediction of a step series",
    )  # fmt: skip
    output.add_argument("--no-whatif", action="store_true", help="do not try other allocator settings on the snapshot")
    add_api_arguments(parser)
    add_examples(
        parser,
        "tidegauge report 3                                 incident 3",
        "tidegauge report 4711 --job -o report.html         newest incident of job 4711",
        "tidegauge report early.pickle late.pickle          two snapshots, without a service",
    )


def run(args: argparse.Namespace) -> int:
    if sys.version_info < EXTRAS_NEED_PYTHON:
        wanted = ".".join(map(str, EXTRAS_NEED_PYTHON))
        raise CommandError(f"a report needs Python {wanted} or later (jobs can use older versions)")
    if args.json and args.output == STANDARD_OUTPUT:
        raise UsageError("--json cannot be combined with --output -")
    spare_what_is_read(args.output, args.what)
    # The modules that read and draw are loaded here, because other commands do not need them.
    from tidegauge_exporter.reports.report import render_report

    content, name = _content(args)
    text = render_report(content)
    if args.output == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return FINE
    path = args.output or Path(name)
    write_output(path, text.encode(errors="replace"))
    url = None if content.story is None else web_pages(args).incident(content.story.incident.number)
    if args.json:
        print_json({**_as_json(content, path, text), "url": url})
        return FINE
    print(f"{path}: self-contained report, open it in a browser")
    for sentence in content.absent:
        print(f"- {sentence}")
    if url is not None:
        print(f"web page: {url}")
    return FINE


def _content(args: argparse.Namespace) -> tuple[ReportContent, str]:
    """The content of the report, and the name of its file."""
    from tidegauge.cli.report.files import content_of_files
    from tidegauge.cli.report.service import content_of_job

    now_unix_s = time.time()
    files = [Path(text) for text in args.what if Path(text).exists()]
    others = [text for text in args.what if not Path(text).exists()]
    if not others:
        return content_of_files(files, args, now_unix_s=now_unix_s), "tidegauge-report.html"
    looks_like_a_file = next((text for text in others if _looks_like_a_file(text)), None)
    if len(others) > 1 or looks_like_a_file:
        raise UsageError(f"{looks_like_a_file or others[1]}: no such file (a report covers one job)")
    content = content_of_job(others[0], files, args, now_unix_s=now_unix_s)
    safe = "".join(char if char.isalnum() or char in "-_." else "-" for char in others[0])[:80]
    return content, f"tidegauge-report-{safe}.html"


def _looks_like_a_file(text: str) -> bool:
    suffix = Path(text).suffix
    return suffix in FILE_SUFFIXES or ("/" in text and suffix != "")


def _as_json(content: ReportContent, path: Path, text: str) -> dict[str, object]:
    from tidegauge.core.wire import to_wire

    return {
        "file": str(path),
        "bytes": len(text.encode()),
        "title": content.title,
        "incident": None if content.story is None else content.story.incident.number,
        "evidence": to_wire(content.evidence),
        "absent": list(content.absent),
    }
