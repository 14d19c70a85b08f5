"""A line on stderr where a user waits long."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from tidegauge.probe.faults import say

MAX_SILENT_S = 2.0


@contextlib.contextmanager
def said_if_long(line: str, *, after_s: float = MAX_SILENT_S, say: Callable[[str], object] = say) -> Iterator[None]:
    """Say ``line`` once, if the block takes longer than ``after_s``."""
    timer = threading.Timer(after_s, say, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
