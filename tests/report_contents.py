"""A made-up job for tests of the report with evidence: rank 1 of 8 leaks 12 MiB a step, at a line that is known.

``made_trace`` is what a snapshot's history looks like: a model's forward and backward pass step after step, in blocks
carved from segments; consistent in itself (every free has its allocation, the segments at the end hold what is left).
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

from sample_views import GIB, LEAK, MIB, NOW_S
from scheduler_values import decision, incident, record
from tidegauge.core.allocator.trace import Action, BlockState, Frame, KnownBlock, KnownSegment, Stack, Trace
from tidegauge.core.evidence import CauseFound, Evidence, SnapshotRef, StackGrowth, brief_of
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import Holder, HolderKind, HolderSearch
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents import ChangeKind, IncidentChange
from tidegauge.core.incidents.actions import ActionKind, Outcome
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.verdicts import OK, Severity
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.reports.report_content import RankCurve, ReportContent, TriedSetting, WhatIfTable

LAYERS = 12
LEAK_LINE = CodeLine("/home/ada/llm/train.py", 41, "step")
LEAK_BYTES, PARAMETER_BYTES = 12 * MIB, 16 * MIB
_SEGMENT = 20 * MIB
_TORCH = "/opt/venv/lib/python3.11/site-packages/torch/"
_MAIN = (Frame("main", "/home/ada/llm/train.py", 88), Frame("<module>", "/home/ada/llm/train.py", 95))
_LEAK: Stack = (
    Frame("clone", _TORCH + "_tensor.py", 512),
    Frame("step", LEAK_LINE.filename, LEAK_LINE.line),
    *_MAIN,
)
_HOLDER = Holder(
    HolderKind.CONTAINER,
    "train.py: Trainer.history (list, 412 items) -> Tensor[3,1024,1024] float32",
    held_bytes=29 * LEAK_BYTES,
    tensors=29,
    name="Trainer.history",
    where=CodeLine(LEAK_LINE.filename, 0, "Trainer"),
    container="list",
    items=412,
)


def stacks() -> tuple[Stack, ...]:
    """The leak's, then two of each layer (attention and feed-forward), then one of each layer's parameters."""
    made = [_LEAK]
    for layer in range(LAYERS):
        for part, line in (("attention", 31), ("feed_forward", 54)):
            made.append(
                (
                    Frame("linear", _TORCH + "nn/functional.py", 2290),
                    Frame("forward", _TORCH + "nn/modules/linear.py", 125),
                    Frame("_call_impl", _TORCH + "nn/modules/module.py", 1784),
                    Frame(part, "/home/ada/llm/model.py", line),
                    Frame("forward", "/home/ada/llm/model.py", 70 + layer),
                    Frame("_call_impl", _TORCH + "nn/modules/module.py", 1784),
                    Frame("step", LEAK_LINE.filename, 37),
                    *_MAIN,
                )
            )
    for layer in range(LAYERS):
        built = (Frame("__init__", "/home/ada/llm/model.py", 12 + layer), Frame("build", "/home/ada/llm/model.py", 66))
        made.append((Frame("__init__", _TORCH + "nn/modules/linear.py", 108), *built, *_MAIN))
    return tuple(made)


class _Memory:
    """An allocator of the simplest kind: free blocks by size, else the next piece of the last segment."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, int, int]] = []
        """Action, address, bytes, stack."""
        self.blocks: dict[int, list[tuple[int, int]]] = {}
        """Address and size of what was carved from each segment."""
        self.live: dict[int, int] = {}
        """Stack of each address in use."""
        self._free: dict[int, list[int]] = {}
        self._left = self._next = 0

    def take(self, size: int, stack: int) -> int:
        pool = self._free.setdefault(size, [])
        address = pool.pop() if pool else self._carve(size)
        self.live[address] = stack
        self.events.append((Action.ALLOC, address, size, stack))
        return address

    def give_back(self, address: int, size: int) -> None:
        stack = self.live.pop(address)
        self._free[size].append(address)
        self.events += [(action, address, size, stack) for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)]

    def segments(self) -> tuple[KnownSegment, ...]:
        return tuple(self._segment(base, carved) for base, carved in sorted(self.blocks.items()))

    def _carve(self, size: int) -> int:
        if size > self._left:
            whole = max(_SEGMENT, size)
            base = 0x7F00_0000_0000 + len(self.blocks) * 64 * MIB
            self.events.append((Action.SEGMENT_ALLOC, base, whole, -1))
            self.blocks[base] = []
            self._next, self._left = base, whole
        address, self._next, self._left = self._next, self._next + size, self._left - size
        self.blocks[max(self.blocks)].append((address, size))
        return address

    def _segment(self, base: int, carved: list[tuple[int, int]]) -> KnownSegment:
        blocks = [
            KnownBlock(address, size, size, BlockState.ACTIVE_ALLOCATED, self.live[address])
            if address in self.live
            else KnownBlock(address, size, 0, BlockState.INACTIVE)
            for address, size in carved
        ]
        used, whole = sum(size for _, size in carved), max(_SEGMENT, *(size for _, size in carved))
        if whole > used:
            blocks.append(KnownBlock(base + used, whole - used, 0, BlockState.INACTIVE))
        return KnownSegment(base, whole, 0, is_large=True, is_expandable=False, pool=(0, 0), blocks=tuple(blocks))


