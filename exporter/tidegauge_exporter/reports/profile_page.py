"""The memory profile of recorded training steps as a page: what fills the GPU at the peak, and over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, groupby
from typing import Final

from tidegauge.analysis.profile.words import (
    caller_of_line,
    doubts,
    known_phases,
    name_of_line,
    outside_modules,
    peak_sentence,
    phase_of_line,
    room_sentences,
)
from tidegauge.core.profile.advice import StepAdvice
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.core.profile.step_profile import ModuleMemory, StepProfile
from tidegauge.core.units import format_bytes
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.reports.chart import Axis, ChartLine, ChartMark, ChartSpan, Readout, draw, step_ticks
from tidegauge_exporter.reports.html_page import (
    NOTHING,
    asset,
    bullets,
    lead,
    legend,
    meta,
    muted,
    page,
    policy,
    section,
    style_sheet,
    table,
    with_note,
)
from tidegauge_exporter.reports.icicle import IciclePart, draw_icicle

MAX_LINES: Final = 60
MAX_NAME_CHARS: Final = 400
MAX_SPANS: Final = 12
"""Of backward passes with a word on each: more would touch."""
MAX_READOUT_PARTS: Final = 4
_EVENTS: Final = Axis("allocator event", step_ticks)
_ORDER: Final = (
    Category.PARAMETERS, Category.BUFFERS, Category.OPTIMIZER_STATE, Category.GRADIENTS, Category.COMMUNICATION,
    Category.WORKSPACES, Category.CUDA_GRAPHS, Category.OTHER, Category.UNKNOWN, Category.INPUTS,
    Category.ACTIVATIONS, Category.TEMPORARIES, Category.ROUNDING,
)  # fmt: skip
"""From below: what stays over a step first, so that the shape of what comes and goes lies on a flat ground."""


_SEARCH: Final = """<div class="tools search" hidden><label>Search modules and lines
<input type="search" placeholder="mlp, or model.py:21"></label><output></output></div>"""


def render_profile(profile: StepProfile, advice: StepAdvice | None = None, *, subject: str, made_unix_s: float) -> str:
    """The page. ``subject`` is the file or the job, for people."""
    facts = (("Snapshot", subject), ("Device", str(profile.device)), ("torch", profile.torch_version))
    title = f"{format_bytes(profile.peak.allocated_bytes)} at the peak"
    parts = [
        meta(facts, made_unix_s=made_unix_s),
        _lead(profile),
        _SEARCH,
        section("Allocated over the recording", *_chart(profile)),
        section("At the peak, by category", _categories(profile)),
        section("Highest in each phase", _phases(profile)),
        section("At the peak, by module", _modules(profile)),
        section("Lines that hold most at the peak", f'<div class="searched">{_lines(profile)}</div>'),
        *([] if advice is None else [section("What would help, each by itself", *_advice(advice))]),
        section("Gaps", bullets(doubts(profile))),
        "<footer>Made by Tidegauge from a recorded allocation history.</footer>",
    ]
    style, script = style_sheet(), asset("profile_page.js")
    return page(title, parts, head=policy(style, script), style=style, end=f"<script>{script}</script>\n")


def _lead(profile: StepProfile) -> str:
    peak = profile.peak
    shares = " and ".join(
        f"{category.value} ({held / peak.allocated_bytes:.0%})" for category, held in peak.largest_first[:2]
    )
    return lead(
        f"{format_bytes(peak.allocated_bytes)} at the peak, mostly {shares}." if shares else "Nothing was allocated.",
        tone="note",
        remarks=[peak_sentence(profile)],
        figures=[
            (format_bytes(peak.allocated_bytes), "allocated at the peak"),
            (format_bytes(profile.reserved_bytes), "reserved at most"),
            (f"{peak.unknown_share:.1%}", "unknown"),
            (f"{profile.backward_passes:,}", "backward passes"),
        ],
    )


def _chart(profile: StepProfile) -> list[str]:
    timeline = profile.timeline
    shown = [category for category in _ORDER if category in timeline.by_category]
    if not shown:
        return []
    at = [float(max(event, 0)) for event in timeline.events]
    heights = list(accumulate((timeline.by_category[category] for category in shown), _added))
    areas = [
        ChartLine(
            list(zip(at, map(float, height), strict=True)),
            css=category_css(category),
            title=category.value,
            filled=True,
        )
        for category, height in zip(shown, heights, strict=True)
    ]
    chart = draw(
        areas[::-1],  # the highest first: each hides the lower part of the one before
        marks=[
            ChartMark(float(max(profile.peak.event, 0)), f"peak {format_bytes(profile.peak.allocated_bytes)}", "alarm")
        ],
        spans=_backward_passes(profile),
        readouts=list(_readouts(profile, at)),
        axis=_EVENTS,
        description=peak_sentence(profile),
    )
    looks = [(category_css(category), escape(category.value)) for category in shown[::-1]]
    return [legend(looks), f'<div class="scroll">{chart}</div>']


def category_css(category: Category) -> str:
    return f"area of-{category.name.lower().replace('_', '-')}"


def _added(first: Sequence[int], second: Sequence[int]) -> Sequence[int]:
    return [one + other for one, other in zip(first, second, strict=True)]


def _backward_passes(profile: StepProfile) -> list[ChartSpan]:
    timeline = profile.timeline
    found = []
    moments = zip(timeline.events, timeline.phases, strict=True)
    for is_backward, group in groupby(moments, key=lambda one: one[1].is_backward):
        events = [float(event) for event, _ in group]
        if is_backward:
            found.append(ChartSpan(events[0], events[-1], "backward"))
    return [span if len(found) <= MAX_SPANS else span._replace(text="") for span in found]


def _readouts(profile: StepProfile, at: Sequence[float]) -> Iterator[Readout]:
    timeline = profile.timeline
    columns = timeline.by_category
    for place, (x, event, phase) in enumerate(zip(at, timeline.events, timeline.phases, strict=True)):
        held = sorted(((column[place], category) for category, column in columns.items()), key=lambda one: -one[0])
        parts = ", ".join(
            f"{category.value} {format_bytes(count)}" for count, category in held[:MAX_READOUT_PARTS] if count
        )
        when = "" if phase is StepPhase.UNKNOWN else f", {phase.value}"
        yield Readout(x, f"event {max(event, 0):,}{when}: {format_bytes(sum(one for one, _ in held))}: {parts}")


def _categories(profile: StepProfile) -> str:
    peak = profile.peak
    rows = [
        (
            escape(category.value),
            format_bytes(held),
            f"{held / peak.allocated_bytes:.1%}",
            _bar(held, peak.allocated_bytes, category),
        )
        for category, held in peak.largest_first
    ]
    return table(("category", "bytes", "share", ""), rows, numbers=(1, 2)) if rows else ""


def _phases(profile: StepProfile) -> str:
    rows = [(escape(one.phase.value), format_bytes(one.peak_bytes), f"{one.event:,}") for one in known_phases(profile)]
    return table(("phase", "allocated", "event"), rows, numbers=(1, 2)) if rows else ""


def _modules(profile: StepProfile) -> str:
    note = outside_modules(profile)
    if note is None:
        return ""
    held = Counter(profile.peak.by_category)
    del held[Category.ROUNDING]
    whole_bytes, outside = sum(held.values()), held.copy()
    parts: dict[str, list[IciclePart]] = {"": []}
    for module in profile.modules:
        above = module.path.rpartition(".")[0]
        parts[module.path] = []
        parts[above].append(_module_part(module, parts[module.path], whole_bytes))
        if not above:
            outside.subtract(module.total)
    for module in profile.modules:  # now that those below it are there
        parts[module.path] += _category_parts(module.own, whole_bytes)
    rest = _category_parts(+outside, whole_bytes)
    outside_bytes = profile.outside_modules_bytes
    name = f"{format_bytes(whole_bytes)}, as asked for"
    parts[""].append(IciclePart("no module", outside_bytes, _title("no module", outside, whole_bytes), "rest", rest))
    drawing = draw_icicle(
        IciclePart(name, whole_bytes, _title("all", held, whole_bytes), "rest", parts[""]),
        description="Memory at the peak by module",
    )
    looks = [(category_css(category), escape(category.value)) for category in _ORDER[::-1] if held[category]]
    zoom = "Click on a part to enlarge it, on one above it to go back."
    return f'{legend(looks)}\n<div class="scroll">{drawing}</div>\n{muted(f"{note} {zoom}")}'


def _module_part(module: ModuleMemory, parts: Sequence[IciclePart], whole_bytes: int) -> IciclePart:
    path = tidy(module.path, MAX_NAME_CHARS)
    name = path if "." not in path else path.rpartition(".")[2]
    return IciclePart(name, module.total_bytes, _title(path, module.total, whole_bytes), "module", parts, path)


def _category_parts(held: Mapping[Category, int], whole_bytes: int) -> list[IciclePart]:
    return [
        IciclePart(
            category.value, count, _title(category.value, {category: count}, whole_bytes), category_css(category)
        )
        for category, count in sorted(held.items(), key=lambda one: -one[1])
    ]


def _title(name: str, held: Mapping[Category, int], whole_bytes: int) -> str:
    count = sum(held.values())
    parts = [f"{category.value} {format_bytes(one)}" for category, one in sorted(held.items(), key=lambda one: -one[1])]
    what = f": {', '.join(parts)}" if len(parts) > 1 else ""
    return f"{name}: {format_bytes(count)} ({count / whole_bytes:.1%}){what}"


def _lines(profile: StepProfile) -> str:
    rows = []
    for line in profile.lines:
        caller = caller_of_line(line)
        name = f'<span class="path">{escape(tidy(name_of_line(line), MAX_NAME_CHARS))}</span>'
        rows.append(
            (
                format_bytes(line.held_bytes),
                f"{line.blocks:,}",
                escape(line.category.value),
                escape(phase_of_line(line)),
                with_note(name, None if caller is None else f"called from {tidy(caller, MAX_NAME_CHARS)}"),
            )
        )
    heads = ("bytes", "blocks", "category", "phase", "line")
    return table(heads, rows, numbers=(0, 1), most=MAX_LINES, what="lines") if rows else NOTHING


def _advice(advice: StepAdvice) -> list[str]:
    rows = [
        (
            format_bytes(one.saved_bytes),
            format_bytes(one.peak_bytes) + (" reserved" if one.is_reserved else ""),
            with_note(escape(tidy(one.action, MAX_NAME_CHARS)), one.condition),
            escape(tidy(one.price, MAX_NAME_CHARS)),
        )
        for one in advice.measures
    ]
    heads = ("saved", "peak then", "measure", "price")
    return [table(heads, rows, numbers=(0, 1)) if rows else "", bullets(room_sentences(advice))]


def _bar(held: int, whole: int, category: Category) -> str:
    look = f'<rect class="{category_css(category)}" width="{100 * held / whole:.2f}" height="6"/>'
    return f'<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none">{look}</svg>'
