"""The answer of ``tidegauge whatif``: a table, charts, sentences and the line to use; JSON; a plot in a file."""

from __future__ import annotations

import sys
from pathlib import Path

from tidegauge.analysis.whatif.results import Trial, WhatIf, best_first, titled
from tidegauge.analysis.whatif.words import calls, export_line, findings
from tidegauge.cli.memory_chart import print_chart
from tidegauge.cli.offline.replay_answer import replay_json
from tidegauge.cli.output import print_table, print_wrapped, write_output
from tidegauge.core.allocator.trace import Trace
from tidegauge.core.units import format_bytes

MAX_ROWS = 12
"""Rows of the table; ``--json`` has all settings."""


def as_json(trial: Trial, result: WhatIf) -> dict[str, object]:
    """The keys of ``replay --json`` and further ones; ``address_mismatches`` is null for settings not recorded."""
    figures = replay_json(trial.replay)
    del figures["failed"]  # up to a hundred for each of thirty settings: `tidegauge replay` has them
    return {
        "alloc_conf": trial.alloc_conf,
        "today": trial.today,
        "recommended": _is_advised(trial, result),
        **figures,
        "address_mismatches": trial.replay.address_mismatches if trial.replay is result.recorded else None,
        "failing_request_bytes": trial.failing_request_bytes,
        "largest_free_bytes": trial.largest_free_bytes,
        "needs_bytes": trial.needs_bytes,
        "confidence": trial.confidence.value,
        "doubts": list(trial.doubts),
    }


def _is_advised(trial: Trial, result: WhatIf) -> bool:
    """True if a setting is recommended: not if a request failed, even if it is the best."""
    return trial is result.recommended and not trial.replay.ooms


def print_for_people(result: WhatIf) -> None:
    header = ("setting", "peak reserved", "waste", "retries", "OOMs", "free / requested", "device calls", "confidence")
    shown = _shown(result)
    print_table(header, [_cells(trial, result) for trial in shown], gives_way=header[:4:-1])
    left_out = len(result.trials) - len(shown)
    if left_out:
        print_wrapped("", f"({left_out} more with --json)")
    if sys.stdout.isatty():
        _print_charts(result)
    print()
    for sentence in findings(result):
        print_wrapped("- ", sentence)
    line = export_line(result)
    if line is not None:
        print(f"\nTo use it, put this before the command that starts the job:\n\n    {line}")


def _shown(result: WhatIf) -> list[Trial]:
    """The best settings, and today's in any case."""
    best = result.trials[:MAX_ROWS]
    return list(best) if any(trial.today for trial in best) else best_first([*best[:-1], result.today])


def _cells(trial: Trial, result: WhatIf) -> tuple[str, ...]:
    replay = trial.replay
    marks = [" (today)"] * trial.today + [" <- best"] * _is_advised(trial, result)
    fits = "-"
    if trial.largest_free_bytes is not None and trial.failing_request_bytes is not None:
        fits = f"{format_bytes(trial.largest_free_bytes)} / {format_bytes(trial.failing_request_bytes)}"
    return (
        titled(trial.alloc_conf) + "".join(marks),
        format_bytes(replay.peak_reserved_bytes),
        format_bytes(trial.waste_bytes),
        f"{replay.alloc_retries:,}",
        f"{replay.ooms:,}",
        fits,
        calls(trial, result.steps),
        trial.confidence.value,
    )


def _print_charts(result: WhatIf) -> None:
    """Today's memory over the events, and the recommended setting's, on one scale."""
    trials = [result.today] if result.recommended.today else [result.today, result.recommended]
    highest = max(trial.replay.peak_reserved_bytes for trial in trials)
    for trial in trials:
        curve = trial.replay.curve
        if curve is not None:
            print_chart(titled(trial.alloc_conf), curve.allocated_bytes, curve.reserved_bytes, highest_bytes=highest)


def write_plot(path: Path, result: WhatIf, trace: Trace) -> None:
    """Write the plot of ``--plot``: today's setting and the two best. Raises ``CommandError``."""
    from tidegauge_exporter.reports.whatif_plot import Moments, PlottedCourse, plot_page, plot_svg

    named = [("today", result.today), *zip(("best", "next"), _others(result))]
    courses = [
        PlottedCourse(label, titled(trial.alloc_conf), trial.replay.curve)
        for label, trial in named
        if trial.replay.curve is not None
    ]
    moments = Moments(trace.marks.get("step", ()), trace.time_us)
    limit_bytes = result.limits.lowest_bytes
    heading = "Reserved and allocated memory: current allocator settings and the best ones"
    if path.suffix.lower() == ".svg":
        text = plot_svg(courses, moments=moments, limit_bytes=limit_bytes, heading=heading)
    else:
        sentences = findings(result)
        text = plot_page(courses, moments=moments, limit_bytes=limit_bytes, heading=heading, sentences=sentences)
    write_output(path, text.encode(errors="replace"))


def _others(result: WhatIf) -> list[Trial]:
    """The recommended setting and the next best, without today's."""
    first = [trial for trial in (result.recommended,) if not trial.today]
    return [*first, *(trial for trial in result.trials if not trial.today and trial is not result.recommended)][:2]
