"""The content of a report from files, without a service: snapshots, step series, a rank's evidence file."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidegauge.agent.evidence.checks import bounded
from tidegauge.agent.evidence.piece import Whose, evidence_of
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.growth.diff import compare
from tidegauge.cli.errors import USAGE, CommandError, bad_file
from tidegauge.cli.offline.detect import judge_series
from tidegauge.cli.offline.step_series import BadSeriesError, read_step_series
from tidegauge.cli.report.snapshots import RankSnapshot, in_order, read_rank_snapshot, tried_settings
from tidegauge.core.evidence import Evidence
from tidegauge.core.evidence.cause_input import CauseInput
from tidegauge.core.evidence.rank_evidence import RankEvidence
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.verdicts import OK, Verdict
from tidegauge.core.wire import from_wire

if TYPE_CHECKING:
    from tidegauge_exporter.reports.report_content import RankCurve, ReportContent

MAX_SNAPSHOTS = 2
MAX_EVIDENCE_BYTES = 16 << 20
MAX_POINTS = 20_000
"""Maximum number of points of a step series on the page, evenly spaced; the detector reads every row."""
_HEAD_BYTES = 4096


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
    whatif, why_not = (None, None) if late is None or args.no_whatif else tried_settings(late)
    return ReportContent(
        made_unix_s=now_unix_s,
        title=f"GPU memory: {', '.join(path.name for path in files)}",
        subject=(("Files", ", ".join(path.name for path in files)),),
        ranks=curves,
        by_step=True,
        evidence=evidence_of_files(given, curves[0].verdict if curves else OK),
        early=given.snapshots[0].trace if len(given.snapshots) == MAX_SNAPSHOTS else None,
        late=None if late is None else late.trace,
        whatif=whatif,
        absent=tuple(filter(None, (why_not, *_lacks(given)))),
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
        raise CommandError(
            f"{len(snapshots)} snapshots given; a report compares two, an early and a late one", exit_code=USAGE
        )
    ordered = in_order(snapshots) if len(snapshots) == MAX_SNAPSHOTS else tuple(snapshots)
    return Given(ordered, tuple(series), found)


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
        raise CommandError(str(error), exit_code=USAGE) from error
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
        raise CommandError(f"{path}: cannot be read: {error.strerror or error}", exit_code=USAGE) from error
    except EOFError as error:
        raise CommandError(f"{path}: file is truncated", exit_code=USAGE) from error


def _read_found(path: Path) -> RankEvidence:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_EVIDENCE_BYTES + 1)
        if len(content) > MAX_EVIDENCE_BYTES:
            raise ValueError("too large")
        return bounded(from_wire(RankEvidence, json.loads(content)))
    except OSError as error:
        raise CommandError(f"{path}: cannot be read: {error.strerror or error}", exit_code=USAGE) from error
    except (ValueError, RecursionError) as error:
        raise bad_file(path, ValueError(f"not a valid evidence file (.evidence.json): {error}")) from error
