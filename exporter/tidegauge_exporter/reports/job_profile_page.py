"""The memory profiles of a job's ranks as a page: all side by side, and some of them in full, one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, NamedTuple

from tidegauge.analysis.profile.words import doubts, peak_sentence, rank_doubts, torch_words
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.imbalance import MIN_EXCESS_BYTES, MIN_EXCESS_SHARE, Imbalance, Outside, Part, held_by_rank
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.units import format_bytes
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.reports.html_page import NOTHING, bullets, lead, legend, meta, moment, muted, section, table
from tidegauge_exporter.reports.profile_page import (
    MAX_NAME_CHARS,
    ORDER,
    SEARCH,
    category_css,
    profile_lead,
    profile_sections,
    scripted_page,
)

MAX_TALL_BARS: Final = 32
"""Ranks whose bars are as tall as a line of text; of more ranks they are thin, and every 16th has its number."""
MAX_RANKS_IN_FULL: Final = 16
"""On a page, each with some 170 KB."""
_CSS: Final[Mapping[Part, str]] = {
    **{category: category_css(category) for category in Category},
    Outside.PROCESS: "area nontorch",
    Outside.OTHERS: "area cached",
}
_PARTS: Final[Sequence[Part]] = (*ORDER, *Outside)
_CHOICE: Final = """<div class="tools choose-rank" hidden><label>Show rank <select>{options}</select></label>
<span>{note}</span></div>"""


class TextTable(NamedTuple):
    """A table of plain texts."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    """Columns of figures."""


@dataclass(frozen=True)
class RankInFull:
    """All that the page shows of one rank."""

    about: RankProfile
    profile: StepProfile
    tables: Sequence[TextTable] = ()
    """Further ones, such as what lies outside PyTorch."""


def ranks_in_full(
    found: Sequence[RankProfile], uneven: Imbalance | None, *, most: int = MAX_RANKS_IN_FULL
) -> Sequence[RankProfile]:
    """Those that a page shows in full, the fullest first: all, or of many ``most`` from the fullest to the
    emptiest, evenly, and both ranks that the imbalance is about."""
    order = sorted(found, key=lambda one: (-one.allocated_bytes, one.rank))
    if len(order) <= most:
        return order
    told = () if uneven is None else (uneven.rank, uneven.peer)
    rest = [one for one in order if one.rank not in told]
    steps = most - len(told) - 1
    chosen = {*told, *(rest[place * (len(rest) - 1) // steps].rank for place in range(steps + 1))}
    return [one for one in order if one.rank in chosen]


def render_job(
    ranks: Sequence[RankProfile],
    in_full: Sequence[RankInFull],
    *,
    subject: str,
    made_unix_s: float,
    uneven: str | None = None,
    gaps: Sequence[str] = (),
) -> str:
    """The page of ``job_profile_parts``."""
    parts = job_profile_parts(ranks, in_full, subject=subject, made_unix_s=made_unix_s, uneven=uneven, gaps=gaps)
    return scripted_page(job_profile_title(in_full[0]), parts)


def job_profile_title(shown: RankInFull) -> str:
    return f"{format_bytes(shown.profile.peak.allocated_bytes)} at the peak of rank {shown.about.rank}"


def job_profile_parts(
    ranks: Sequence[RankProfile],
    in_full: Sequence[RankInFull],
    *,
    subject: str,
    made_unix_s: float,
    uneven: str | None = None,
    gaps: Sequence[str] = (),
) -> list[str]:
    """The sections. ``ranks`` by number; ``in_full`` are some of them, the first of which is shown at first.
    ``uneven``: which rank has more than its peers, and why. ``gaps``: what the page lacks."""
    shown = in_full[0]
    return [
        meta(
            [
                ("Job", tidy(subject, MAX_NAME_CHARS)),
                _which_ranks(ranks),
                ("torch", torch_words(shown.profile.torch_version)),
            ],
            made_unix_s=made_unix_s,
        ),
        profile_lead(shown.profile) if len(ranks) == 1 else _lead(ranks, shown, uneven),
        _side_by_side(ranks, in_full),
        SEARCH,
        *map(_in_full, in_full),
        section("Gaps", bullets(tidy(gap, MAX_NAME_CHARS) for gap in gaps)),
    ]


def _which_ranks(ranks: Sequence[RankProfile]) -> tuple[str, str]:
    """A label, and which or how many of the job's ranks the page is about."""
    whole = max(len(ranks), *(one.world_size or 0 for one in ranks))
    if len(ranks) > 1:
        return "Ranks", f"{len(ranks):,} of {whole:,}" if whole > len(ranks) else f"{whole:,}"
    return "Rank", f"{ranks[0].rank} (of {whole:,})" if whole > 1 else f"{ranks[0].rank}"