def made_trace(*, steps: int = 30, buffers: int = 0) -> Trace:
    """About ``146 * steps`` events; ``buffers`` small blocks live from the beginning to the end."""
    memory = _Memory()
    for layer in range(LAYERS):
        memory.take(PARAMETER_BYTES, 2 * LAYERS + 1 + layer)
    for buffer in range(buffers):
        memory.take(512 * (1 + buffer % 40), 2 * LAYERS + 1 + buffer % LAYERS)
    for step in range(steps):
        held = []
        for stack in range(1, 2 * LAYERS + 1):
            for part in range(2):
                size = (512 << (stack + part) % 12) + 512 * (step % 3)
                held.append((memory.take(size, stack), size))
        memory.take(LEAK_BYTES, 0)
        for address, size in reversed(held):
            memory.give_back(address, size)
    return _trace_of(memory)


def _trace_of(memory: _Memory) -> Trace:
    action, address, size, stack = zip(*memory.events)
    began_us = int(NOW_S * 1e6) - 40 * len(action)
    return Trace(
        action=array("B", action),
        address=array("Q", address),
        size_bytes=array("Q", size),
        stream=array("H", bytes(2 * len(action))),
        time_us=array("q", range(began_us, began_us + 40 * len(action), 40)),
        pool=array("H"),
        stack=array("i", stack),
        stacks=stacks(),
        torch_version="2.11.0",
        complete=False,
        end=memory.segments(),
    )


def code_lines(stack: Stack) -> tuple[CodeLine, ...]:
    return tuple(CodeLine(frame.filename, frame.line, frame.name) for frame in stack)


