"""The HTML report of one job: a file that needs nothing beside itself, for a browser, an attachment or a printer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timezone
from html import escape
from importlib.resources import files

from tidegauge.core.units import format_band, format_bytes, format_duration
from tidegauge.core.verdicts import OK as NOTHING_TO_SAY
from tidegauge.core.verdicts import LeakState, Signal, Verdict
from tidegauge.core.wording import rate
from tidegauge_exporter.chart import Line, Mark, draw
from tidegauge_exporter.report_values import RankReport, Reading, ReportInput, leaking, worst_first
from tidegauge_exporter.sentences import headline, hint, time_to_oom

__all__ = ["RankReport", "Reading", "ReportInput", "headline", "render_report"]

FEW_RANKS = 8
"""Up to so many ranks every curve has its name and its reserved curve; beyond, only those that stand out do."""
UUID_LENGTH = 12
"""Enough of ``GPU-1b2c3d4e-...`` to tell two cards apart; the whole is in the cell's tooltip."""
MOST_ROWS = 64
"""Rows of the table; a job of a thousand ranks is read by its worst."""

_NOTHING = "\N{EN DASH}"
"""In a cell for which there is no figure."""

_SIGNALS: dict[Signal, tuple[str, Callable[[Reading], int | None]]] = {
    Signal.ALLOCATED: ("allocated", lambda reading: reading.allocated_bytes),
    Signal.RESERVED: ("reserved", lambda reading: reading.reserved_bytes),
    Signal.NONTORCH: ("nontorch", lambda reading: reading.nontorch_bytes),
}
"""What has a curve, and its look. Host memory is not on the card and has none."""
_LEGEND = {
    "allocated": "allocated: live tensors",
    "reserved": "reserved: held by PyTorch's allocator",
    "nontorch": "outside PyTorch's allocator",
}


