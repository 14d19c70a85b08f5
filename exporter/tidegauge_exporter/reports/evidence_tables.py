"""The tables of the report: what grew, who holds it, the allocator's pools, settings that were tried. Markup."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

from tidegauge.core.evidence import StackGrowth
from tidegauge.core.evidence.owners import CodeLine, is_library
from tidegauge.core.evidence.rank_evidence import Holder, HolderSearch
from tidegauge.core.units import format_bytes, format_duration
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.reports.evidence_snapshot import PoolRow
from tidegauge_exporter.reports.evidence_values import WhatIfTable

MAX_LINES: Final = 20
"""Of the suspects: what is further down explains nothing."""
MAX_POOLS: Final = 20
MAX_PATH_CHARS: Final = 200
DEFAULT_POOL: Final = (0, 0)
_NOTHING = "\N{EN DASH}"


class SuspectRow(NamedTuple):
    """What one line allocated that was still alive at the end of the window, over all the ways that lead to it."""

    line: CodeLine | None
    """``None``: no stack was recorded."""
    caller: CodeLine | None
    """The next line of the user's own, further out, on the way by which most of it came."""
    grown_bytes: int
    blocks: int
    block_bytes: int | None
    """Of each block, where all are of one size."""


def suspects(growth: Iterable[StackGrowth]) -> list[SuspectRow]:
    """Growth by line, the largest first."""
    groups: dict[tuple[CodeLine | None, int | None], list[StackGrowth]] = defaultdict(list)
    for one in growth:
        if one.grown_bytes > 0:
            groups[one.line, one.block_bytes if one.line is None else None].append(one)
    found = [_suspect(line, group) for (line, _), group in groups.items()]
    return sorted(found, key=lambda suspect: -suspect.grown_bytes)


def _suspect(line: CodeLine | None, group: Sequence[StackGrowth]) -> SuspectRow:
    sizes = {one.block_bytes for one in group}
    first = max(group, key=lambda one: one.grown_bytes)
    return SuspectRow(
        line,
        _caller(first),
        sum(one.grown_bytes for one in group),
        sum(one.blocks for one in group),
        sizes.pop() if len(sizes) == 1 else None,
    )


def _caller(growth: StackGrowth) -> CodeLine | None:
    if growth.line is None or growth.line not in growth.stack:
        return None
    further_out = growth.stack[growth.stack.index(growth.line) + 1 :]
    return next((frame for frame in further_out if not is_library(frame.filename)), None)


def suspects_table(growth: Sequence[StackGrowth], *, grown_bytes: int | None, holder: Holder | None) -> str:
    """The largest first. ``holder``: of what grew most, where the process was asked."""
    found = suspects(growth)
    whole = max(grown_bytes or 0, sum(one.grown_bytes for one in found))
    rows = [_suspect_cells(one, whole) for one in found[:MAX_LINES]]
    heads = ["Line", "Called from", "Grew by", "Share", "Blocks", "Each"]
    if holder is not None:
        heads.append("Held by")
        held = escape(tidy(holder.path, MAX_PATH_CHARS))
        rows = [[*row, _NOTHING if place else held] for place, row in enumerate(rows)]
    return table(heads, rows, numbers=(2, 3, 4, 5)) + _more(len(found) - MAX_LINES, "lines")


def _suspect_cells(one: SuspectRow, whole: int) -> list[str]:
    return [
        code_line(one.line) if one.line else "no stack was recorded",
        code_line(one.caller) if one.caller else _NOTHING,
        format_bytes(one.grown_bytes),
        f"{100 * one.grown_bytes / whole:.0f} %",
        f"{one.blocks:,}",
        _NOTHING if one.block_bytes is None else format_bytes(one.block_bytes),
    ]


