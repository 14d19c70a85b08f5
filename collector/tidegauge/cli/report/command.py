"""``tidegauge report``: one HTML file about an incident, a job or snapshots: the line, the holder, the pictures."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tidegauge.cli.errors import EXTRAS_NEED_PYTHON, FINE, USAGE, CommandError
from tidegauge.cli.own_files import write_own
from tidegauge.cli.service_api import add_api_arguments
from tidegauge.cli.sizes import parse_size

if TYPE_CHECKING:
    from tidegauge_exporter.reports.evidence_values import ReportContent

HELP = "make one HTML file that shows what grows, who holds it and why: of an incident, a job, or snapshots"
STDOUT = Path("-")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="+", metavar="JOB|INCIDENT|FILE",
        help="the number of an incident, the id of a job, or files: an early and a late snapshot of one rank, a step "
        "series (CSV), what the rank found (.evidence.json). A snapshot beside an incident is shown with it",
    )  # fmt: skip
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--incident", action="store_true", help="a number means an incident, should a job be called so")
    kind.add_argument("--job", action="store_true", help="a number means a job")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="where to write it (default: named by what it is about); -: stdout",
    )
    parser.add_argument("--device", type=int, metavar="N", help="which device, where a snapshot has several")
    parser.add_argument(
        "--capacity-bytes",
        type=parse_size,
        metavar="SIZE",
        help="most that the process may use on the device, such as 80GiB: for the forecast of a step series",
    )
    parser.add_argument("--no-whatif", action="store_true", help="do not try other allocator settings on the snapshot")
    add_api_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if sys.version_info < EXTRAS_NEED_PYTHON:
        wanted = ".".join(map(str, EXTRAS_NEED_PYTHON))
        raise CommandError(f"a report needs Python {wanted} or later; the jobs that it is about need not")
    if args.json and args.output == STDOUT:
        raise CommandError("--json and --output - both want stdout: choose one", exit_code=USAGE)
    # What reads snapshots and draws is loaded here: the other commands start without it.
    from tidegauge_exporter.reports.evidence import render_evidence_report

    content, name = _content(args)
    text = render_evidence_report(content)
    if args.output == STDOUT:
        sys.stdout.write(text)
        return FINE
    path = args.output or Path(name)
    try:
        write_own(path, text.encode(errors="replace"))
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
    if args.json:
        print(json.dumps(_as_json(content, path, text), indent=2))
        return FINE
    print(f"{path}: one file that needs nothing beside itself; open it in a browser")
    for sentence in content.absent:
        print(f"- {sentence}")
    return FINE


def _content(args: argparse.Namespace) -> tuple[ReportContent, str]:
    """What the report tells, and what its file is called."""
    from tidegauge.cli.report.files import content_of_files
    from tidegauge.cli.report.service import content_of_job

    now_unix_s = time.time()
    files = [Path(text) for text in args.what if Path(text).exists()]
    others = [text for text in args.what if not Path(text).exists()]
    if not others:
        return content_of_files(files, args, now_unix_s=now_unix_s), "tidegauge-report.html"
    looks_like_a_file = next((text for text in others if "/" in text and Path(text).suffix), None)
    if len(others) > 1 or looks_like_a_file:
        raise CommandError(f"{looks_like_a_file or others[1]}: no such file, and one report is about one job",
                           exit_code=USAGE)  # fmt: skip
    content = content_of_job(others[0], files, args, now_unix_s=now_unix_s)
    safe = "".join(char if char.isalnum() or char in "-_." else "-" for char in others[0])[:80]
    return content, f"tidegauge-report-{safe}.html"


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