def render_report(report: ReportInput) -> str:
    """The page. Everything that a job chose itself (names, configuration) is escaped."""
    name = report.job_name or f"job {report.job_id}"
    body = "\n".join(
        [
            _meta(report),
            _lead(report),
            _plot(report),
            _table(report),
            _about(report),
            "<footer>Made by Tidegauge. Times and rates are estimates; their ranges are given with them.</footer>",
        ]
    )
    style = files("tidegauge_exporter").joinpath("report.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)}: GPU memory</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _meta(report: ReportInput) -> str:
    made = datetime.fromtimestamp(report.made_unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    facts = [("Job", report.job_id), ("Name", report.job_name), ("User", report.user_name), ("Cluster", report.cluster)]
    told = [f"<span>{label} <b>{escape(value)}</b></span>" for label, value in facts if value]
    return f'<header><p class="meta">{"".join(told)}<span>Report of {made}</span></p></header>'


def _lead(report: ReportInput) -> str:
    first = worst_first(report.ranks)[0].verdict if report.ranks else NOTHING_TO_SAY
    advice = hint(first.signal) if first.state is not LeakState.OK else None
    parts = [
        f'<section class="lead tone-{_tone(first) if _recorded(report) else "note"}">',
        f"<h1>{escape(headline(report))}</h1>",
    ]
    if advice:
        parts.append(f"<p>{escape(advice)}</p>")
    figures = [(value, what) for value, what in _figures(first) if value]
    if figures and first.state is not LeakState.OK:
        cells = "".join(f"<div><dt>{what}</dt><dd>{escape(value)}</dd></div>" for value, what in figures)
        parts.append(f'<dl class="figures">{cells}</dl>')
    return "\n".join([*parts, "</section>"])


def _recorded(report: ReportInput) -> bool:
    return any(rank.readings for rank in report.ranks)


def _figures(verdict: Verdict) -> list[tuple[str | None, str]]:
    return [
        (format_band(verdict.bytes_per_step, format_bytes) if verdict.bytes_per_step else None, "growth per step"),
        (format_bytes(verdict.grown_bytes) if verdict.grown_bytes else None, "gained since it began"),
        (_step(verdict.onset_step), "began at step"),
        (_step(verdict.alarm_step), "established at step"),
        (time_to_oom(verdict), "until out of memory"),
    ]


def _plot(report: ReportInput) -> str:
    lines = _lines(report)
    marks = []
    for rank in leaking(report.ranks)[:1]:
        verdict = rank.verdict
        if verdict.onset_step is not None:
            marks.append(Mark(verdict.onset_step, f"growth begins, step {verdict.onset_step:,}", "onset"))
        if verdict.alarm_step is not None:
            marks.append(Mark(verdict.alarm_step, f"leak established, step {verdict.alarm_step:,}", "alarm"))
    limits = [rank.limit_bytes for rank in report.ranks if rank.limit_bytes is not None]
    chart = draw(lines, marks=marks, limit=min(limits, default=None), description=headline(report))
    keys = [css for css in _LEGEND if any(css in line.css.split() for line in lines)]
    legend = "".join(
        f'<span><svg viewBox="0 0 34 8"><path class="curve plain {css}" d="M0 4H34"/></svg>{_LEGEND[css]}</span>'
        for css in keys
    )
    return (
        f"<section>\n<h2>GPU memory of each rank, by training step</h2>\n"
        f'<p class="legend">{legend}</p>\n<div class="scroll">{chart}</div>\n</section>'
    )


def _lines(report: ReportInput) -> list[Line]:
    """Curves, the quiet ones first so that those that stand out lie on top. Of many quiet ones the last is named
    for all.
    """
    crowded = len(report.ranks) > FEW_RANKS
    quiet = [rank for rank in report.ranks if rank.verdict.state is LeakState.OK]
    crowd = [line for rank in quiet for line in _curves(rank, in_crowd=True)] if crowded else []
    if crowd:
        everyone = len(quiet) == len(report.ranks)
        crowd[-1] = replace(crowd[-1], label=f"{len(quiet):,} {'ranks' if everyone else 'others'}")
    named = [rank for rank in worst_first(report.ranks)[::-1] if not crowded or rank.verdict.state is not LeakState.OK]
    return crowd + [line for rank in named for line in _curves(rank, in_crowd=False)]


def _curves(rank: RankReport, *, in_crowd: bool) -> list[Line]:
    """Allocated, and reserved unless the rank is one of many; and whatever its verdict speaks of."""
    verdict = rank.verdict
    accused = verdict.signal if verdict.state is not LeakState.OK else None
    named = accused if accused in _SIGNALS else Signal.ALLOCATED
    lines = []
    for signal, (css, read) in _SIGNALS.items():
        points = [(reading.step, value) for reading in rank.readings if (value := read(reading)) is not None]
        wanted = signal is Signal.ALLOCATED or signal is accused or (signal is Signal.RESERVED and not in_crowd)
        if wanted and points:
            line = Line(
                points,
                css=f"{_colour(verdict)} {css}{' many' if in_crowd else ''}",
                title=f"rank {rank.identity.rank}, {_LEGEND[css].partition(':')[0]}",
                label=f"rank {rank.identity.rank}" if signal is named and not in_crowd else None,
                shaded_from=verdict.onset_step if signal is accused else None,
            )
            lines.append(line)
    return lines


def _table(report: ReportInput) -> str:
    if not report.ranks:
        return ""
    ranks = worst_first(report.ranks)
    has_nontorch = any(rank.readings and rank.readings[-1].nontorch_bytes is not None for rank in ranks)
    columns = ["Rank", "GPU", "Verdict", "Growth per step", "Since step", "Out of memory in", "Allocated", "Reserved"]
    columns += ["Outside PyTorch"] * has_nontorch + ["Limit"]
    head = "".join(f'<th{_number(index)} scope="col">{name}</th>' for index, name in enumerate(columns))
    rows = "\n".join(_row(rank, has_nontorch=has_nontorch) for rank in ranks[:MOST_ROWS])
    rest = len(ranks) - MOST_ROWS
    more = f'<p class="muted">{rest:,} more ranks are not listed.</p>' if rest > 0 else ""
    return (
        f'<section>\n<h2>Ranks at the last reading</h2>\n<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>\n{more}</section>"
    )


def _row(rank: RankReport, *, has_nontorch: bool) -> str:
    verdict, who = rank.verdict, rank.identity
    last = rank.readings[-1] if rank.readings else None
    place = who.hostname if rank.gpu is None else f"{who.hostname}, GPU {rank.gpu}"
    device = " ".join(filter(None, (rank.gpu_name, rank.uuid and rank.uuid[:UUID_LENGTH])))
    word = {LeakState.OK: "ok", LeakState.SUSPECTED: "suspected", LeakState.LEAK: "leak"}[verdict.state]
    grave = verdict.severity.value if verdict.severity and verdict.state is LeakState.LEAK else ""
    growing = verdict.state is not LeakState.OK
    cells = [
        str(who.rank),
        f'{escape(place)}<small title="{escape(rank.uuid or "")}">{escape(device)}</small>',
        f'<span class="verdict tone-{_tone(verdict)}">{word}</span><small>{grave}</small>',
        rate(verdict.bytes_per_step) if growing else None,
        _step(verdict.onset_step) if growing else None,
        time_to_oom(verdict) if growing else None,
        last and format_bytes(last.allocated_bytes),
        last and format_bytes(last.reserved_bytes),
    ]
    if has_nontorch:
        cells.append(None if last is None or last.nontorch_bytes is None else format_bytes(last.nontorch_bytes))
    cells.append(None if rank.limit_bytes is None else format_bytes(rank.limit_bytes))
    written = (f"<td{_number(index)}>{cell or _NOTHING}</td>" for index, cell in enumerate(cells))
    return f"<tr>{''.join(written)}</tr>"


def _about(report: ReportInput) -> str:
    facts = [*(escape(note) for note in report.notes), *_measured(report)]
    facts.append(
        "Allocated and reserved are the counters of PyTorch's allocator; what is outside PyTorch is the driver's "
        "figure for the process minus reserved."
    )
    return (
        f"<section>\n<h2>What was measured</h2>\n<ul>{''.join(f'<li>{fact}</li>' for fact in facts)}</ul>\n</section>"
    )


def _measured(report: ReportInput) -> Iterable[str]:
    readings = [rank.readings for rank in report.ranks if rank.readings]
    if readings:
        steps = max(each[-1].step for each in readings) - min(each[0].step for each in readings)
        lasted_s = max(each[-1].time_s for each in readings) - min(each[0].time_s for each in readings)
        yield f"{steps:,} steps in {format_duration(max(lasted_s, 0.0))}, on {len(readings)} of {_world(report)}."
    for what, values in (
        ("PyTorch", {rank.identity.torch_version for rank in report.ranks}),
        ("Allocator configuration", {rank.identity.alloc_conf for rank in report.ranks}),
        ("Profile level", {rank.identity.profile for rank in report.ranks}),
    ):
        told = ", ".join(f"<code>{escape(value)}</code>" for value in sorted(filter(None, values)))
        if told:
            yield f"{what}: {told}."


def _world(report: ReportInput) -> str:
    size = max((rank.identity.world_size for rank in report.ranks), default=0)
    return "1 rank" if size == 1 else f"{size:,} ranks"


def _tone(verdict: Verdict) -> str:
    if verdict.state is LeakState.LEAK:
        return str(verdict.severity.value) if verdict.severity else "critical"
    return str(verdict.state.value)


def _colour(verdict: Verdict) -> str:
    return {LeakState.OK: "calm", LeakState.SUSPECTED: "warn", LeakState.LEAK: "bad"}[verdict.state]


def _step(step: int | None) -> str | None:
    return None if step is None else f"{step:,}"


def _number(column: int) -> str:
    """All columns but the first three hold numbers."""
    return ' class="number"' if column > 2 else ""
