"""The HTML report of one job: a file that needs nothing beside itself, for a browser, an attachment or a printer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from html import escape

from tidegauge.core.units import format_band, format_bytes, format_duration
from tidegauge.core.verdicts import OK as NOTHING_TO_SAY
from tidegauge.core.verdicts import LeakState, Signal, Verdict
from tidegauge_exporter.chart import Line, Mark, draw
from tidegauge_exporter.html_page import lead, legend, meta, page, section
from tidegauge_exporter.rank_table import RankRow, rank_table, tone
from tidegauge_exporter.report_values import RankReport, Reading, ReportInput, leaking, worst_first
from tidegauge_exporter.sentences import headline, hint, time_to_oom

__all__ = ["RankReport", "Reading", "ReportInput", "headline", "render_report"]

FEW_RANKS = 8
"""Up to so many ranks every curve has its name and its reserved curve; beyond, only those that stand out do."""

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
    facts = [("Job", report.job_id), ("Name", report.job_name), ("User", report.user_name), ("Cluster", report.cluster)]
    parts = [
        meta(facts, made_unix_s=report.made_unix_s),
        _lead(report),
        _plot(report),
        _table(report),
        _about(report),
        "<footer>Made by Tidegauge. Times and rates are estimates; their ranges are given with them.</footer>",
    ]
    return page(f"{report.job_name or f'job {report.job_id}'}: GPU memory", parts)


def _lead(report: ReportInput) -> str:
    first = worst_first(report.ranks)[0].verdict if report.ranks else NOTHING_TO_SAY
    grows = first.state is not LeakState.OK
    return lead(
        headline(report),
        tone=tone(first) if _recorded(report) else "note",
        remarks=[hint(first.signal) if grows else None],
        figures=_figures(first) if grows else (),
    )


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
    looks = [
        (f"curve plain {css}", words)
        for css, words in _LEGEND.items()
        if any(css in line.css.split() for line in lines)
    ]
    return section("GPU memory of each rank, by training step", f'{legend(looks)}\n<div class="scroll">{chart}</div>')


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
    return section("Ranks at the last reading", rank_table([_row(rank) for rank in worst_first(report.ranks)]))


def _row(rank: RankReport) -> RankRow:
    last = rank.readings[-1] if rank.readings else None
    return RankRow(
        rank=rank.identity.rank,
        hostname=rank.identity.hostname,
        gpu=rank.gpu,
        gpu_name=rank.gpu_name,
        uuid=rank.uuid,
        verdict=rank.verdict,
        allocated_bytes=last and last.allocated_bytes,
        reserved_bytes=last and last.reserved_bytes,
        nontorch_bytes=last and last.nontorch_bytes,
        limit_bytes=rank.limit_bytes,
    )


def _about(report: ReportInput) -> str:
    facts = [*(escape(note) for note in report.notes), *_measured(report)]
    facts.append(
        "Allocated and reserved are the counters of PyTorch's allocator; what is outside PyTorch is the driver's "
        "figure for the process minus reserved."
    )
    return section("What was measured", f"<ul>{''.join(f'<li>{fact}</li>' for fact in facts)}</ul>")


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


def _colour(verdict: Verdict) -> str:
    return {LeakState.OK: "calm", LeakState.SUSPECTED: "warn", LeakState.LEAK: "bad"}[verdict.state]


def _step(step: int | None) -> str | None:
    return None if step is None else f"{step:,}"
