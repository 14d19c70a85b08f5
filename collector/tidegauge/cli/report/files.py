"""The content of a report from files, without a service: snapshots, step series, a rank's evidence file.

``tried_settings`` adds what other allocator settings would have done with a snapshot.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidegauge.agent.evidence.piece import Whose, evidence_of
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.compiling import prepare_model
from tidegauge.analysis.growth.diff import compare
from tidegauge.analysis.profile.profile import profile_of_recording
from tidegauge.analysis.profile.recording import NamedRecording, recording_of
from tidegauge.analysis.snapshots.reading import Snapshot, read_snapshot
from tidegauge.analysis.traces.near_peak import MAX_PROFILED_EVENTS, near_peak
from tidegauge.analysis.traces.reading import with_beginning
from tidegauge.analysis.whatif.results import WhatIf, titled
from tidegauge.analysis.whatif.search import whatif
from tidegauge.analysis.whatif.words import export_line, findings
from tidegauge.cli.errors import UsageError, bad_file
from tidegauge.cli.offline.detect import judge_series
from tidegauge.cli.offline.step_series import BadSeriesError, read_step_series
from tidegauge.cli.output import progress
from tidegauge.cli.profile.advising import advise
from tidegauge.core.allocator.trace import Trace
from tidegauge.core.bounded import bounded
from tidegauge.core.evidence import Evidence
from tidegauge.core.evidence.cause_input import CauseInput
from tidegauge.core.evidence.rank_evidence import RankEvidence
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.snapshot_columns import LARGEST
from tidegauge.core.text import one_line
from tidegauge.core.verdicts import OK, Verdict
from tidegauge.core.wire import from_wire

if TYPE_CHECKING:
    from tidegauge_exporter.reports.report_content import RankCurve, ReportContent, WhatIfTable

MAX_SNAPSHOTS = 2
MAX_EVIDENCE_BYTES = 16 << 20
MAX_POINTS = 20_000
"""Maximum number of points of a step series on the page, evenly spaced; the detector reads every row."""
_HEAD_BYTES = 4096
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
    other_devices: tuple[int, ...] = ()
    """That the file has memory of as well."""


class Given(NamedTuple):
    """Files by kind."""

    snapshots: tuple[RankSnapshot, ...] = ()
    """The snapshots, the earlier one first."""
    series: tuple[Path, ...] = ()
    found: RankEvidence | None = None


def content_of_files(files: Sequence[Path], args: argparse.Namespace, *, now_unix_s: float) -> ReportContent:
    """The content of the report. Raises ``CommandError`` for a file of another kind."""
    from tidegauge_exporter.reports.report_content import ReportContent

    given = sort_files(files, device=args.device)
    curves = tuple(_curve(rank, path, args.capacity_bytes) for rank, path in enumerate(given.series))
    curves = tuple(sorted(curves, key=lambda curve: -curve.verdict.state.level))
    late = given.snapshots[-1] if given.snapshots else None
    recording, no_profile = (None, None) if late is None or len(given.snapshots) > 1 else profiled(late)
    tried, why_not = (None, None) if late is None or args.no_whatif else tried_settings(late)
    return ReportContent(
        made_unix_s=now_unix_s,
        title=f"GPU memory: {', '.join(path.name for path in files)}",
        subject=(
            ("Files", ", ".join(path.name for path in files)),
            ("Device", str(late.trace.device) if late is not None and late.other_devices else None),
        ),
        ranks=curves,
        by_step=True,
        evidence=evidence_of_files(given, curves[0].verdict if curves else OK),
        early=given.snapshots[0].trace if len(given.snapshots) == MAX_SNAPSHOTS else None,
        late=None if late is None else late.trace,
        whatif=tried,
        profile=None if recording is None else advised_profile(recording),
        recording=recording,
        absent=tuple(filter(None, (no_profile, why_not, *devices_told(given.snapshots, args.device), *_lacks(given)))),
    )


def sort_files(files: Sequence[Path], *, device: int | None) -> Given:
    """The files by kind, which their content tells. Raises ``CommandError``."""
    snapshots: list[RankSnapshot] = []
    series: list[Path] = []
    found: RankEvidence | None = None
    for path in files:
        head = _head(path)
        if head.lstrip()[:1] == b"{":
            found = _read_found(path)
        elif b"step" in head.split(b"\n", 1)[0] and b"," in head:
            series.append(path)
        else:
            try:
                snapshots.append(read_rank_snapshot(str(path), device))
            except BadTraceError as error:
                raise bad_file(path, error) from error
    if len(snapshots) > MAX_SNAPSHOTS:
        raise UsageError(f"{len(snapshots)} snapshots given; a report compares two, an early and a late one")
    ordered = in_order(snapshots) if len(snapshots) == MAX_SNAPSHOTS else tuple(snapshots)
    return Given(of_one_device(ordered), tuple(series), found)


def of_one_device(snapshots: tuple[RankSnapshot, ...]) -> tuple[RankSnapshot, ...]:
    """The earlier one of two is of the later one's device, if it has that. Raises ``BadTraceError``."""
    if len(snapshots) != MAX_SNAPSHOTS:
        return snapshots
    early, late = snapshots
    if late.trace.device not in early.other_devices:
        return early, late
    return read_rank_snapshot(early.where, late.trace.device), late


