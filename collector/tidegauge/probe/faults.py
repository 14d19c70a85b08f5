"""The one place that handles the probe's own errors: counts them, says each once, disables the probe after too many."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Optional

MAX_FAULTS = 20
"""Errors before the probe switches itself off: a probe that fails at every step is of no use and costs time."""


def say(line: str) -> None:
    """Print one line to the job's stderr, if that is usable."""
    try:
        stream = sys.stderr
        if stream is not None:
            stream.write(f"tidegauge: {line}\n")
            stream.flush()
    except Exception:
        return


def describe(error: BaseException) -> str:
    """One short line about an error, even one that cannot describe itself."""
    try:
        return f"{type(error).__name__}: {error}"[:200].replace("\n", " ")
    except Exception:
        return type(error).__name__


class Faults:
    """Counts caught errors. Nothing here raises."""

    def __init__(self, *, say: Callable[[str], None] = say, limit: int = MAX_FAULTS) -> None:
        self.count = 0
        self.on_fault: Optional[Callable[[int], None]] = None
        """Called with the count so far, to record it."""
        self.on_limit: Optional[Callable[[], None]] = None
        """Called once, at ``limit`` errors."""
        self._say = say
        self._limit = limit
        self._said: set[str] = set()
        self._in_callback = False
        self._off = False

    def say_once(self, line: str) -> None:
        """Print ``line`` unless it was printed before in this process."""
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def caught(self, where: str, error: BaseException) -> None:
        """Count one error of the probe's own. ``where`` completes "in ...": what the probe was doing."""
        self.count += 1
        if self.count == 1:
            self._say(f"internal error of the probe in {where} ({describe(error)}); the job is not affected")
        if self._in_callback:
            return
        self._in_callback = True
        try:
            self._report()
        finally:
            self._in_callback = False

    def _report(self) -> None:
        # The callbacks are the probe's too: an error while an error is reported ends here.
        if self.on_fault is not None:
            with contextlib.suppress(Exception):
                self.on_fault(self.count)
        if self.count >= self._limit and not self._off:
            self._off = True
            self._say(f"{self._limit} internal errors: the probe switches itself off, the job continues")
            if self.on_limit is not None:
                with contextlib.suppress(Exception):
                    self.on_limit()
