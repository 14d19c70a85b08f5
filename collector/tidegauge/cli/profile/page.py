"""Pages of a memory profile, for people. Texts from snapshots are made printable where they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional, Union

from tidegauge.analysis.profile.modules import module_groups
from tidegauge.analysis.profile.words import (
    OUTSIDE,
    advice_sentences,
    caller_of_line,
    change_of_phase,
    comparison_sentence,
    doubts,
    known_bytes,
    known_phases,
    line_of_change,
    name_of_group,
    name_of_line,
    outside_modules,
    peak_sentence,
    phase_of_line,
    signed_bytes,
    torch_words,
)
from tidegauge.cli.output import bar, plain_lines, print_table, print_wrapped, tame
from tidegauge.core.profile.advice import StepAdvice
from tidegauge.core.profile.comparison import PhaseChange, ProfileComparison
from tidegauge.core.profile.step_profile import ProfileLine, StepProfile
from tidegauge.core.units import format_bytes

TOP_MODULES = 10


class PageTable(NamedTuple):
    """A table of a page."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    gives_way: Sequence[str] = ()
    """Columns that a narrow terminal leaves out."""


class PageList(NamedTuple):
    """Sentences of a page below a title."""

    title: str
    sentences: Sequence[str]


Part = Union[str, PageTable, PageList]
"""Of a page: a sentence, a table, or a list."""


def print_page(parts: Iterable[Part]) -> None:
    """Print a page to stdout, as wide as the terminal."""
    for number, part in enumerate(parts):
        if isinstance(part, str):
            print_wrapped("", part)
            continue
        print(f"{chr(10) if number else ''}{part.title}")
        if isinstance(part, PageList):
            for sentence in part.sentences:
                print_wrapped("- ", sentence)
        else:
            print_table(part.header, part.rows, gives_way=part.gives_way)


def text_of(parts: Iterable[Part]) -> str:
    """A page as text."""
    found: list[str] = []
    for part in parts:
        if isinstance(part, str):
            found.append(tame(part))
        elif isinstance(part, PageList):
            found += ["", part.title, *(f"- {tame(sentence)}" for sentence in part.sentences)]
        else:
            found += ["", part.title, *plain_lines(part.header, [tuple(map(tame, row)) for row in part.rows])]
    return "\n".join(found)


def profile_page(
    profile: StepProfile, top: int, advice: Optional[StepAdvice] = None, *, of_steps: bool = False
) -> Iterator[Part]:
    """``of_steps``: a sentence above it names the steps that it is of."""
    peak, phases = profile.peak, known_phases(profile)
    version = torch_words(profile.torch_version)
    torch = "" if version is None else f", torch {version}"
    passes = f"{profile.backward_passes:,} backward {'pass' if profile.backward_passes == 1 else 'passes'}"
    yield f"Device {profile.device}{torch}: {passes}, {profile.events:,} events."
    yield peak_sentence(profile)
    yield PageTable(
        "Allocated at the peak",
        ("category", "bytes", "share", ""),
        [
            (category.value, format_bytes(held), f"{held / peak.allocated_bytes:.0%}", bar(held / peak.allocated_bytes))
            for category, held in peak.largest_first
        ],
    )
    if phases:
        yield PageTable(
            "Highest in each phase",
            ("phase", "allocated", ""),
            [
                (one.phase.value, format_bytes(one.peak_bytes), bar(one.peak_bytes / peak.allocated_bytes))
                for one in phases
            ],
        )
    yield PageTable(
        "Lines that hold most at the peak",
        ("bytes", "blocks", "category", "phase", "line", "called from"),
        [_line_cells(line) for line in profile.lines[:top]],
        gives_way=("called from", "phase"),
    )
    yield from _more(len(profile.lines), top)
    yield from _modules(profile)
    sentences = [] if advice is None else list(advice_sentences(advice))
    doubtful = list(doubts(profile, of_steps=of_steps))
    if sentences:
        yield PageList("What would help, each by itself", sentences)
    yield from ["", *doubtful] if doubtful else []


def _modules(profile: StepProfile) -> Iterator[Part]:
    outside = outside_modules(profile)
    if outside is None:
        return
    groups = module_groups(profile.modules)
    yield PageTable(
        "Modules that hold most at the peak",
        ("bytes", "mostly", "module"),
        [
            (format_bytes(one.held_bytes), one.largest_first[0][0].value, name_of_group(one))
            for one in groups[:TOP_MODULES]
        ],
    )
    yield outside


def comparison_page(compared: ProfileComparison, top: int) -> Iterator[Part]:
    yield comparison_sentence(compared)
    yield PageTable(
        "Allocated at the peak",
        ("category", "before", "after", "change"),
        [
            (
                one.category.value,
                format_bytes(one.before_bytes),
                format_bytes(one.after_bytes),
                signed_bytes(one.grown_bytes),
            )
            for one in compared.categories
        ],
    )
    if compared.phases:
        yield PageTable(
            "Highest in each phase", ("phase", "before", "after", "change"), list(map(_phase_cells, compared.phases))
        )
    if compared.lines:
        yield PageTable(
            "Lines that changed most at the peak",
            ("change", "blocks", "category", "line"),
            [
                (
                    signed_bytes(one.grown_bytes),
                    f"{one.after_blocks - one.before_blocks:+,}",
                    one.category.value,
                    line_of_change(one),
                )
                for one in compared.lines[:top]
            ],
        )
        yield from _more(len(compared.lines), top)
    if compared.modules:
        yield PageTable(
            "Modules that changed most at the peak",
            ("change", "before", "after", "module"),
            [
                (
                    signed_bytes(one.grown_bytes),
                    format_bytes(one.before_bytes),
                    format_bytes(one.after_bytes),
                    OUTSIDE if one.path is None else one.path,
                )
                for one in compared.modules[:TOP_MODULES]
            ],
        )


def _phase_cells(one: PhaseChange) -> tuple[str, ...]:
    return one.phase.value, known_bytes(one.before_bytes), known_bytes(one.after_bytes), change_of_phase(one)


def _more(lines: int, top: int) -> Iterator[str]:
    if lines > top:
        yield f"({lines - top:,} more; --top {lines} or --json shows all)"


def _line_cells(line: ProfileLine) -> tuple[str, ...]:
    held = format_bytes(line.held_bytes), f"{line.blocks:,}", line.category.value, phase_of_line(line)
    return *held, name_of_line(line), caller_of_line(line) or ""
