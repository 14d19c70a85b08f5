"""The memory profile of recorded training steps as a page: what fills the GPU at the peak, and over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Final

from tidegauge.analysis.profile.words import (
    caller_of_line,
    doubts,
    known_phases,
    name_of_line,
    outside_modules,
    peak_sentence,
    phase_of_line,
    room_sentences,
    torch_words,
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
    script_json,
    section,
    style_sheet,
    table,
    with_note,
)
from tidegauge_exporter.reports.icicle import IciclePart, draw_icicle
from tidegauge_exporter.reports.recording_data import MAX_BLOCKS, recording_data

if TYPE_CHECKING:
    from tidegauge.analysis.profile.recording import NamedRecording

MAX_LINES: Final = 60
MAX_NAME_CHARS: Final = 400
MAX_SPANS: Final = 12
"""Of backward passes with a word on each: more would touch."""
MAX_READOUT_PARTS: Final = 4
_EVENTS: Final = Axis("allocator event", step_ticks)
ORDER: Final = (
    Category.PARAMETERS, Category.BUFFERS, Category.OPTIMIZER_STATE, Category.GRADIENTS, Category.COMMUNICATION,
    Category.WORKSPACES, Category.CUDA_GRAPHS, Category.OTHER, Category.UNKNOWN, Category.INPUTS,
    Category.ACTIVATIONS, Category.TEMPORARIES, Category.ROUNDING,
)  # fmt: skip
"""From below: what stays over a step first, so that the shape of what comes and goes lies on a flat ground."""


DATA_ID: Final = "profile-data"
SCRIPT: Final = ("report_page", "built", "profile.js")
SEARCH: Final = """<div class="tools search" hidden><label>Search functions, modules and lines
<input type="search" placeholder="mlp, or model.py:21"></label><output></output></div>"""
_TIMELINE: Final = """<div class="timeline needs-blocks" data-order="{order}" hidden>
<p class="muted">Click for what is allocated at an event, drag for what a range leaves behind; all below follows.
On top are the phases: <span class="keys"></span></p>
<canvas tabindex="0" role="application" aria-label="allocated memory over the recording: arrow keys move by one event, \
plus and minus zoom, Escape goes back to the peak"></canvas>
<div class="tools"><button type="button" data-do="peak">the peak</button>
<button type="button" data-do="back" aria-label="one event back">&#8249;</button>
<label>event <input type="number" step="1"></label>
<button type="button" data-do="on" aria-label="one event on">&#8250;</button>
<label hidden>of the range <select><option value="left">what it leaves behind</option>
<option value="highest">its highest moment</option></select></label>
<button type="button" data-do="zoom">zoom to the range</button>
<button type="button" data-do="all">show all</button></div>
<p class="said" aria-live="polite"></p></div>"""
_FLAME: Final = """<section class="needs-blocks" hidden>
<h2><span data-moment>At the peak</span>, by call stack</h2>
<div class="scroll"><svg class="icicle" data-of="function" role="img" aria-label="Memory by call stack"></svg></div>
<p class="muted">The outermost call is on top; calls of libraries are left out. Click on a part to enlarge it, on one
above it to go back.</p></section>"""
_SEGMENTS: Final = """<section class="segments needs-blocks" hidden>
<h2><span data-moment>At the peak</span>: segments and blocks of the allocator</h2>
<div><canvas></canvas></div><p class="said"></p></section>"""


def render_profile(
    profile: StepProfile,
    advice: StepAdvice | None = None,
    *,
    subject: str,
    made_unix_s: float,
    recording: NamedRecording | None = None,
) -> str:
    """The page. ``subject`` is the file or the job, for people. With ``recording``, of which the profile was made, it
    shows any event and any range of them as well."""
    facts = (("Snapshot", subject), ("Device", str(profile.device)), ("torch", torch_words(profile.torch_version)))
    title = f"{format_bytes(profile.peak.allocated_bytes)} at the peak"
    data = None if recording is None else recording_data(recording, peak_event=profile.peak.event)
    parts = [
        meta(facts, made_unix_s=made_unix_s),
        profile_lead(profile),
        SEARCH,
        *profile_sections(profile, advice, data=data),
        section("Gaps", bullets([*doubts(profile), *_not_shown(recording, data)])),
    ]
    return scripted_page(title, parts, profile_json(data))


def scripted_page(title: str, html: Sequence[str], json_html: str = "") -> str:
    """A document with the script of profiles; ``json_html`` has its data."""
    style, script = style_sheet(), asset(*SCRIPT)
    parts = [*html, "<footer>Made by Tidegauge from a recorded allocation history.</footer>"]
    end = f"{json_html}<script>{script}</script>\n"
    return page(title, parts, head=policy(style, script), style=style, end=end)


def profile_sections(
    profile: StepProfile, advice: StepAdvice | None = None, *, data: Mapping[str, Any] | None = None
) -> list[str]:
    """What the peak is made of, and when it comes; ``data`` is the recording's."""
    blocks = data is not None
    order = ",".join(category.value for category in ORDER)
    return [
        section("Allocated over the recording", *_chart(profile, _TIMELINE.format(order=order) if blocks else "")),
        _of_moment("by category", "categories", _categories(profile)),
        section("Highest in each phase", _phases(profile)),
        _of_moment("by module", "modules", _modules(profile)),
        _FLAME if blocks else "",
        _of_moment("by line", "lines", f'<div class="searched">{_lines(profile)}</div>'),
        _SEGMENTS if blocks else "",
        *([] if advice is None else [section("What would help, each by itself", *_advice(advice))]),
    ]


def profile_json(data: Mapping[str, Any] | None) -> str:
    """Markup of the data for the script."""
    if data is None:
        return ""
    return f'<script type="application/json" id="{DATA_ID}">{script_json(data)}</script>\n'


def _of_moment(what: str, part: str, html: str) -> str:
    """A section that the script fills again for another moment."""
    if not html:
        return ""
    heading = f"<h2><span data-moment>At the peak</span>, {what}</h2>"
    return f'<section data-part="{part}">\n{heading}\n{html}\n</section>'


def _not_shown(recording: NamedRecording | None, data: Mapping[str, Any] | None) -> Iterator[str]:
    if recording is not None and data is None:
        yield f"The recording has more than {MAX_BLOCKS:,} blocks, so the page shows its peak alone."
    elif data is not None and data["left_out"]:
        last = data["end"] - 1
        yield (
            f"Of {profile_events(data):,} events, the page has blocks for those from {data['first']:,} to {last:,}; "
            "figures in tables of the peak and of phases are of all."
        )


def profile_events(data: Mapping[str, Any]) -> int:
    return int(data["end"] - data["first"] + data["left_out"])


def profile_lead(profile: StepProfile) -> str:
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


def _chart(profile: StepProfile, timeline_html: str) -> list[str]:
    timeline = profile.timeline
    shown = [category for category in ORDER if category in timeline.by_category]
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
    return [legend(looks), f'<div class="without-blocks"><div class="scroll">{chart}</div></div>', timeline_html]


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
    rows = [(escape(one.phase.value), format_bytes(one.peak_bytes), _event(one.event)) for one in known_phases(profile)]
    return table(("phase", "allocated", "event"), rows, numbers=(1, 2)) if rows else ""


def _event(event: int) -> str:
    return f'<span data-event="{event}">{max(event, 0):,}</span>'


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
        of="module",
        description="Memory at the peak by module",
    )
    looks = [(category_css(category), escape(category.value)) for category in ORDER[::-1] if held[category]]
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