def devices_told(snapshots: Sequence[RankSnapshot], asked: int | None) -> list[str]:
    """Which device the report is of, and why, where there was a choice."""
    several = [one for one in snapshots if one.other_devices]
    if not several:
        return []
    last = several[-1]
    chosen, s = last.trace.device, "s" if len(last.other_devices) > 1 else ""
    others = f"device{s} {', '.join(map(str, last.other_devices))}"
    why = "as asked for" if asked is not None else "which holds most"
    return [f"The report is of device {chosen}, {why}; {last.where} has memory of {others} as well (`--device`)."]


def evidence_of_files(given: Given, verdict: Verdict) -> Evidence | None:
    """The evidence of two snapshots and an evidence file; ``None`` without either."""
    comparison = None
    if len(given.snapshots) == MAX_SNAPSHOTS:
        comparison = compare(given.snapshots[0].trace, given.snapshots[1].trace)
    found = given.found
    if comparison is None and found is None:
        return None
    late = given.snapshots[-1] if given.snapshots else None
    early_step, late_step = _steps(given)
    return evidence_of(
        Whose(JobKey("files", 0, 0), (late.rank if late is not None else None) or 0, "", ProcessId(0, 0)),
        found,
        comparison,
        beside=CauseInput(verdict=verdict),
        early_step=early_step,
        late_step=late_step,
        at_unix_s=(late.at_unix_s if late is not None else None) or 0.0,
        problems=() if found is None or found.problem is None else (found.problem,),
        most_growths=None,
    )


def _steps(given: Given) -> tuple[int | None, int | None]:
    """The first and last step of the window."""
    if len(given.snapshots) == MAX_SNAPSHOTS:
        return given.snapshots[0].step, given.snapshots[1].step
    return (None, None) if given.found is None else (given.found.early_step, given.found.late_step)


def _lacks(given: Given) -> list[str]:
    """Sentences on missing files."""
    lacks = []
    if len(given.snapshots) == 1:
        lacks.append("One snapshot shows live memory. Add an earlier one of the same rank to see what grows.")
    if given.snapshots and all(one.rank is None for one in given.snapshots):
        lacks.append("The snapshots do not contain their rank; the report calls it rank 0.")
    ranks = [one.rank for one in given.snapshots if one.rank is not None]
    if len(set(ranks)) > 1:
        lacks.append(
            f"The snapshots are from ranks {ranks[0]} and {ranks[1]}: growth here is what rank {ranks[1]} has more."
        )
    if given.snapshots and given.found is None:
        lacks.append(
            "What holds the tensors is unknown: only the running process can tell (`tidegauge snapshot --evidence`)."
        )
    if not given.series:
        lacks.append("No step series given: memory over time and the trend are not shown.")
    return lacks


