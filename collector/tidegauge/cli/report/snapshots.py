"""The snapshots of a report, and what other allocator settings would have done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.snapshots.files import read_snapshot
from tidegauge.analysis.snapshots.reading import Snapshot
from tidegauge.analysis.traces.reading import with_beginning
from tidegauge.analysis.whatif.results import WhatIf, titled
from tidegauge.analysis.whatif.search import whatif
from tidegauge.analysis.whatif.words import export_line, findings
from tidegauge.cli.output import progress
from tidegauge.core.allocator.trace import Trace
from tidegauge.core.snapshot_columns import LARGEST
from tidegauge.core.text import one_line

if TYPE_CHECKING:
    from tidegauge_exporter.reports.report_content import WhatIfTable

MAX_WHATIF_S = 30.0
"""Time limit for all settings together: without numba, a replay of 100,000 events takes seconds."""
MAX_SETTINGS = 12
"""Rows of the table; `tidegauge whatif --json` has all."""


class RankSnapshot(NamedTuple):
    """One device of a snapshot; ``None`` is a value that the snapshot does not have."""

    trace: Trace
    where: str
    """The file or the URL, for people."""
    step: int | None
    at_unix_s: float | None
    rank: int | None


class _OutOfTimeError(Exception):
    """A what-if exceeds its time limit."""


def read_rank_snapshot(where: str, device: int | None) -> RankSnapshot:
    """The snapshot of ``device``, else of the one with most memory. Raises ``BadTraceError`` that names the file."""
    snapshot = read_snapshot(where)
    trace = _chosen(snapshot, device, where)
    step, rank, cap_bytes, total_bytes = (
        None if number is None else int(number)
        for number in (_number(snapshot, name) for name in ("step", "rank", "cap_bytes", "total_bytes"))
    )
    known = replace(
        trace,
        torch_version=_text(snapshot, "torch_version") or trace.torch_version,
        cap_bytes=trace.cap_bytes if cap_bytes is None else cap_bytes,
        total_bytes=trace.total_bytes if total_bytes is None else total_bytes,
    )
    return RankSnapshot(known, where, step, _number(snapshot, "unix_s"), rank)


def _chosen(snapshot: Snapshot, device: int | None, where: str) -> Trace:
    traces = snapshot.traces
    if not traces:
        raise BadTraceError(f"{where}: contains no device memory")
    chosen = device if device is not None else max(traces, key=lambda one: _held_bytes(traces[one]))
    if chosen not in traces:
        raise BadTraceError(f"{where}: has no device {chosen}; devices: {', '.join(map(str, traces))}")
    return traces[chosen]


def _held_bytes(trace: Trace) -> int:
    return sum(segment.total_bytes for segment in trace.end or ())


def in_order(two: Sequence[RankSnapshot]) -> tuple[RankSnapshot, RankSnapshot]:
    """The snapshots, the earlier one first if the files have steps or times; else in the given order."""
    first, second = two
    if first.step is not None and second.step is not None and first.step != second.step:
        return (first, second) if first.step < second.step else (second, first)
    if first.at_unix_s is not None and second.at_unix_s is not None and first.at_unix_s > second.at_unix_s:
        return second, first
    return first, second


def tried_settings(snapshot: RankSnapshot) -> tuple[WhatIfTable | None, str | None]:
    """Other allocator settings tried on the history, or a sentence why not."""
    if not len(snapshot.trace):
        return None, f"{snapshot.where} has no history: no memory curve, and other allocator settings cannot be tried."
    ends_s = time.monotonic() + MAX_WHATIF_S

    try:
        with progress("report") as say:

            def tell(sentence: str) -> None:
                if time.monotonic() > ends_s:
                    raise _OutOfTimeError
                say(sentence)

            return _table(whatif(with_beginning(snapshot.trace), on_progress=tell)), None
    except _OutOfTimeError:
        return None, (
            f"Trying other allocator settings took more than {MAX_WHATIF_S:.0f} s and was stopped: run "
            f"`tidegauge whatif {snapshot.where}`."
        )
    except ValueError as error:
        return None, f"Other allocator settings cannot be tried on this history: {one_line(str(error), 300)}."


def _table(result: WhatIf) -> WhatIfTable:
    from tidegauge_exporter.reports.report_content import TriedSetting, WhatIfTable

    shown = [trial for place, trial in enumerate(result.trials) if place < MAX_SETTINGS or trial.today]
    return WhatIfTable(
        tuple(
            TriedSetting(
                titled(trial.alloc_conf),
                trial.replay.peak_reserved_bytes,
                trial.waste_bytes,
                trial.replay.alloc_retries,
                trial.replay.ooms,
                trial.confidence.value,
                today=trial.today,
                advised=trial is result.recommended and not trial.replay.ooms,
            )
            for trial in shown
        ),
        tuple(findings(result)),
        export_line(result),
    )


def _number(snapshot: Snapshot, name: str) -> float | None:
    value = snapshot.facts.get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < LARGEST else None


def _text(snapshot: Snapshot, name: str) -> str | None:
    value = snapshot.facts.get(name)
    return value if isinstance(value, str) else None
