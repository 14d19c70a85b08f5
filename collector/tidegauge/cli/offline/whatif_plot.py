"""The file of ``tidegauge whatif --plot``: today's setting and the two best, drawn by the exporter."""

from __future__ import annotations

from pathlib import Path

from tidegauge.analysis.whatif.results import Trial, WhatIf, titled
from tidegauge.analysis.whatif.words import findings
from tidegauge.cli.errors import CommandError
from tidegauge.cli.output import write_own
from tidegauge.core.allocator.trace import Trace


def write_plot(path: Path, result: WhatIf, trace: Trace) -> None:
    """Raises ``CommandError`` where the file cannot be written."""
    from tidegauge_exporter.reports.whatif_plot import Moments, PlottedCourse, plot_page, plot_svg

    named = [("today", result.today), *zip(("best", "next"), others(result))]
    courses = [
        PlottedCourse(label, titled(trial.alloc_conf), trial.replay.curve)
        for label, trial in named
        if trial.replay.curve is not None
    ]
    moments = Moments(trace.marks.get("step", ()), trace.time_us)
    heading = "Reserved and allocated memory: current allocator settings and the best ones"
    if path.suffix.lower() == ".svg":
        text = plot_svg(courses, moments=moments, limit_bytes=result.limits.lowest_bytes, heading=heading)
    else:
        text = plot_page(
            courses,
            moments=moments,
            limit_bytes=result.limits.lowest_bytes,
            heading=heading,
            sentences=findings(result),
        )
    try:
        write_own(path, text.encode(errors="replace"))
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error


def others(result: WhatIf) -> list[Trial]:
    """The recommended setting and the next best, without today's."""
    first = [trial for trial in (result.recommended,) if not trial.today]
    return [*first, *(trial for trial in result.trials if not trial.today and trial is not result.recommended)][:2]
