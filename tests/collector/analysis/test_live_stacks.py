"""Names in stacks are the job's: none may keep whoever reads them busy."""

from __future__ import annotations

import pytest

from tidegauge.analysis.snapshots.live_stacks import code_lines
from tidegauge.analysis.snapshots.packed import from_packed
from tidegauge.analysis.snapshots.reading import Snapshot
from tidegauge.core.allocator.trace import Frame
from tidegauge.core.snapshot_columns import MAX_DEVICES, MAX_TEXT_CHARS, SnapshotFormatError, pack, unpack
from trace_files import to_packed


def test_a_name_that_never_ends_is_cut_when_it_is_read() -> None:
    packed = to_packed(Snapshot({}, ((Frame("__resume_at_" * 50_000, "/" * 1_000_000, 1),),), {}))
    (stack,) = from_packed(unpack(pack(packed))).stacks
    assert [len(part) for part in stack[0][:2]] == [MAX_TEXT_CHARS, MAX_TEXT_CHARS]


def test_a_name_that_torch_generated_loses_its_number_and_a_long_one_is_left_alone() -> None:
    long = "__resume_at_" * 100
    named = [(Frame("torch_dynamo_resume_in_step_at_41", "train.py", 3),), (Frame(long, "train.py", 3),)]
    assert [lines[0].function for lines in code_lines(named)] == ["torch_dynamo_resume_in_step_at_41", long]


def test_devices_without_end_are_refused() -> None:
    one = to_packed(Snapshot({}, (), {}))
    empty = {
        "device": 0, "streams": [], "pools": [], "segments": 0, "blocks": 0, "events": 0, "absent": [],
    }  # fmt: skip
    content = pack(one)
    many = ",".join(str({**empty, "device": number}).replace("'", '"') for number in range(MAX_DEVICES + 1))
    start = content.index(b'"devices":[') + len(b'"devices":[')
    head = content[12:start] + many.encode() + content[start:]
    hostile = content[:8] + (len(head)).to_bytes(4, "little") + head
    with pytest.raises(SnapshotFormatError, match="devices"):
        unpack(hostile)