def _curve(rank: int, path: Path, capacity_bytes: int | None) -> RankCurve:
    """A step series as a rank's curve; ``rank`` is the number of the file, because a series does not have a rank."""
    from tidegauge_exporter.reports.report_content import RankCurve

    try:
        rows = list(read_step_series(path))
        verdict = judge_series(path.name, iter(rows), capacity_bytes=capacity_bytes).verdict
    except BadSeriesError as error:
        raise UsageError(str(error)) from error
    every = -(-len(rows) // MAX_POINTS)
    points = tuple(
        MemoryPoint(row.time_s, row.step, row.allocated_bytes, row.reserved_bytes, row.nontorch_bytes)
        for row in rows[::every]
    )
    return RankCurve(rank, path.name, points, verdict, capacity_bytes, concerned=verdict.state.level > 0)


def _head(path: Path) -> bytes:
    """The first bytes of a file, decompressed if it is gzip."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if not head.startswith(b"\x1f\x8b"):
            return head
        with gzip.open(path) as unzipped:
            return unzipped.read(_HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except EOFError as error:
        raise UsageError(f"{path}: file is truncated") from error


def _read_found(path: Path) -> RankEvidence:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_EVIDENCE_BYTES + 1)
        if len(content) > MAX_EVIDENCE_BYTES:
            raise ValueError("too large")
        return bounded(from_wire(RankEvidence, json.loads(content)))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise bad_file(path, ValueError(f"not a valid evidence file (.evidence.json): {error}")) from error


class _OutOfTimeError(Exception):
    """A what-if exceeds its time limit."""


def read_rank_snapshot(where: str, device: int | None) -> RankSnapshot:
    """The snapshot of ``device``, else of the one with most memory. Raises ``BadTraceError`` that names the file."""
    snapshot = read_snapshot(where)
    trace = _chosen_trace(snapshot, device, where)
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
    others = (one for one, held in snapshot.traces.items() if one != trace.device and (held.end or len(held)))
    return RankSnapshot(known, where, step, _number(snapshot, "unix_s"), rank, tuple(sorted(others)))


def _chosen_trace(snapshot: Snapshot, device: int | None, where: str) -> Trace:
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


def profiled(snapshot: RankSnapshot) -> tuple[NamedRecording | None, str | None]:
    """What its history holds at the peak, or nothing without a history; and a sentence about what is missing."""
    events = len(snapshot.trace)
    if not events:
        return None, None
    prepare_model(min(events, MAX_PROFILED_EVENTS))
    try:
        part = near_peak(snapshot.trace, MAX_PROFILED_EVENTS)
        recording = recording_of(part.trace)
    except ValueError as error:
        return None, f"What fills the GPU at the peak cannot be told of this history: {one_line(str(error), 300)}."
    if len(part.trace) == events:
        return recording, None
    last = part.first + len(part.trace) - 1
    return recording, f"The peak is that of events {part.first:,} to {last:,} of {events:,}, counted from the first."


def advised_profile(recording: NamedRecording) -> StepProfile:
    """With what would help; settings of the allocator are a section of their own."""
    return replace(profile_of_recording(recording), advice=advise(recording, with_settings=False))


def tried_settings(snapshot: RankSnapshot) -> tuple[WhatIfTable | None, str | None]:
    """Other allocator settings tried on the history, or a sentence why not."""
    if not len(snapshot.trace):
        return None, f"{snapshot.where} has no history: no memory curve, and other allocator settings cannot be tried."
    ends_s = time.monotonic() + MAX_WHATIF_S
    prepare_model(0)
    try:
        with progress("report") as say:

            def tell(sentence: str) -> None:
                if time.monotonic() > ends_s:
                    raise _OutOfTimeError
                say(sentence)

            return _whatif_table(whatif(with_beginning(snapshot.trace), on_progress=tell)), None
    except _OutOfTimeError:
        return None, (
            f"Trying other allocator settings took more than {MAX_WHATIF_S:.0f} s and was stopped: run "
            f"`tidegauge whatif {snapshot.where}`."
        )
    except ValueError as error:
        return None, f"Other allocator settings cannot be tried on this history: {one_line(str(error), 300)}."


def _whatif_table(result: WhatIf) -> WhatIfTable:
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
