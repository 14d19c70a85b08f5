"""The answer of ``tidegauge diff``, for people and as JSON. Texts from snapshots are made printable here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from tidegauge.analysis.growth.diff import Comparison, LineGrowth
from tidegauge.analysis.oom.answer import RECORD_STACKS
from tidegauge.cli.output import print_table, print_wrapped
from tidegauge.core.evidence import StackGrowth
from tidegauge.core.evidence.held_memory import line_name
from tidegauge.core.evidence.owners import CodeLine, is_library
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes

NO_STACK = "no stack recorded"
MAX_FRAMES = 60
"""Maximum number of frames of a stack, for people."""
MAX_LINE_CHARS = 1_000
WORTH_A_WORD = 0.02
"""Share of a total below which an amount is not mentioned."""


class Compared(NamedTuple):
    """A comparison, and the training steps of the snapshots, if they have them."""

    comparison: Comparison
    early_step: Optional[int]
    late_step: Optional[int]


def as_json(compared: Compared, by: str, top: Optional[int]) -> list[dict[str, object]]:
    """The rows of the comparison, the largest growth first; shrunk ones come last, with negative bytes."""
    comparison = compared.comparison
    if by == "line":
        return [_line_row(line) for line in comparison.lines[:top]]
    if by == "size":
        sizes = comparison.by_size[:top]
        return [{"bytes": one.grown_bytes, "blocks": one.blocks, "block_bytes": one.block_bytes} for one in sizes]
    return [stack_row(one) for one in (*comparison.growth, *reversed(comparison.shrunk))[:top]]


def stack_row(one: StackGrowth) -> dict[str, object]:
    return {
        "bytes": one.grown_bytes,
        "blocks": one.blocks,
        "stack": [line._asdict() for line in one.stack],
        "line": None if one.line is None else one.line._asdict(),
        "block_bytes": one.block_bytes,
    }


def _line_row(one: LineGrowth) -> dict[str, object]:
    return {
        "bytes": one.grown_bytes,
        "blocks": one.blocks,
        "line": None if one.line is None else one.line._asdict(),
        "caller": None if one.caller is None else one.caller._asdict(),
        "stacks": one.stacks,
        "block_bytes": one.block_bytes,
    }


def print_page(compared: Compared, by: str, top: int) -> None:
    comparison = compared.comparison
    for sentence in _summary(compared):
        print_wrapped("", one_line(sentence, len(sentence)))
    if by == "stack":
        _print_stacks((*comparison.growth, *reversed(comparison.shrunk)), top)
    elif by == "size":
        rows = [
            (format_bytes(one.grown_bytes), f"{one.blocks:+,}", format_bytes(one.block_bytes))
            for one in comparison.by_size
        ]
        _print_rows(("growth", "blocks", "each"), rows, top)
    else:
        _print_rows(
            ("growth", "blocks", "each", "line", "called from"), [_cells(line) for line in comparison.lines], top
        )
        if comparison.growth and comparison.growth[0].stack:
            print("\nStack with the largest growth, innermost frame first:")
            for frame in folded_frames(comparison.growth[0].stack):
                print(f"  {frame}")
    for sentence in _doubts(comparison):
        print_wrapped("\n", sentence)


def folded_frames(stack: Sequence[CodeLine]) -> Iterator[str]:
    """The lines of a stack, runs of library frames folded into one."""
    library: list[CodeLine] = []
    for frame in stack[:MAX_FRAMES]:
        if is_library(frame.filename):
            library.append(frame)
            continue
        yield from _folded(library)
        library = []
        yield one_line(line_name(frame), MAX_LINE_CHARS)
    yield from _folded(library)
    if len(stack) > MAX_FRAMES:
        yield f"({len(stack) - MAX_FRAMES:,} more outer frames)"


def _folded(library: Sequence[CodeLine]) -> Iterator[str]:
    if library:
        name = one_line(line_name(library[0]), MAX_LINE_CHARS)
        yield f"(library) {name}" if len(library) == 1 else f"({len(library)} library frames: {name} ...)"


def _summary(compared: Compared) -> Iterator[str]:
    comparison = compared.comparison
    live = f"{format_bytes(comparison.early_live_bytes)} before, {format_bytes(comparison.late_live_bytes)} now"
    apart = _apart(compared)
    if comparison.grown_bytes > 0:
        yield f"Live memory grew by {format_bytes(comparison.grown_bytes)}{apart} ({live}){_share(comparison)}."
        more_bytes = sum(line.grown_bytes for line in comparison.lines)
        less_bytes = more_bytes - comparison.grown_bytes
        if less_bytes > more_bytes * WORTH_A_WORD:
            yield (
                f"Growth by line adds up to {format_bytes(more_bytes)}, because other lines hold "
                f"{format_bytes(less_bytes)} less than before."
            )
    elif comparison.growth:
        yield f"Total live memory did not grow{apart} ({live}), but some lines hold more{_share(comparison)}."
    else:
        yield f"Live memory did not grow{apart} ({live}): no line holds more than before."
        yield _elsewhere(comparison)


def _apart(compared: Compared) -> str:
    if compared.early_step is None or compared.late_step is None or compared.late_step <= compared.early_step:
        return ""
    return f" after {compared.late_step - compared.early_step:,} steps"


def _share(comparison: Comparison) -> str:
    """The line with the largest share of the growth, or the one from which all lines were called."""
    if not comparison.lines:
        return ""
    first, through = comparison.lines[0], comparison.through
    if through is not None and through != first.line:
        return (
            f"; nearly all of the growth comes from {line_name(through)}, which calls the "
            f"{len(comparison.lines)} lines that allocated it"
        )
    share = min(1.0, first.grown_bytes / sum(line.grown_bytes for line in comparison.lines))
    return f"; {100 * share:.0f} % of the growth was allocated by {_named(first.line)}"


def _named(line: Optional[CodeLine]) -> str:
    return "calls without a recorded stack" if line is None else line_name(line)


def _elsewhere(comparison: Comparison) -> str:
    """The sentence for live memory that did not grow: whether reserved memory did."""
    early, late = comparison.early_reserved_bytes, comparison.late_reserved_bytes
    if late > early * (1 + WORTH_A_WORD):
        return (
            f"Reserved memory still grew from {format_bytes(early)} to {format_bytes(late)}: either a step has a "
            "higher peak than before, or the free memory is fragmented. To find an allocator setting that helps: "
            "tidegauge whatif LATE."
        )
    return (
        f"Reserved memory did not grow either ({format_bytes(early)} before, {format_bytes(late)} now). If the process "
        "still uses more of the GPU, the growth is outside the PyTorch allocator, where snapshots do not reach: NCCL "
        "communicators, CUDA libraries, extensions that call cudaMalloc."
    )


def _doubts(comparison: Comparison) -> Iterator[str]:
    """Sentences on memory without stacks."""
    without, live = comparison.late_without_stack_bytes, comparison.late_live_bytes
    if without == live > 0:
        yield f"No stacks were recorded, so blocks are matched by size only. To see lines: {RECORD_STACKS}"
    elif comparison.lines and comparison.lines[0].line is None:
        yield (
            "The largest growth has no stack: it was allocated before recording started, or by autograd threads during "
            'backward, which have no Python frames. Record with stacks="all" to see backward allocations.'
        )
    elif without > live * WORTH_A_WORD:
        yield (
            f"{format_bytes(without)} of live memory has no stack (older than the recording, or from backward) and is "
            "matched by size: a block that replaced another of the same size does not count as growth."
        )


def _print_rows(header: Sequence[str], rows: Sequence[Sequence[str]], top: int) -> None:
    if rows:
        print()
        print_table(header, rows[:top], gives_way=("called from", "each"))
    if len(rows) > top:
        print(f"and {len(rows) - top:,} more (--top, --json)")


def _cells(line: LineGrowth) -> tuple[str, ...]:
    each = "-" if line.block_bytes is None else format_bytes(line.block_bytes)
    name = NO_STACK if line.line is None else one_line(line_name(line.line), MAX_LINE_CHARS)
    caller = "-" if line.caller is None else one_line(line_name(line.caller), MAX_LINE_CHARS)
    return format_bytes(line.grown_bytes), f"{line.blocks:+,}", each, name, caller


def _print_stacks(stacks: Sequence[StackGrowth], top: int) -> None:
    for one in stacks[:top]:
        each = "" if one.block_bytes is None else f" of {format_bytes(one.block_bytes)}"
        print(f"\n{format_bytes(one.grown_bytes)} in {one.blocks:+,} blocks{each}")
        for frame in folded_frames(one.stack) if one.stack else (NO_STACK,):
            print(f"  {frame}")
    if len(stacks) > top:
        print(f"\nand {len(stacks) - top:,} more (--top, --json)")
