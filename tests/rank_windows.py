"""What a rank leaves beside its ring after a window, written as the probe writes it, with what a test wants changed."""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidegauge.core import wire
from tidegauge.core.evidence.owners import CodeLine, CodeRoots
from tidegauge.core.evidence.rank_evidence import Holder, HolderKind, HolderSearch, RankEvidence
from tidegauge.core.ids import ProcessId
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_recording import OwnedTensor, RankRecording
from tidegauge.core.run_dirs import (
    ASKED_SUFFIX,
    EARLY_SUFFIX,
    LATE_SUFFIX,
    PROFILE_SNAPSHOT_SUFFIX,
    evidence_name,
    snapshot_name,
)
from tidegauge.core.snapshot_columns import (
    BLOCKS,
    EVENTS,
    FRAMES,
    SEGMENTS,
    STACKS,
    DeviceColumns,
    PackedSnapshot,
    empty,
    pack,
)

MIB = 1 << 20
KEEPS = (CodeLine("/home/ada/train.py", 41, "keep"), CodeLine("/home/ada/train.py", 90, "main"))
MODEL = (CodeLine("/home/ada/model.py", 7, "forward"), CodeLine("/home/ada/train.py", 88, "main"))
EARLY_STEP, LATE_STEP = 104, 134
HOLDER = Holder(HolderKind.CONTAINER, "train.py: history (list, 30 items)", 30 * MIB, 30, "history", container="list")


def packed(
    blocks: Sequence[tuple[int, Sequence[CodeLine]]], *, step: int, device: int = 0, **facts: Any
) -> PackedSnapshot:
    """One segment full of live ``blocks``, each of so many bytes and from such a stack."""
    texts: dict[str, int] = {}
    known: dict[CodeLine, int] = {}
    frames, stacks, stack_frames = empty(FRAMES), empty(STACKS), array("I")
    segments, rows = empty(SEGMENTS), empty(BLOCKS)
    numbers: dict[tuple[CodeLine, ...], int] = {}
    for size_bytes, stack in blocks:
        if tuple(stack) not in numbers:
            numbers[tuple(stack)] = len(numbers)
            stacks["depth"].append(len(stack))
            for line in stack:
                if line not in known:
                    known[line] = len(known)
                    frames["name"].append(texts.setdefault(line.function, len(texts)))
                    frames["filename"].append(texts.setdefault(line.filename, len(texts)))
                    frames["line"].append(line.line)
                stack_frames.append(known[line])
        number = numbers[tuple(stack)]
        for name, value in (
            ("size_bytes", size_bytes), ("requested_bytes", size_bytes), ("state", 1), ("stack", number),
        ):  # fmt: skip
            rows[name].append(value)
    if blocks:
        total = sum(size for size, _ in blocks)
        for name, value in (("address", 1 << 32), ("total_bytes", total), ("flags", 1), ("blocks", len(blocks))):
            segments[name].append(value)
        for name in ("stream", "pool"):
            segments[name].append(0)
    columns = DeviceColumns(device, (0,), ((0, 0),), segments, rows, empty(EVENTS))
    said = {"torch_version": "2.13.0", "step": step, "unix_s": 1_700_000_000.5 + step, **facts}
    return PackedSnapshot(tuple(texts), frames, stacks, stack_frames, [columns], {}, said)


def early() -> PackedSnapshot:
    return packed([(64 * MIB, MODEL)] + [(MIB, KEEPS)] * 10, step=EARLY_STEP)


def late() -> PackedSnapshot:
    return packed([(64 * MIB, MODEL)] + [(MIB, KEEPS)] * 40, step=LATE_STEP)


def window(process: ProcessId, **changes: Any) -> RankEvidence:
    """A MiB a step is kept in a list, over thirty steps."""
    whole = RankEvidence(
        evidence_id="auto-7",
        reason="suspected",
        device=0,
        began_unix_s=1_700_000_900.0,
        ended_unix_s=1_700_000_960.0,
        began_step=100,
        early_step=EARLY_STEP,
        late_step=LATE_STEP,
        early_file=snapshot_name(process, EARLY_SUFFIX),
        late_file=snapshot_name(process, LATE_SUFFIX),
        longest_stall_s=0.02,
        search=HolderSearch((HOLDER,), 30 * MIB, 30 * MIB, 1000, 0.1, 0.01),
    )
    return replace(whole, **changes)


def recording(process: ProcessId, **changes: Any) -> RankRecording:
    """Two steps of a model of one layer."""
    whole = RankRecording(
        recording_id="profile-7",
        reason="somebody asked for it",
        device=0,
        began_step=100,
        ended_step=102,
        snapshot_file=snapshot_name(process, PROFILE_SNAPSHOT_SUFFIX),
        boundaries_us=(1_700_000_900_000_000, 1_700_000_901_000_000, 1_700_000_902_000_000),
        owned=(
            OwnedTensor(1 << 32, 64 * MIB, Category.PARAMETERS, "head.weight"),
            OwnedTensor(3 << 32, 64 * MIB, Category.GRADIENTS, "head.weight"),
        ),
        longest_stall_s=0.02,
        roots=CodeRoots(("/opt/venv/lib/",), ("/home/ada/train/",)),
    )
    return replace(whole, **changes)


def compressed(snapshot: PackedSnapshot) -> bytes:
    return zlib.compress(pack(snapshot))


def put(folder: Path, name: str, content: bytes) -> Path:
    """Under its name in one step, as the probe does."""
    draft = folder / f".{name}.draft"
    draft.write_bytes(content)
    draft.chmod(0o600)
    os.replace(draft, folder / name)
    return folder / name


def leave_window(folder: Path, process: ProcessId, said: RankEvidence | bytes | None = None, **files: bytes) -> None:
    """All files of a window; ``early`` and ``late`` in ``files`` stand in for the snapshots."""
    put(folder, snapshot_name(process, EARLY_SUFFIX), files.get("early", compressed(early())))
    put(folder, snapshot_name(process, LATE_SUFFIX), files.get("late", compressed(late())))
    said = window(process) if said is None else said
    put(folder, evidence_name(process), said if isinstance(said, bytes) else wire.to_json(said))


def leave_snapshot(folder: Path, process: ProcessId, content: bytes | None = None) -> Path:
    """What somebody asked for."""
    return put(folder, snapshot_name(process, ASKED_SUFFIX), compressed(late()) if content is None else content)