def holders_table(search: HolderSearch) -> str:
    """Who holds what was looked for, as the process itself found out."""
    rows = [
        (
            escape(tidy(holder.path, 2 * MAX_PATH_CHARS))
            + (f"<small>{escape(tidy(holder.detail, MAX_PATH_CHARS))}</small>" if holder.detail else ""),
            holder.kind.value,
            format_bytes(holder.held_bytes),
            f"{holder.tensors:,}",
        )
        for holder in search.holders
    ]
    cost = (
        f"A holder was found for {format_bytes(search.found_bytes)} of {format_bytes(search.wanted_bytes)}; the search "
        f"looked at {search.objects:,} objects in {format_duration(search.took_s)}."
    )
    problem = f" {escape(tidy(search.problem, 2 * MAX_PATH_CHARS))}" if search.problem else ""
    found = table(("Holder", "Kind", "Holds", "Tensors"), rows, numbers=(2, 3)) if rows else ""
    return f'{found}\n<p class="muted">{cost}{problem}</p>'


def pools_table(rows: Sequence[PoolRow]) -> str:
    """What the allocator holds, by pool and stream."""
    cells = [
        (
            "default" if row.pool == DEFAULT_POOL else f"private {row.pool[0]}, {row.pool[1]}",
            "default" if row.stream == 0 else f"{row.stream:#x}",
            f"{row.segments:,}",
            *map(format_bytes, (row.reserved_bytes, row.live_bytes, row.pending_bytes, row.free_bytes)),
            format_bytes(row.largest_free_bytes),
        )
        for row in rows[:MAX_POOLS]
    ]
    heads = ("Pool", "Stream", "Segments", "Reserved", "Live", "Waiting", "Free", "Largest free block")
    return table(heads, cells, numbers=range(2, 8)) + _more(len(rows) - MAX_POOLS, "pools and streams")


def whatif_section(tried: WhatIfTable) -> str:
    """Settings, best first, and what they say."""
    rows = [
        (
            f"<code>{escape(tidy(setting.name, MAX_PATH_CHARS))}</code>"
            + ("<small>today</small>" if setting.today else "")
            + ("<small>best</small>" if setting.advised else ""),
            format_bytes(setting.peak_reserved_bytes),
            format_bytes(setting.waste_bytes),
            f"{setting.alloc_retries:,}",
            f"{setting.ooms:,}",
            escape(setting.confidence),
        )
        for setting in tried.settings
    ]
    told = "".join(f"<li>{escape(tidy(sentence, 4 * MAX_PATH_CHARS))}</li>" for sentence in tried.sentences)
    line = f"<p><code>{escape(tidy(tried.export_line, 4 * MAX_PATH_CHARS))}</code></p>" if tried.export_line else ""
    heads = ("Setting", "Peak reserved", "Not in use then", "Retries", "Out of memory", "Confidence")
    return f"<ul>{told}</ul>\n{line}\n{table(heads, rows, numbers=range(1, 5))}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """``heads`` are words of ours, cells are markup; the columns ``numbers`` stand at the right."""
    css = [' class="number"' if column in numbers else "" for column in range(len(heads))]
    head = "".join(f'<th{look} scope="col">{name}</th>' for look, name in zip(css, heads, strict=True))
    body = "\n".join(
        f"<tr>{''.join(f'<td{look}>{cell}</td>' for look, cell in zip(css, row, strict=True))}</tr>" for row in rows
    )
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def code_line(line: CodeLine) -> str:
    """Markup: where it is; the whole path is in the tooltip."""
    path = tidy(line.filename[-MAX_PATH_CHARS:], MAX_PATH_CHARS)
    short = "/".join(path.split("/")[-2:])
    function = tidy(line.function, MAX_PATH_CHARS)
    return (
        f'<code title="{escape(path)}">{escape(short)}:{line.line}</code>'
        f"<small>{'in ' + escape(function) if function else ''}</small>"
    )


def _more(count: int, what: str) -> str:
    return f'\n<p class="muted">{count:,} more {what} are not listed.</p>' if count > 0 else ""
