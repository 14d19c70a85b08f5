"""Reader of recorded step series: CSV, plain or gzipped, one row per training step."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

REQUIRED = ("step", "allocated", "reserved")
OPTIONAL = ("t", "peak_allocated", "inactive_split", "nvml_process", "host_rss")
ENCODING = "utf-8-sig"
"""UTF-8, with or without the byte order mark of spreadsheets."""
MAX_LINE_CHARS = 1 << 20
LARGEST = 2.0**62
"""Upper limit of bytes and steps, which also excludes NaN and infinity."""


class BadSeriesError(Exception):
    """A step series is invalid; the message says which row and column."""


class StepRow(NamedTuple):
    """One training step; ``None`` is unknown."""

    step: int
    time_s: float
    """Seconds; 0.0 in every row if the file has no ``t``: the detector then counts in steps alone."""
    allocated_bytes: int
    reserved_bytes: int
    allocated_peak_bytes: int | None
    inactive_split_bytes: int | None
    nontorch_bytes: int | None
    host_bytes: int | None


def read_step_series(path: Path) -> Iterator[StepRow]:
    """The rows in file order. Raises ``BadSeriesError``, also for a misspelt optional column; others are ignored.

    Columns (bytes): ``step, allocated, reserved`` and, if there, ``t`` (seconds), ``peak_allocated``,
    ``inactive_split``, ``nvml_process`` (empty or negative: could not be read), ``host_rss``.
    """
    try:
        with _open(path) as lines:
            yield from _rows(path, lines)
    except OSError as error:
        raise BadSeriesError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise BadSeriesError(f"{path}: the gzip data is damaged: {error}") from error
    except UnicodeDecodeError as error:
        raise BadSeriesError(f"{path}: is not text: {error.reason} at byte {error.start}") from error
    except csv.Error as error:
        raise BadSeriesError(f"{path}: is not CSV: {error}") from error


def _open(path: Path) -> io.TextIOWrapper:
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    if zipped:
        return io.TextIOWrapper(gzip.GzipFile(path), encoding=ENCODING, newline="")
    return path.open(encoding=ENCODING, newline="")


def _short_lines(path: Path, lines: io.TextIOWrapper) -> Iterator[str]:
    """The lines, none of which is read whole where it is endless."""
    for line in iter(lambda: lines.readline(MAX_LINE_CHARS + 1), ""):
        if len(line) > MAX_LINE_CHARS:
            raise BadSeriesError(f"{path}: has a line of more than {MAX_LINE_CHARS:,} characters")
        yield line


def _rows(path: Path, lines: io.TextIOWrapper) -> Iterator[StepRow]:
    reader = csv.DictReader(_short_lines(path, lines))
    columns = reader.fieldnames or []
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        seen = ", ".join(columns)[:200] or "nothing"
        raise BadSeriesError(f"{path}: row 1: missing column {', '.join(missing)}; the header has: {seen}")
    others = set(columns).difference(REQUIRED, OPTIONAL)
    for name in set(OPTIONAL).difference(columns):
        if near := get_close_matches(name, others, cutoff=0.8):
            raise BadSeriesError(f"{path}: row 1: unknown column {near[0]}; did you mean {name}?")
    last: StepRow | None = None
    for row in reader:
        cells = _Cells(path, reader.line_num, row)
        this = cells.as_row()
        if last is not None and this.step < last.step:
            raise cells.wrong(
                "step", f"goes back from {last.step} to {this.step}: a file must hold one attempt of one rank"
            )
        yield this
        last = this
    if last is None:
        raise BadSeriesError(f"{path}: has a header but no rows")


class _Cells:
    """The texts of one row, with their place for error messages."""

    def __init__(self, path: Path, line: int, row: dict[str, str]) -> None:
        self._path = path
        self._line = line
        self._row = row

    def as_row(self) -> StepRow:
        reserved = self._needed("reserved")
        nvml = self._bytes("nvml_process")
        return StepRow(
            step=self._needed("step"),
            time_s=self._number("t") or 0.0,
            allocated_bytes=self._needed("allocated"),
            reserved_bytes=reserved,
            allocated_peak_bytes=self._bytes("peak_allocated"),
            inactive_split_bytes=self._bytes("inactive_split"),
            nontorch_bytes=None if nvml is None else nvml - reserved,
            host_bytes=self._bytes("host_rss"),
        )

    def _needed(self, column: str) -> int:
        value = self._bytes(column)
        if value is None:
            raise self.wrong(column, "is empty or negative")
        return value

    def _bytes(self, column: str) -> int | None:
        """The value in bytes; ``None`` if empty or negative, as recordings write -1 for a failed reading."""
        value = self._number(column)
        return None if value is None or value < 0 else int(value)

    def _number(self, column: str) -> float | None:
        text = self._row.get(column)
        if text is None or not text.strip():
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, f"is not a number: {text[:40]!r}") from None
        if not abs(value) < LARGEST:
            raise self.wrong(column, f"is out of range: {text[:40]!r}")
        return value

    def wrong(self, column: str, what: str) -> BadSeriesError:
        return BadSeriesError(f"{self._path}: row {self._line}: column {column!r} {what}")
