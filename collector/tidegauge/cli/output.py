"""Output of all commands: tables, wrapped text and JSON on stdout, progress on stderr, files for the caller alone.

Tables use rich where it is installed, and are plain columns where it is not (a base install has no dependency).
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import stat
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from tidegauge.cli.errors import CommandError, UsageError, cannot_write
from tidegauge.core.incidents.wording import RAN_OUT
from tidegauge.core.text import one_line
from tidegauge.files import replace_file

if TYPE_CHECKING:
    from rich.table import Table

COPY_EVERY_S = 10.0
BAR, BAR_CHARACTERS = "#", 40
NARROWEST = 40
"""Characters of text in a line, however narrow the terminal."""
ROOM_CHARS, MAX_CELL_CHARS = 40, 120
"""On a terminal that is too narrow, no column gives way for more than so much of a cell, and no cell but the last of a
row, which may be a sentence, is longer: three lines, in which the ids of all schedulers fit."""
SLOW_S = 2.0
"""Waiting time after which ``said_when_slow`` names what it waits for."""
SAME_EVERY_S = 60.0
"""A line that says again what goes on: a log without it looks as if the command hung."""


def print_page(url: str | None) -> None:
    """On a terminal, print the address of the web page that shows the same, if it is known; a list in a pipe is read by
    scripts, and ``--json`` has the address."""
    if url is not None and sys.stdout.isatty():
        print(f"\nweb page: {url}")


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    gives_way: Sequence[str] = (),
    pages: Sequence[str | None] = (),
) -> None:
    """Print ``rows`` under ``header`` to stdout. On a terminal, the first cell of each row links to its web page.

    Cells are plain text, never markup or control characters: names in them are users' own, and the service that sent
    them may be old or hostile. On a terminal that is too narrow, the columns ``gives_way`` are left out one by one, the
    first first, and named below, but not for the sake of a long name: that goes on in the next line, or is cut.
    """
    rows = [tuple(map(tame, row)) for row in rows]
    # A pipe has no width: lines stay whole there, so that grep finds what it looks for.
    if not sys.stdout.isatty() or not importlib.util.find_spec("rich"):
        print("\n".join(plain_lines(header, rows)))
        return
    from rich.console import Console

    width, height = shutil.get_terminal_size()
    kept, cells = narrowed(header, rows, gives_way, width)
    # With one of them alone, rich takes 80 columns where TERM is dumb or unknown.
    Console(width=width, height=height).print(_rich_table(kept, cells, pages))
    left_out = [name for name in header if name not in kept]
    if left_out:
        print_wrapped("", f"(too narrow for: {', '.join(left_out)}; a wider terminal or --json shows all)")


def bar(share: float) -> str:
    """A bar in a cell of a table, for a share between 0 and 1."""
    return BAR * round(BAR_CHARACTERS * share)


def tame(text: str) -> str:
    """All of ``text`` without control characters."""
    return one_line(text, None)


def narrowed(
    header: Sequence[str], rows: Sequence[Sequence[str]], gives_way: Sequence[str], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The table without as many of ``gives_way``, in that order, as it takes to fit ``width`` characters with
    ``ROOM_CHARS`` for each cell, and then with shorter bars."""
    if _width(header, rows) <= width:
        return header, rows
    rows = [(*(_cut(cell) for cell in row[:-1]), *row[-1:]) for row in rows]
    for name in gives_way:
        if _width(header, [[cell[:ROOM_CHARS] for cell in row] for row in rows]) <= width:
            break
        place = header.index(name)
        header, *rows = (tuple(row[:place]) + tuple(row[place + 1 :]) for row in (header, *rows))
    return header, _with_bars_within(header, rows, width)


def _cut(cell: str) -> str:
    return cell if len(cell) <= MAX_CELL_CHARS else f"{cell[: MAX_CELL_CHARS - 1]}…"


