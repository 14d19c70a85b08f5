"""Tidegauge's own form of a snapshot, read and written: nothing is lost, and nothing in it is believed."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.snapshots import reading as snapshots
from tidegauge.analysis.snapshots.packed import from_packed
from tidegauge.analysis.traces.reading import with_beginning
from tidegauge.analysis.traces.replays import replay_trace
from tidegauge.core.allocator.trace import BlockState
from tidegauge.core.snapshot_columns import (
    BLOCKS,
    EVENTS,
    FRAMES,
    SEGMENTS,
    STACKS,
    DeviceColumns,
    PackedSnapshot,
    SnapshotFormatError,
    empty,
    pack,
    unpack,
)
from trace_files import to_packed

FOLDER = Path(__file__).parents[2] / "data" / "allocator" / "snapshots"
OUT_OF_ORDER = "shrunk_ring"
READABLE = sorted({path.name.partition(".")[0] for path in FOLDER.glob("*.pickle.gz")} - {OUT_OF_ORDER})
MIB = 1 << 20


def device(
    *, segments: Sequence[tuple[int, ...]], blocks: Sequence[tuple[int, ...]], **events: list[int]
) -> DeviceColumns:
    """Columns of device 0; streams 7 and 5 in an order that is not the allocator's."""
    tables = {"segments": (SEGMENTS, segments), "blocks": (BLOCKS, blocks)}
    columns = {name: empty(table) for name, (table, _) in tables.items()}
    for name, (table, rows) in tables.items():
        for row in rows:
            for (column, _), value in zip(table, row, strict=True):
                columns[name][column].append(value)
    recorded = empty(EVENTS)
    for name, values in events.items():
        recorded[name] = array(recorded[name].typecode, values)
    return DeviceColumns(0, (7, 5), ((0, 0),), columns["segments"], columns["blocks"], recorded)


def packed(one: DeviceColumns, **facts: object) -> PackedSnapshot:
    frames, stacks = empty(FRAMES), empty(STACKS)
    for column, values in (("name", [0, 0]), ("filename", [1, 1]), ("line", [3, 4])):
        frames[column].extend(values)
    stacks["depth"].append(2)
    return PackedSnapshot(("step", "train.py"), frames, stacks, array("I", [1, 0]), [one], {}, facts)


ONE_SEGMENT = [(4096, 2 * MIB, 0, 0, 1, 2)]
TWO_BLOCKS = [(MIB, 1_000_000, 1, 0), (MIB, 55, 0, 0)]
EVENT = {"action": [0], "address": [4096], "size_bytes": [1_000_000], "stream": [1], "time_us": [5]}


def test_columns_become_a_trace() -> None:
    snapshot = from_packed(packed(device(segments=ONE_SEGMENT, blocks=TWO_BLOCKS, **EVENT), step=12))
    trace = snapshot.traces[0]
    assert trace.end is not None
    live, free = trace.end[0].blocks
    assert (live.address, live.size_bytes, live.requested_bytes, live.stack) == (4096, MIB, 1_000_000, 0)
    assert (free.address, free.state, free.requested_bytes, free.stack) == (4096 + MIB, BlockState.INACTIVE, 0, None)
    assert [(frame.filename, frame.line) for frame in trace.stacks[0]] == [("train.py", 4), ("train.py", 3)]
    assert snapshot.facts["step"] == 12


def test_metadata_of_events_is_kept_and_makes_a_file_of_version_2() -> None:
    with_metadata = packed(device(segments=[], blocks=[], **EVENT, metadata=[1]))
    content = pack(with_metadata)
    assert content.startswith(b"TGSNAP\x02\n")
    trace = from_packed(unpack(content)).traces[0]
    assert (list(trace.metadata), trace.words) == ([0], ("train.py",))


def test_a_snapshot_without_metadata_is_written_as_earlier_versions_read_it() -> None:
    content = pack(packed(device(segments=[], blocks=[], **EVENT)))
    assert content.startswith(b"TGSNAP\x01\n")
    assert b'"absent":["pool","stack"]' in content
    assert not from_packed(unpack(content)).traces[0].metadata


def test_a_word_that_is_not_there_is_refused() -> None:
    with pytest.raises(SnapshotFormatError, match="a word of device 0 is not there"):
        unpack(pack(packed(device(segments=[], blocks=[], **EVENT, metadata=[2]))))


