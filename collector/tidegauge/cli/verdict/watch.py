"""``tidegauge.watch()``: the verdict on the process that calls it, judged by a process beside it.

Of that process, only pipes and JSON are in the training process. Nothing here raises for a failure of Tidegauge's own:
``WatchedBlock.problem`` has it.
"""

from __future__ import annotations

import html
import json
import os
import select
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tidegauge.agent.run_dirs.presence import is_watched
from tidegauge.cli.errors import EXTRAS_NEED_PYTHON
from tidegauge.cli.verdict.process import SERVER, run_dirs
from tidegauge.osproc.processes import identity_of
from tidegauge.probe import entry
from tidegauge.probe.levels import PROFILE_VARIABLE

ANSWER_WITHIN_S = 10.0
END_WITHIN_S = 40.0
"""For the last answer: what the rank wrote is read and compared, and the report drawn."""
_ROOTS = [str(Path(__file__).parents[3])]
"""Where the judging process finds Tidegauge: this process may have it from ``sys.path`` alone."""


class WatchedBlock:
    """A context manager; inside and after the block it tells what was found so far."""

    def __init__(self, level: str = "auto") -> None:
        self._level = level
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._answer: dict[str, Any] = {}
        self.problem: str | None = None
        """Why there is no verdict, for people; ``None`` where nothing failed."""

    def __enter__(self) -> WatchedBlock:
        entry.attach(self._level)
        try:
            self._start()
        except OSError as error:
            self.problem = f"no verdict: {error}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ask({"do": "end"}, within_s=END_WITHIN_S)
        process, self._process = self._process, None
        if process is not None:
            _close(process)

    @property
    def verdict(self) -> str | None:
        """``ok``, ``suspected``, ``growing``, ``leak`` (dangerous) or ``no steps``; ``None``: nothing was seen yet."""
        verdict: str | None = self._now().get("verdict")
        return verdict

    @property
    def evidence(self) -> dict[str, Any] | None:
        """Line, holder, cause and advice as ``/api/v1/evidence`` gives them; ``None`` as long as there are none."""
        evidence: dict[str, Any] | None = self._now().get("evidence")
        return evidence

    @property
    def lines(self) -> list[str]:
        """The verdict with line, holder, cause and advice, for people."""
        found: list[str] = self._now().get("lines") or ["no GPU memory of this process was seen"]
        return [self.problem] if self.problem is not None else found

    def report(self, path: str | os.PathLike[str] = "tidegauge-report.html") -> Path | None:
        """Write the HTML report, after the block. Where there is none, print why; raises ``OSError``."""
        page = self._answer.get("page")
        if page is None:
            print(f"no report: {self._why_no_page()}")
            return None
        Path(path).write_text(page, encoding="utf-8")
        return Path(path)

    def _why_no_page(self) -> str:
        if self._process is not None:
            return self.problem or "call it after the `with` block that trains"
        judged = self.problem is None and self._answer.get("verdict") is not None
        return "the package tidegauge_exporter is not installed here" if judged else self.lines[0]

    def __repr__(self) -> str:
        # What a terminal's IPython shows below a cell, and print().
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        shown = f"<pre>{html.escape(str(self))}</pre>"
        page = self._answer.get("page")
        if page is None:
            return shown
        frame = f'<iframe srcdoc="{html.escape(page)}" width="100%" height="800" style="border:0"></iframe>'
        return f"{shown}<details><summary>report</summary>{frame}</details>"

    def _start(self) -> None:
        if is_watched(run_dirs(os.environ)):
            self.problem = "a service watches this process; see `tidegauge jobs`"
            return
        if sys.version_info < EXTRAS_NEED_PYTHON:
            raise OSError(f"it needs Python {'.'.join(map(str, EXTRAS_NEED_PYTHON))} or later")
        me = identity_of(os.getpid())
        if me is None:
            raise OSError("/proc cannot be read")
        path = os.pathsep.join([*_ROOTS, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", SERVER, f"{me.pid}-{me.start_ticks}", "--serve"],
            env={**os.environ, PROFILE_VARIABLE: "off", "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _now(self) -> dict[str, Any]:
        self._ask({"do": "answer"}, within_s=ANSWER_WITHIN_S)
        return self._answer

    def _ask(self, request: dict[str, Any], *, within_s: float) -> None:
        """Take the judging process's answer; without one the last stays."""
        with self._lock:
            process = self._process
            if process is None:
                return
            try:
                os.write(_open(process.stdin).fileno(), json.dumps(request).encode() + b"\n")
                self._answer = json.loads(_line(_open(process.stdout), within_s))
                self.problem = self._answer.get("problem")
            except (OSError, ValueError) as error:
                self.problem = f"no verdict: {error}"
                self._process = None  # an answer that comes too late must not be taken for the next one
                process.kill()
                _close(process)


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes, by which the process ends."""
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):
            _open(stream).close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)


def _line(stream: IO[bytes], within_s: float) -> bytes:
    """The next line. Raises ``OSError`` where none begins in time."""
    if not select.select([stream], [], [], within_s)[0]:
        raise OSError(f"no answer within {within_s:.0f} s")
    line = stream.readline()
    if not line:
        raise OSError("the judging process has ended")
    return line
