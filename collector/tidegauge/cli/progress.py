"""Saying what is being waited for, on stderr: a spinner on a terminal, a line each elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidegauge.core.launch_record import printable


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
                yield lambda sentence: status.update(f"tidegauge {command}: {escape(printable(sentence))} …")
            return
    yield lambda sentence: print(f"tidegauge {command}: {printable(sentence)} …", file=sys.stderr, flush=True)
