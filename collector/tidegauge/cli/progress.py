"""Saying what is being waited for, on stderr: a spinner on a terminal, a line each elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidegauge.core.text import one_line

SLOW_S = 2.0
"""What takes longer has a person wonder."""


@contextmanager
def progress(command: str) -> Iterator[Callable[[str], None]]:
    """Yields a function that takes the sentence to show now; what a terminal would obey in it is not shown."""
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.markup import escape
        except ModuleNotFoundError:
            pass
        else:
            with Console(stderr=True).status(f"tidegauge {command}") as status:
                yield lambda sentence: status.update(f"tidegauge {command}: {escape(one_line(sentence))} …")
            return
    yield lambda sentence: print(f"tidegauge {command}: {one_line(sentence)} …", file=sys.stderr, flush=True)


@contextmanager
def said_when_slow(sentence: str, *, after_s: float = SLOW_S) -> Iterator[None]:
    """Says on a terminal what is waited for, once it is slow; elsewhere nothing, for stderr may be kept for errors."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(after_s, lambda: print(f"tidegauge: {sentence} …", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
