"""Sections about evidence and snapshots: growth by line, references, pools, allocator settings.

The page's script (``report_page``) draws flame graphs, map and history; the tables are HTML.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple

from tidegauge.core.evidence import Evidence, StackGrowth
from tidegauge.core.evidence.owners import CodeLine, calling_line
from tidegauge.core.units import format_bytes, format_duration
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.reports.html_page import NOTHING, bullets, held_by, muted, section, table, with_note
from tidegauge_exporter.reports.report_content import ReportContent
from tidegauge_exporter.reports.snapshot_data import (
    PoolRow,
    StackNumbers,
    growth_weights,
    history,
    live_weights,
    memory_map,
    pool_rows,
)

MAX_LINES: Final = 20
"""Bound of lines in the table of growth: further ones explain nothing."""
MAX_POOLS: Final = 20
MAX_PATH_CHARS: Final = 200
DEFAULT_POOL: Final = (0, 0)
_SCRIPT_ONLY: Final = "This chart needs JavaScript. The tables show the same data."


class SuspectRow(NamedTuple):
    """Memory that one line allocated and that was alive at the end of the window, over all of its stacks."""

    line: CodeLine | None
    """The line; ``None``: no stack was recorded."""
    caller: CodeLine | None
    """The next line of the user's own code, further out, in the stack with most of it."""
    grown_bytes: int
    blocks: int
    block_bytes: int | None
    """The size of each block, if all have the same."""


def script_data(content: ReportContent) -> dict[str, Any]:
    """Data that the script draws; a part that is null is not on the page."""
    evidence, late, stacks = content.evidence, content.late, StackNumbers()
    growth: Sequence[StackGrowth] = evidence.growth if evidence is not None else ()
    live = live_weights(late, stacks) if late is not None and late.end else ()
    return {
        "growth": growth_weights(growth, stacks) or None,
        "live": live or growth_weights(evidence.live if evidence is not None else (), stacks) or None,
        "map": None if late is None else memory_map(late, content.early, growth, stacks),
        "history": None if late is None else history(late, stacks),
        "stacks": stacks.table(),
    }


def evidence_sections(content: ReportContent, data: Mapping[str, Any]) -> list[str]:
    """The sections, growth first. ``data`` is the script's."""
    evidence = content.evidence
    is_window = evidence is not None and evidence.early_step is not None
    live = "Live memory at the late snapshot" if is_window else "Live memory in the snapshot"
    pools = "" if content.late is None else pools_table(pool_rows(content.late.end or ()))
    return [
        _drawn("Growth between the snapshots, by allocation stack", "growth", data),
        _drawn(f"{live}, by allocation stack", "live", data),
        "" if evidence is None or not evidence.growth else section("Growth by line", suspects_table(evidence)),
        "" if evidence is None else section("References that keep the memory alive", holders_table(evidence)),
        _drawn("Allocator map: segments and blocks", "map", data, pools),
        _drawn("Allocator history, event by event (late snapshot)", "history", data),
        section("Other allocator settings", whatif_table(content)),
    ]


def _drawn(heading: str, name: str, data: Mapping[str, Any], more: str = "") -> str:
    """The section that the script draws, with words in place of the drawing without it."""
    if not data[name]:
        return ""
    return section(
        heading, f'<div class="drawn" data-part="{name}"></div>\n<div class="static">{muted(_SCRIPT_ONLY)}</div>', more
    )


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
        calling_line(first.line, first.stack),
        sum(one.grown_bytes for one in group),
        sum(one.blocks for one in group),
        sizes.pop() if len(sizes) == 1 else None,
    )