def test_streams_come_in_the_allocators_order() -> None:
    """It is part of the best fit, and the probe writes them as they come."""
    trace = from_packed(packed(device(segments=ONE_SEGMENT, blocks=TWO_BLOCKS, **EVENT))).traces[0]
    assert trace.streams == (5, 7)
    assert trace.streams[trace.stream[0]] == 5
    assert trace.end is not None
    assert trace.end[0].stream == 7


@pytest.mark.parametrize("name", READABLE)
def test_a_snapshot_of_torchs_comes_back_as_it_was(name: str) -> None:
    original = snapshots.read_snapshot(FOLDER / f"{name}.pickle.gz")
    again = from_packed(unpack(pack(to_packed(original))))
    assert again.traces == original.traces
    assert again.settings == original.settings


def test_packed_snapshot_replays_like_the_original() -> None:
    original = snapshots.read_snapshot(FOLDER / "stacks.pickle.gz").traces[0]
    again = from_packed(to_packed(snapshots.read_snapshot(FOLDER / "stacks.pickle.gz"))).traces[0]
    peaks = [
        replay_trace(with_beginning(trace), alloc_conf=None, cap_bytes=None, version_is_given=False).recorded
        for trace in (original, again)
    ]
    assert peaks[0] == peaks[1]


def test_facts_are_added_and_what_was_left_out_is_kept() -> None:
    original = snapshots.read_snapshot(FOLDER / "stacks.pickle.gz")
    trace = original.traces[0].__class__(**{**vars(original.traces[0]), "skipped": {"events of a kind": 3}})
    again = from_packed(to_packed(original._replace(traces={0: trace}), {"step": 4}))
    assert again.traces[0].skipped == {"events of a kind": 3}
    assert again.facts["step"] == 4


def test_a_setting_that_json_has_no_word_for_does_no_harm() -> None:
    odd: dict[str, object] = {"a": b"bytes", "b": (1, "x"), "c": {"d": None}}
    original = snapshots.read_snapshot(FOLDER / "stacks.pickle.gz")._replace(settings=odd)
    assert to_packed(original).settings == {"a": None, "b": [1, "x"], "c": {"d": None}}
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(BadTraceError, match="nested more than 8 deep"):
        to_packed(original._replace(settings={"a": endless}))


Change = Callable[[DeviceColumns], object]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one.blocks["size_bytes"].__setitem__(0, MIB + 1), "its blocks have 2,097,153 bytes"),
        (lambda one: one.blocks["size_bytes"].__setitem__(0, 0), "has no size"),
        (lambda one: one.segments["address"].__setitem__(0, (1 << 63) - 5), "beyond all addresses"),
        (lambda one: one.events["time_us"].append(-1_000_000), "its clock is 1.000 s before"),
    ],
)
def test_columns_that_make_no_sense_are_refused_with_the_place(change: Change, said: str) -> None:
    one = device(segments=ONE_SEGMENT, blocks=TWO_BLOCKS, **EVENT)
    change(one)
    with pytest.raises(BadTraceError, match=said):
        from_packed(packed(one))


def test_segments_that_overlap_are_refused() -> None:
    both = [*ONE_SEGMENT, (4096 + MIB, 2 * MIB, 0, 0, 1, 2)]
    with pytest.raises(BadTraceError, match="overlaps"):
        from_packed(packed(device(segments=both, blocks=TWO_BLOCKS * 2)))


@pytest.mark.parametrize("wrong", [3, "x", {"0": 3}, {"0": {"kind": -1}}, {"0": {"kind": True}}])
def test_facts_of_a_wrong_kind_are_refused(wrong: object) -> None:
    with pytest.raises(BadTraceError, match="'skipped' should be counts"):
        from_packed(packed(device(segments=ONE_SEGMENT, blocks=TWO_BLOCKS), skipped=wrong))
    with pytest.raises(BadTraceError, match="'torch_by_keys' should be a text"):
        from_packed(packed(device(segments=ONE_SEGMENT, blocks=TWO_BLOCKS), torch_by_keys=3))


@given(st.data())
def test_any_damage_is_an_error_of_ours_or_another_snapshot(data: Any) -> None:
    whole = bytearray(pack(packed(device(segments=ONE_SEGMENT, blocks=TWO_BLOCKS, **EVENT))))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadTraceError):
        snapshots.read_bytes(bytes(whole))
