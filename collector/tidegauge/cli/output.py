"""Tables for people: rich where it is installed, plain columns where it is not (a base install has no dependency)."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tidegauge.core.text import one_line

if TYPE_CHECKING:
    from rich.table import Table

COPY_EVERY_S = 10.0
NARROWEST = 40
"""Characters of text in a line, however narrow the terminal."""


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, gives_way: Sequence[str] = ()) -> None:
    """Print ``rows`` under ``header`` to stdout. Cells are plain text: never markup, nor what a terminal would obey.
    Names in them are users' own, and a service may be an old one, or lie.

    On a terminal that is too narrow the columns ``gives_way`` are left out, the first first, and named below.
    """
    rows = [tuple(map(tame, row)) for row in rows]
    # A pipe has no width: lines stay whole there, so that grep finds what it looks for.
    if not sys.stdout.isatty() or not importlib.util.find_spec("rich"):
        print("\n".join(plain_lines(header, rows)))
        return
    from rich.console import Console

    width = shutil.get_terminal_size().columns
    kept, cells = narrowed(header, rows, gives_way, width)
    Console(width=width).print(_rich_table(kept, cells))
    left_out = [name for name in header if name not in kept]
    if left_out:
        print_wrapped("", f"(too narrow for: {', '.join(left_out)}; a wider terminal or --json shows all)")


def tame(text: str) -> str:
    """All of ``text``, without anything that a terminal would obey."""
    return one_line(text, None)


def narrowed(
    header: Sequence[str], rows: Sequence[Sequence[str]], gives_way: Sequence[str], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The table without as many of ``gives_way``, in that order, as it takes to fit ``width`` characters."""
    for name in gives_way:
        if max(map(len, plain_lines(header, rows))) <= width:
            break
        place = header.index(name)
        header, *rows = (tuple(row[:place]) + tuple(row[place + 1 :]) for row in (header, *rows))
    return header, rows


def print_wrapped(start: str, text: str) -> None:
    """Print ``start`` and ``text``, on a terminal in lines that hang below the text's beginning."""
    text = "\n".join(map(tame, text.split("\n")))
    if not sys.stdout.isatty():
        print(start + text)
        return
    width = max(shutil.get_terminal_size().columns, len(start) + NARROWEST)
    print(textwrap.fill(text, width, initial_indent=start, subsequent_indent=" " * len(start)))


def _rich_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Column, Table
    from rich.text import Text

    # fold: a cause or a rule's name that is too long goes on in the next line, instead of losing its end.
    columns = [Column(name, overflow="fold") for name in header]
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    return table


def _style(cell: str) -> str:
    """Verdicts are coloured where they stand; everything else is left alone."""
    return {"leak": "bold red", "growing": "yellow", "suspected": "yellow", "ok": "green"}.get(
        cell.partition(" ")[0], ""
    )


def plain_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """``rows`` under ``header`` in columns, without anything else."""
    columns = list(zip(header, *rows))
    widths = [max(len(cell) for cell in column) for column in columns]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in (header, *rows)]


@contextlib.contextmanager
def live_table(header: Sequence[str]) -> Iterator[Callable[[Sequence[Sequence[str]]], None]]:
    """A table drawn again in place; where stdout is no terminal, a copy of it every ten seconds and at the end."""
    rows: Sequence[Sequence[str]] = ()
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        from rich.live import Live

        with Live(refresh_per_second=4) as live:
            yield lambda rows: live.update(_rich_table(header, [tuple(map(tame, row)) for row in rows]))
        return
    shown_s, shown = time.monotonic(), rows

    def show(new: Sequence[Sequence[str]]) -> None:
        nonlocal rows, shown_s, shown
        rows = new
        if time.monotonic() - shown_s >= COPY_EVERY_S:
            shown_s, shown = time.monotonic(), rows
            print_table(header, rows)
            print(flush=True)

    yield show
    if rows is not shown:
        print_table(header, rows)
