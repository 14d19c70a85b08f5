"""The table of ranks in a report: where each runs, what the detector says of it, what it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from tidegauge.core.incidents.wording import rate, time_left
from tidegauge.core.samples import OomRecord
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import LeakState, Verdict

UUID_LENGTH = 12
"""Enough of ``GPU-1b2c3d4e-...`` to tell two cards apart; the whole is in the cell's tooltip."""
MAX_ROWS = 64
"""Rows of the table; a job of a thousand ranks is read by its worst."""
_WORDS_ONLY = 3
"""The first columns; all others hold numbers."""
_NOTHING = "\N{EN DASH}"
"""In a cell for which there is no figure."""


class RankRow(NamedTuple):
    """One rank on one GPU. ``None`` is not known."""

    rank: int
    hostname: str
    gpu: int | None
    """NVML index."""
    gpu_name: str | None
    uuid: str | None
    verdict: Verdict
    allocated_bytes: int | None
    reserved_bytes: int | None
    nontorch_bytes: int | None
    limit_bytes: int | None
    oom: OomRecord | None = None


class _Column(NamedTuple):
    name: str
    cell: Callable[[RankRow], str | None]
    """Markup."""


def rank_table(rows: Sequence[RankRow]) -> str:
    """The first ``MAX_ROWS`` of ``rows``; how many more there are is said below. Columns in which no rank has anything
    are left out where that is usual."""
    columns = [column for column in _COLUMNS if column.name not in _OPTIONAL or any(map(column.cell, rows))]
    head = "".join(f'<th{_number(index)} scope="col">{column.name}</th>' for index, column in enumerate(columns))
    body = "\n".join(_row(row, columns) for row in rows[:MAX_ROWS])
    rest = len(rows) - MAX_ROWS
    more = f'\n<p class="muted">{rest:,} more ranks are not listed.</p>' if rest > 0 else ""
    return (
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>{more}'
    )


def tone(verdict: Verdict) -> str:
    """The colour of a verdict, as a class of report.css without its ``tone-``."""
    if verdict.state is LeakState.LEAK:
        return str(verdict.severity.value) if verdict.severity else "critical"
    return str(verdict.state.value)


def _row(row: RankRow, columns: Sequence[_Column]) -> str:
    cells = (f"<td{_number(index)}>{column.cell(row) or _NOTHING}</td>" for index, column in enumerate(columns))
    return f"<tr>{''.join(cells)}</tr>"


def _place(row: RankRow) -> str:
    place = row.hostname if row.gpu is None else f"{row.hostname}, GPU {row.gpu}"
    device = " ".join(filter(None, (row.gpu_name, row.uuid and row.uuid[:UUID_LENGTH])))
    return f'<span class="place">{escape(place)}</span><small title="{escape(row.uuid or "")}">{escape(device)}</small>'


def _verdict(row: RankRow) -> str:
    verdict = row.verdict
    word = {LeakState.OK: "ok", LeakState.SUSPECTED: "suspected", LeakState.LEAK: "leak"}[verdict.state]
    grave = verdict.severity.value if verdict.severity and verdict.state is LeakState.LEAK else ""
    return f'<span class="verdict tone-{tone(verdict)}">{word}</span><small>{grave}</small>'


def _of_growth(read: Callable[[Verdict], str | None]) -> Callable[[RankRow], str | None]:
    """What only a rank that grows has."""
    return lambda row: None if row.verdict.state is LeakState.OK else read(row.verdict)


def _bytes(read: Callable[[RankRow], int | None]) -> Callable[[RankRow], str | None]:
    return lambda row: None if (count := read(row)) is None else format_bytes(count)


def _oom(row: RankRow) -> str | None:
    oom = row.oom
    if oom is None:
        return None
    wanted, free = format_bytes(oom.wanted_bytes), format_bytes(oom.free_bytes)
    return f"step {oom.step:,}<small>{wanted} wanted, {free} free</small>"


def _number(column: int) -> str:
    return ' class="number"' if column >= _WORDS_ONLY else ""


_COLUMNS = (
    _Column("Rank", lambda row: str(row.rank)),
    _Column("GPU", _place),
    _Column("Verdict", _verdict),
    _Column("Out of memory at", _oom),
    _Column("Growth per step", _of_growth(lambda verdict: rate(verdict.bytes_per_step))),
    _Column(
        "Since step", _of_growth(lambda verdict: None if verdict.onset_step is None else f"{verdict.onset_step:,}")
    ),
    _Column("Out of memory in", _of_growth(lambda verdict: time_left(verdict.seconds_to_oom, verdict.steps_to_oom))),
    _Column("Allocated", _bytes(lambda row: row.allocated_bytes)),
    _Column("Reserved", _bytes(lambda row: row.reserved_bytes)),
    _Column("Outside PyTorch", _bytes(lambda row: row.nontorch_bytes)),
    _Column("Limit", _bytes(lambda row: row.limit_bytes)),
)
_OPTIONAL = ("Out of memory at", "Growth per step", "Since step", "Out of memory in", "Outside PyTorch")
