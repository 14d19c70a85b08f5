"""What the service tells a job's owner where the job prints, through one of its ranks, where no scheduler can do it.

Written to the file descriptor of stderr, not to ``sys.stderr``: that belongs to the training thread, and may have been
replaced by a logger. A pipe that nobody reads holds up the helper thread, never training.
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
    """Of one process: each is printed once, however often it is sent."""

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