def _lead(ranks: Sequence[RankProfile], shown: RankInFull, uneven: str | None) -> str:
    peak = shown.profile.peak
    most = " and ".join(
        f"{category.value} ({held / peak.allocated_bytes:.0%})" for category, held in peak.largest_first[:2]
    )
    order = sorted(one.allocated_bytes for one in ranks)
    equal = (
        f"No rank holds over {MIN_EXCESS_SHARE:.0%} (and {format_bytes(MIN_EXCESS_BYTES)}) more than the median rank."
    )
    return lead(
        f"Rank {shown.about.rank} is the fullest of {len(ranks):,}: {format_bytes(peak.allocated_bytes)} at the peak"
        f"{f', mostly {most}' if most else ''}.",
        tone="note" if uneven is None else "warning",
        remarks=[equal if uneven is None else uneven],
        figures=[
            (format_bytes(order[-1]), "allocated at the peak, fullest rank"),
            (format_bytes(order[(len(order) - 1) // 2]), "median rank" if len(order) > 2 else "the other rank"),
            (format_bytes(order[0]) if len(order) > 2 else None, "emptiest rank"),
            (format_bytes(max(one.reserved_bytes for one in ranks)), "reserved at most, any rank"),
        ],
    )


def _side_by_side(ranks: Sequence[RankProfile], in_full: Sequence[RankInFull]) -> str:
    """Bars of all ranks, the same as a table, and which of them to show below; nothing of a single one."""
    held = held_by_rank(ranks)
    if len(ranks) == 1 or not held:
        return ""
    shown = [part for part in _PARTS if any(parts.get(part) for parts in held.values())]
    widest = max(sum(parts.values()) for parts in held.values()) or 1
    there = {one.about.rank for one in in_full}
    bars = "\n".join(
        _bar(one, held[one.rank], shown, widest, is_there=one.rank in there, is_named=place % 16 == 0)
        for place, one in enumerate(ranks)
        if one.rank in held
    )
    thin = " thin" if len(held) > MAX_TALL_BARS else ""
    outside = ", and outside PyTorch by NVML" if Outside.PROCESS in shown else ""
    options = "".join(
        f'<option value="{one.rank}">{one.rank} ({format_bytes(sum(held[one.rank].values()))})</option>'
        for one in ranks
        if one.rank in there and one.rank in held
    )
    note = "or click on its bar: everything below is of that rank."
    if len(there) < len(held):
        note += f" {len(there):,} of the {len(held):,} ranks are here in full."
    return section(
        f"At the peak of each rank{outside}",
        legend([(_CSS[part], escape(part.value)) for part in shown]),
        f'<ol class="rank-bars{thin}">\n{bars}\n</ol>',
        _CHOICE.format(options=options, note=note) if len(there) > 1 else "",
        f"<details><summary>The same as a table</summary>\n{_table(ranks)}</details>",
    )


def _bar(
    one: RankProfile, held: Mapping[Part, int], shown: Sequence[Part], widest: int, *, is_there: bool, is_named: bool
) -> str:
    """One rank's. What the pointer shows is beside each part, and for all of them beside the number."""
    whole, x, parts = sum(held.values()), 0.0, []
    who = f"rank {one.rank} on {tidy(one.hostname, MAX_NAME_CHARS)}"
    for part in shown:
        count = held.get(part, 0)
        if not count:
            continue
        width = 100 * count / widest
        title = f"{part.value}: {format_bytes(count)} ({count / whole:.0%}) of {format_bytes(whole)}, {who}"
        box = f'x="{x:.3f}" width="{width:.3f}" height="6"'
        parts.append(f'<rect class="{_CSS[part]}" {box}><title>{escape(title)}</title></rect>')
        x += width
    css = " ".join(word for word, holds in (("there", is_there), ("named", is_named)) if holds)
    return (
        f'<li class="{css}" data-rank="{one.rank}"><span title="{escape(who)}, peak in: {escape(one.phase.value)}">'
        f'{one.rank}</span><svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none">{"".join(parts)}</svg>'
        f"<span>{format_bytes(whole)}</span></li>"
    )


def _table(ranks: Sequence[RankProfile]) -> str:
    categories = [category for category in ORDER if any(one.by_category.get(category) for one in ranks)]
    outside = [
        (kind, name)
        for kind, name in (
            (Outside.PROCESS, "process_outside_bytes"),
            (Outside.OTHERS, "unwatched_processes_bytes"),
        )
        if any(getattr(one, name) is not None for one in ranks)
    ]
    rows = []
    for one in ranks:
        held = [format_bytes(one.by_category.get(category, 0)) for category in categories]
        beyond = [getattr(one, name) for _, name in outside]
        rows.append(
            (
                f"{one.rank}",
                escape(tidy(one.hostname, MAX_NAME_CHARS)),
                escape(one.phase.value),
                format_bytes(one.allocated_bytes),
                *held,
                format_bytes(one.reserved_bytes),
                *(NOTHING if count is None else format_bytes(count) for count in beyond),
            )
        )
    figures = ("peak", *(category.value for category in categories), "reserved", *(kind.value for kind, _ in outside))
    heads = ("rank", "host", "phase", *figures)
    return table(heads, rows, numbers=range(3, len(heads)))


def _in_full(one: RankInFull) -> str:
    about, profile = one.about, one.profile
    sections = [
        *profile_sections(profile, profile.advice),
        *(section(each.title, _text_table(each)) for each in one.tables),
        section("Gaps", bullets([*doubts(profile, of_steps=True), *rank_doubts(about)])),
    ]
    steps = f"Steps {about.began_step:,} to {about.ended_step:,}, recorded {moment(about.at_unix_s)}"
    heading = section(
        f"Rank {about.rank} on {tidy(about.hostname, MAX_NAME_CHARS)}", muted(f"{peak_sentence(profile)} {steps}.")
    )
    body = "\n".join(part for part in (heading, *sections) if part)
    return f'<div class="of-rank" data-rank="{about.rank}">\n{body}\n</div>'


def _text_table(one: TextTable) -> str:
    rows = [[escape(tidy(cell, MAX_NAME_CHARS)) for cell in row] for row in one.rows]
    return table([*map(escape, one.header)], rows, numbers=one.numbers)
