"""The results of a job whose service ends with it: figures, incidents and their reports, as files in one folder.

``jobs.json`` and ``incidents.json`` are the API's answers, ``summary.txt`` has the tables that the commands print, and
``incident-N.html`` are the reports. Each file is replaced atomically, so that a killed job leaves complete files.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tidegauge.cli.errors import CommandError
from tidegauge.cli.jobs import incidents, jobs
from tidegauge.cli.output import write_own
from tidegauge.cluster.api import client

MAX_REPORTS = 20
REPORT_TIMEOUT_S = 20.0
_ALL = "all=1&since=0&limit=200"
SETTLE_S = 5.0
"""Time within which agents report the end of all ranks, seconds: they look twice a second and report once."""
_LOOK_S = 0.2


def make_folder(submit_dir: Path, job_id: str, restarts: int) -> Path:
    """``tidegauge-<job id>``, with ``-<attempt>`` for one after the first. Raises ``OSError``."""
    attempt = f"-{restarts}" if restarts else ""
    folder = submit_dir / f"tidegauge-{job_id}{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class ResultFiles:
    """The files of one folder, and which reports are up to date."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._marks: dict[str, object] = {}

    def save(self, api_url: str) -> str:
        """Write all files, and return the summary. Raises ``ApiError``, ``CommandError``, ``OSError``."""
        for name, path in (("jobs.json", "/api/v1/jobs"), ("incidents.json", f"/api/v1/incidents?{_ALL}")):
            write_own(self.folder / name, json.dumps(client.get(api_url, path), indent=1).encode())
        summary = _printed(jobs, ["--api", api_url]) + "\n" + _printed(incidents, ["--api", api_url, "--all"])
        write_own(self.folder / "summary.txt", summary.encode())
        marks = client.get(api_url, "/api/v1/incident-marks?since=0")["marks"]
        for number in sorted(marks, key=int)[-MAX_REPORTS:]:
            if self._marks.get(number) != marks[number]:
                page = client.get_bytes(api_url, f"/report?incident={number}", timeout_s=REPORT_TIMEOUT_S)
                write_own(self.folder / f"incident-{number}.html", page)
                self._marks[number] = marks[number]
        return summary


def wait_until_ended(api_url: str, *, within_s: float = SETTLE_S) -> None:
    """Wait until the service reports no living rank, or for ``within_s``. Raises ``ApiError``."""
    deadline_s = time.monotonic() + within_s
    while any(_lives(client.get(api_url, "/api/v1/jobs"))) and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)


def quietly(what: Callable[[], object], say: Callable[[str], None], failure: str) -> None:
    """Call ``what``, and only print its failure."""
    try:
        what()
    except (client.ApiError, CommandError, OSError) as error:
        say(f"{failure}: {error}")


def _lives(answer: dict[str, Any]) -> Sequence[bool]:
    return [bool(rank["alive"]) for job in answer["jobs"] for rank in job["ranks"]]


def _printed(command: ModuleType, arguments: Sequence[str]) -> str:
    """The output of a command. Raises ``CommandError``."""
    parser = argparse.ArgumentParser()
    command.prepare_parser(parser)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        command.run(parser.parse_args(arguments))
    return printed.getvalue()