def evidence(**changes: Any) -> Evidence:
    """Of 30 steps on rank 1: the line, the holder, the cause, and something that grew beside it."""
    whole = Evidence(
        evidence_id="e1",
        job=JobKey("4711", 0, 1001),
        rank=1,
        hostname="node0",
        process=ProcessId(1001, 5_001),
        reason="suspected",
        began_step=400,
        at_unix_s=NOW_S - 60.0,
        early_step=404,
        late_step=434,
        grown_bytes=30 * LEAK_BYTES + 9 * MIB,
        growth=(
            StackGrowth(30 * LEAK_BYTES, 30, code_lines(_LEAK), LEAK_LINE, LEAK_BYTES),
            StackGrowth(9 * MIB, 4, code_lines(stacks()[2]), CodeLine("/home/ada/llm/model.py", 54, "feed_forward")),
        ),
        search=HolderSearch((_HOLDER,), 30 * LEAK_BYTES, 29 * LEAK_BYTES, 184_000, 0.9, 0.02),
        cause=CauseFound(
            EvidenceCause.PYTHON_CONTAINER,
            Confidence.NAMED,
            ("One line allocated 98 % of what grew.", "A list that grows by one item a step holds it."),
            "`Trainer.history` (list, train.py) keeps a tensor of each step: append `loss.item()`, or "
            "`.detach().cpu()`.",
        ),
        snapshots=(
            SnapshotRef(
                "lab/4711/0/rank-1/step-404-1.snap.zst", "node0:/var/lib/tidegauge", 404, NOW_S - 400.0, 81_000
            ),
            SnapshotRef(
                "lab/4711/0/rank-1/step-434-2.snap.zst", "node0:/var/lib/tidegauge", 434, NOW_S - 100.0, 90_000
            ),
        ),
        longest_stall_s=0.021,
    )
    return replace(whole, **changes)


def points(*, leaks: bool, minutes: int = 60) -> tuple[MemoryPoint, ...]:
    """One a minute; the leak begins after a quarter of the time."""
    return tuple(
        MemoryPoint(
            NOW_S - 60.0 * (minutes - minute),
            minute * 10,
            24 * GIB + (minute % 7) * 200 * MIB + (max(minute - minutes // 4, 0) * 700 * MIB if leaks else 0),
            30 * GIB + (max(minute - minutes // 4, 0) * 700 * MIB if leaks else 0),
            900 * MIB,
        )
        for minute in range(1, minutes + 1)
    )


def ranks(count: int = 8) -> tuple[RankCurve, ...]:
    """Rank 1, which leaks, and then the others."""
    return tuple(
        RankCurve(
            rank, f"node{rank // 8}, GPU {rank % 8}", points(leaks=rank == 1), LEAK if rank == 1 else OK,
            80 * GIB, concerned=rank == 1,
        )
        for rank in (1, *(rank for rank in range(count) if rank != 1))
    )  # fmt: skip


def story(**changes: Any) -> Story:
    """Incident 12, with its evidence; the owner was told."""
    about = incident(number=12, onset_step=150, world_size=8, evidence=(brief_of(evidence()),), **changes)
    return Story(
        about,
        history=(
            IncidentChange(ChangeKind.OPENED, NOW_S - 600.0, replace(about, severity=Severity.WARNING, evidence=())),
            IncidentChange(ChangeKind.EVIDENCE, NOW_S - 60.0, about),
        ),
        decisions=(record(decision(ActionKind.NOTIFY, decided_s=NOW_S - 500.0), Outcome.DONE, detail="told in Slack"),),
        memory=points(leaks=True),
    )


def whatif_table() -> WhatIfTable:
    return WhatIfTable(
        (
            TriedSetting("expandable_segments:True", 40 * GIB, GIB, 0, 0, "exact", advised=True),
            TriedSetting("torch's defaults", 48 * GIB, 9 * GIB, 2, 0, "exact", today=True),
        ),
        ("Best: expandable_segments:True. Reserved peaks at 40.0 GiB instead of 48.0 GiB.",),
        "export PYTORCH_ALLOC_CONF=expandable_segments:True",
    )


def content(*, steps: int = 30, buffers: int = 0, **changes: Any) -> ReportContent:
    """A report with all its parts."""
    late = made_trace(steps=steps, buffers=buffers)
    whole = ReportContent(
        made_unix_s=NOW_S,
        title="Memory leak in llm-pretrain (incident 12)",
        subject=(("Incident", "12"), ("Job", "4711"), ("Name", "llm-pretrain"), ("User", "ada"), ("Cluster", "lab")),
        story=story(),
        ranks=ranks(),
        evidence=evidence(),
        early=made_trace(steps=1),
        late=late,
        whatif=whatif_table(),
        absent=("Phases of training are not known to the service.",),
    )
    return replace(whole, **changes)