def suspects_table(evidence: Evidence) -> str:
    """The table of growth by line, the largest first, with the holder of the first, if it is known."""
    found = suspects(evidence.growth)
    whole = max(evidence.grown_bytes or 0, sum(one.grown_bytes for one in found))
    holders = evidence.search.holders[:1] if evidence.search is not None else ()
    rows = [
        [
            code_line(one.line) if one.line else "no stack recorded",
            code_line(one.caller) if one.caller else NOTHING,
            format_bytes(one.grown_bytes),
            f"{100 * one.grown_bytes / whole:.0f} %",
            f"{one.blocks:,}",
            NOTHING if one.block_bytes is None else format_bytes(one.block_bytes),
            *(NOTHING if place else held_by(tidy(holder.path, MAX_PATH_CHARS)) for holder in holders),
        ]
        for place, one in enumerate(found)
    ]
    heads = ["Line", "Called from", "Growth", "Share", "Blocks", "Block size", *["Held by" for _ in holders]]
    return table(heads, rows, numbers=(2, 3, 4, 5), most=MAX_LINES, what="lines")


def holders_table(evidence: Evidence) -> str:
    """The table of holders that the process found."""
    search = evidence.search
    if search is None:
        return ""
    rows = [
        (
            with_note(
                held_by(tidy(holder.path, 2 * MAX_PATH_CHARS)), holder.detail and tidy(holder.detail, MAX_PATH_CHARS)
            ),
            holder.kind.value,
            format_bytes(holder.held_bytes),
            f"{holder.tensors:,}",
        )
        for holder in search.holders
    ]
    cost = (
        f"Holders found for {format_bytes(search.found_bytes)} of {format_bytes(search.wanted_bytes)}: "
        f"{search.objects:,} objects searched in {format_duration(search.took_s)}."
    )
    problem = f" {tidy(search.problem, 2 * MAX_PATH_CHARS)}" if search.problem else ""
    found = table(("Holder", "Kind", "Holds", "Tensors"), rows, numbers=(2, 3)) if rows else ""
    return f"{found}\n{muted(f'{cost}{problem}')}"


def pools_table(rows: Sequence[PoolRow]) -> str:
    """The table of the allocator's memory by pool and stream."""
    cells = [
        (
            "default" if row.pool == DEFAULT_POOL else f"private {row.pool[0]}, {row.pool[1]}",
            "default" if row.stream == 0 else f"{row.stream:#x}",
            f"{row.segments:,}",
            *map(format_bytes, (row.reserved_bytes, row.live_bytes, row.pending_bytes, row.free_bytes)),
            format_bytes(row.largest_free_bytes),
        )
        for row in rows
    ]
    heads = ("Pool", "Stream", "Segments", "Reserved", "Live", "Pending free", "Free", "Largest free block")
    return table(heads, cells, numbers=range(2, 8), most=MAX_POOLS, what="pools and streams")


def whatif_table(content: ReportContent) -> str:
    """The table of allocator settings, best first, and the findings."""
    tried = content.whatif
    if tried is None:
        return ""
    rows = [
        (
            with_note(
                f"<code>{_tidy(setting.name)}</code>",
                ", ".join(["current"] * setting.today + ["best"] * setting.advised),
            ),
            format_bytes(setting.peak_reserved_bytes),
            format_bytes(setting.waste_bytes),
            f"{setting.alloc_retries:,}",
            f"{setting.ooms:,}",
            escape(setting.confidence),
        )
        for setting in tried.settings
    ]
    line = f"<p><code>{_tidy(tried.export_line, 4)}</code></p>" if tried.export_line else ""
    heads = ("Setting", "Peak reserved", "Unused at peak", "Retries", "OOMs", "Confidence")
    told = bullets(tidy(sentence, 4 * MAX_PATH_CHARS) for sentence in tried.sentences)
    return f"{told}\n{line}\n{table(heads, rows, numbers=range(1, 5))}"


def code_line(line: CodeLine) -> str:
    """Markup: file and line; the whole path is in the tooltip."""
    path = tidy(line.filename[-MAX_PATH_CHARS:], MAX_PATH_CHARS)
    short = "/".join(path.split("/")[-2:])
    function = tidy(line.function, MAX_PATH_CHARS)
    return with_note(
        f'<code title="{escape(path)}">{escape(short)}:{line.line}</code>', f"in {function}" if function else None
    )


def _tidy(text: str, times: int = 1) -> str:
    """Markup."""
    return escape(tidy(text, times * MAX_PATH_CHARS))
