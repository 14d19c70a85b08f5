"""Prints the service's messages to the job's owner on a rank's stderr, where the scheduler cannot deliver them.

It writes to the file descriptor, not to ``sys.stderr``: that belongs to the training thread, and may have been
replaced by a logger. A pipe that nobody reads blocks the helper thread, never training.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tidegauge.core.text import one_line
from tidegauge.probe.requests import RequestRefusedError, request_id_of

PREFIX = "tidegauge: "
MAX_LINES, MAX_LINE_CHARS = 20, 500
MAX_REMEMBERED = 256
_STDERR = 2


class OwnerMessages:
    """One process's messages: each is printed once, however often it is sent."""

    def __init__(self, descriptor: int = _STDERR) -> None:
        self._descriptor = descriptor
        self._told: dict[str, None] = {}

    def tell(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """``{"id": …, "text": …}``. Raises ``RequestRefusedError``, and ``OSError`` if nothing can be printed."""
        request_id, text = request_id_of(request), request.get("text")
        if not isinstance(text, str) or not text.strip():
            raise RequestRefusedError("usage", "text must be a text")
        if request_id in self._told:
            return {"ok": True, "already": True}
        lines = [PREFIX + one_line(line, MAX_LINE_CHARS) for line in text.splitlines()[:MAX_LINES]]
        # A progress bar leaves the cursor somewhere in its line.
        begin = "\n" if os.isatty(self._descriptor) else ""
        rest = (begin + "\n".join(lines) + "\n").encode(errors="replace")
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        while len(self._told) >= MAX_REMEMBERED:
            self._told.pop(next(iter(self._told)))
        self._told[request_id] = None
        return {"ok": True}