def _width(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    return max(map(len, plain_lines(header, rows)))


def _with_bars_within(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Sequence[Sequence[str]]:
    """Shorter bars, all by the same share, where they are the last column, which then has no name."""
    over = _width(header, rows) - width
    if over <= 0 or header[-1] or any(row[-1].strip(BAR) for row in rows):
        return rows
    longest = max(len(row[-1]) for row in rows)
    share = max(0, longest - over) / longest
    return [(*row[:-1], BAR * round(share * len(row[-1]))) for row in rows]


def print_wrapped(start: str, text: str) -> None:
    """Print ``start`` and ``text``; on a terminal, further lines are indented to the start of the text."""
    text = "\n".join(map(tame, text.split("\n")))
    if not sys.stdout.isatty():
        print(start + text)
        return
    width = max(shutil.get_terminal_size().columns, len(start) + NARROWEST)
    print(textwrap.fill(text, width, initial_indent=start, subsequent_indent=" " * len(start)))


def _rich_table(header: Sequence[str], rows: Sequence[Sequence[str]], pages: Sequence[str | None] = ()) -> Table:
    from rich.style import Style
    from rich.table import Column, Table
    from rich.text import Text

    # fold: a cause or a rule's name that is too long goes on in the next line, instead of losing its end.
    columns = [Column(name, overflow="fold") for name in header]
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row, page in zip_longest(rows, pages[: len(rows)]):
        first, *others = (Text(cell, style=_style(cell)) for cell in row)
        if page is not None:
            first.stylize(Style(link=page))
        table.add_row(first, *others)
    return table


def _style(cell: str) -> str:
    """The colour of a verdict, or of an end in an error; other cells have none."""
    if cell.startswith(RAN_OUT):
        return "bold red"
    return {"leak": "bold red", "growing": "yellow", "suspected": "yellow", "ok": "green"}.get(
        cell.partition(" ")[0], ""
    )


def plain_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """``rows`` under ``header`` as lines of aligned columns."""
    columns = list(zip(header, *rows))
    widths = [max(len(cell) for cell in column) for column in columns]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in (header, *rows)]


def squeezed(amounts: Sequence[float], width: int) -> list[float]:
    """The highest amount of each of ``width`` stretches, for a chart; all amounts if there are no more than that."""
    count = len(amounts)
    if count <= width:
        return list(amounts)
    edges = [place * count // width for place in range(width + 1)]
    return [max(amounts[start:end]) for start, end in zip(edges, edges[1:])]


@contextmanager
def live_table(header: Sequence[str]) -> Iterator[Callable[[Sequence[Sequence[str]]], None]]:
    """Yield a function that redraws a table in place, or prints a copy every ten seconds where stdout is a pipe."""
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


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


@contextmanager
def progress(
    command: str, *, every_s: float = 0.0, monotonic_s: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a sentence on stderr: beside a spinner on a terminal; elsewhere as a line where it is
    another one than before, at most one in ``every_s``, and the same one once in ``SAME_EVERY_S``."""
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
    last_s, last = -math.inf, ""

    def show(sentence: str) -> None:
        nonlocal last_s, last
        now_s = monotonic_s()
        if now_s - last_s >= (SAME_EVERY_S if sentence == last else every_s):
            last_s, last = now_s, sentence
            print(f"tidegauge {command}: {one_line(sentence)} …", file=sys.stderr, flush=True)

    yield show


@contextmanager
def said_when_slow(
    sentence: str, *, after_s: float = SLOW_S, say: Callable[[str], object] | None = None
) -> Iterator[None]:
    """Say ``sentence`` once the block is slow: by ``say``, else on a terminal; elsewhere nothing, as stderr may be kept
    for errors."""
    if say is None and not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(after_s, say or _say, (f"{sentence} …",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(line: str) -> None:
    print(f"tidegauge: {line}", file=sys.stderr, flush=True)


def spare_what_is_read(output: Path | None, sources: Iterable[str | Path | None]) -> None:
    """Before the work: raise ``UsageError`` if the output would go over a file that it is made of."""
    for source in sources:
        with suppress(OSError):
            if output is not None and source is not None and output.samefile(source):
                raise UsageError(f"{output} is what is read; give the output another name")


def write_output(path: str | Path, content: bytes) -> None:
    """Write a file that the caller asked for, as ``write_own`` does. Raises ``CommandError``."""
    try:
        write_own(Path(path), content)
    except OSError as error:
        raise CommandError(cannot_write(path, error)) from error


def write_own(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` with mode 0600, whole or not at all: stacks and file names are private.

    A device or a pipe is written to as it is; a symbolic link to one (/dev/stdout) is refused, because root would
    replace it for everybody. Raises ``OSError``.
    """
    if not _is_special(path):
        replace_file(path, content)
        return
    if path.is_symlink():
        raise OSError(f"it is a symbolic link to a special file; write to {path.resolve()} instead")
    with open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "wb") as file:
        file.write(content)


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
