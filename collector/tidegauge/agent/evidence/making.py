"""Makes a piece of evidence from a rank's files and the node's own facts. Values in, values out.

The node vouches for the rank's identity, job, readings and verdict; the job supplies code lines, holders and facts
about itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidegauge.agent.evidence.checks import number_of
from tidegauge.agent.evidence.piece import Whose, evidence_of, evidence_of_one
from tidegauge.agent.evidence.readings import Reading, growth_since
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.growth.diff import Comparison, compare
from tidegauge.analysis.snapshots.packed import from_packed
from tidegauge.core import wire
from tidegauge.core.allocator.trace import Trace
from tidegauge.core.evidence import Evidence, SnapshotRef
from tidegauge.core.evidence.cause_input import CauseInput
from tidegauge.core.evidence.owners import CodeRoots
from tidegauge.core.evidence.rank_evidence import MAX_TEXT_CHARS, RankEvidence
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.run_dirs import EARLY_SUFFIX, LATE_SUFFIX
from tidegauge.core.snapshot_columns import PackedSnapshot
from tidegauge.core.text import one_line
from tidegauge.core.views import GpuView, RankView

MAX_WIRE_BYTES = 360_000
"""As JSON. The coordinator takes 400,000 characters; ordinary evidence has 20 to 100 KB."""
_FEW_FRAMES = 12
_WHICH = {EARLY_SUFFIX: "first", LATE_SUFFIX: "second"}


class NodeFacts(NamedTuple):
    """The node's own facts about a rank at the end of a window."""

    view: RankView
    hostname: str
    readings: Sequence[Reading]
    """Oldest first."""
    now_unix_s: float
    other_processes_bytes: int | None = None
    """What other processes hold on its GPU, by NVML; ``None``: not known."""
    other_jobs_bytes: int | None = None
    """Of that, what other jobs hold that are watched."""


def other_jobs_bytes(of: RankView, gpu: GpuView, ranks: Iterable[RankView]) -> int:
    """What ranks of other jobs hold on ``gpu``, with their child processes; sizes that NVML does not give are none."""
    on_it = gpu.process_bytes or {}
    others = (one for one in ranks if one.alive and one.process.pid in on_it and job_of(one) != job_of(of))
    return sum((on_it[one.process.pid] or 0) + (one.children_bytes or 0) for one in others)


class ReadSnapshot(NamedTuple):
    """A decoded snapshot."""

    trace: Trace | None
    """Of the device in question; ``None`` where the snapshot has nothing of it."""
    step: int | None
    at_unix_s: float | None


def read_trace(packed: PackedSnapshot, device: int | None) -> ReadSnapshot:
    """Decode the trace of ``device``, or of the one that holds most where it is ``None``. Raises ``BadTraceError``."""
    traces = from_packed(packed).traces
    if device is None:
        device = max(traces, key=lambda one: _held_bytes(traces[one]), default=None)
    trace = None if device is None else traces.get(device)
    step = number_of(packed, "step")
    return ReadSnapshot(trace, None if step is None else int(step), number_of(packed, "unix_s"))


def evidence_of_window(
    found: RankEvidence,
    node: NodeFacts,
    read: Mapping[str, ReadSnapshot],
    *,
    snapshots: Sequence[SnapshotRef] = (),
    problems: Sequence[str] = (),
) -> Evidence:
    """Make evidence from a window; ``read`` are its snapshots by suffix, as far as available."""
    said = [*filter(None, [found.problem]), *problems]
    early, late = (_trace_of(suffix, step, read, said) for suffix, step in _steps(found).items())
    comparison = _compared(early, late, said, found.roots) if early is not None and late is not None else None
    view, onset_step = node.view, node.view.verdict.onset_step
    evidence = evidence_of(
        _whose(node),
        found,
        comparison,
        beside=CauseInput(
            verdict=view.verdict,
            readings=growth_since(node.readings, found.began_step if onset_step is None else onset_step),
            gpu_children=view.gpu_children,
            children_bytes=view.children_bytes,
            data_workers=view.data_workers,
            allocated_bytes=view.allocated_bytes,
        ),
        early_step=found.early_step,
        late_step=found.late_step,
        at_unix_s=min(found.ended_unix_s, node.now_unix_s),
        snapshots=snapshots,
        problems=said,
    )
    return _fitting(evidence)


def evidence_of_snapshot(
    evidence_id: str,
    node: NodeFacts,
    read: ReadSnapshot,
    *,
    at_unix_s: float,
    snapshots: Sequence[SnapshotRef] = (),
    problems: Sequence[str] = (),
) -> Evidence:
    """Make evidence from one requested snapshot: the memory live at that time, and nothing about growth."""
    view, said = node.view, list(problems)
    alone = None if read.trace is None else _compared(read.trace, read.trace, said)
    step = view.step if read.step is None else read.step
    evidence = evidence_of_one(
        _whose(node), evidence_id, alone, step=step, at_unix_s=at_unix_s, snapshots=snapshots, problems=said
    )  # fmt: skip
    return _fitting(evidence)


def job_of(view: RankView) -> JobKey:
    return JobKey(view.identity.job_id, view.identity.attempt, view.uid)


def _whose(node: NodeFacts) -> Whose:
    view = node.view
    return Whose(job_of(view), int(view.identity.rank), node.hostname, view.process)


def asked_id(hostname: str, process: ProcessId, *, unix_ms: int) -> str:
    """The evidence id of a requested snapshot: the same for the same file."""
    return f"asked-{hostname}-{process.pid}-{process.start_ticks}-{unix_ms}"[:100]


def _steps(found: RankEvidence) -> dict[str, int | None]:
    return {EARLY_SUFFIX: found.early_step, LATE_SUFFIX: found.late_step}


def _trace_of(suffix: str, step: int | None, read: Mapping[str, ReadSnapshot], problems: list[str]) -> Trace | None:
    """The trace of one snapshot, if this window took it."""
    one = read.get(suffix)
    if one is None:
        return None
    if one.step != step:
        problems.append(
            f"the {_WHICH[suffix]} snapshot next to the ring is from step {one.step}, not from this window's {step}"
        )
        return None
    if one.trace is None:
        problems.append(f"the {_WHICH[suffix]} snapshot has no data of this device")
    return one.trace


def _compared(early: Trace, late: Trace, problems: list[str], roots: CodeRoots | None = None) -> Comparison | None:
    try:
        return compare(early, late, roots=roots)
    except BadTraceError as error:
        problems.append(f"the snapshots cannot be compared: {one_line(str(error), MAX_TEXT_CHARS)}")
        return None


def _held_bytes(trace: Trace) -> int:
    return sum(segment.total_bytes for segment in trace.end or ())


def _fitting(evidence: Evidence) -> Evidence:
    """``evidence`` within ``MAX_WIRE_BYTES``, least useful parts left out first."""
    live, growth = evidence.live, evidence.growth
    while live and len(wire.to_json(evidence)) > MAX_WIRE_BYTES:
        live = live[: len(live) // 2]
        evidence = dataclasses.replace(evidence, live=live)
    if len(wire.to_json(evidence)) > MAX_WIRE_BYTES:
        short = tuple(one._replace(stack=one.stack[:_FEW_FRAMES]) for one in growth)
        evidence = dataclasses.replace(evidence, growth=short)
    return evidence
