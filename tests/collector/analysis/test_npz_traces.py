"""The .npz format of recorded traces: what numpy writes is read, nothing else gets in."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.traces.npy_arrays import read_npz
from tidegauge.analysis.traces.npz_traces import read_npz_trace
from tidegauge.core.allocator.trace import Action, Trace
from trace_files import write_npz_trace

ACTIONS = {action.name.lower(): int(action) for action in Action}
META = {"conf": "max_split_size_mb:64", "cap_gib": 0.5, "total": 3 << 30, "actions": ACTIONS, "torch": "2.11.0+cu130"}


def arrays(**changed: Any) -> dict[str, Any]:
    """Two events on two streams, as the recordings have them."""
    whole = {
        "action": np.array([3, 0], np.uint8),
        "addr": np.array([1 << 46, 1 << 46], np.uint64),
        "size": np.array([2 << 20, 700], np.uint64),
        "stream": np.array([0, 934270848], np.uint64),
        "time_us": np.array([10, 20], np.int64),
        "steps": np.array([[0, 15], [1, 20]], np.int64),
        "segs": np.array([[1 << 46, 2 << 20, 1024, 1024, 0, 0, 0]], np.uint64),
        "meta": np.array(json.dumps({**META, "step_cols": ["step", "time_us"]})),
    }
    return {name: value for name, value in {**whole, **changed}.items() if value is not None}


def saved(**content: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **content)
    return file.getvalue()


def test_a_recording_is_read() -> None:
    trace = read_npz_trace(saved(**arrays()))
    assert list(trace.action) == [Action.SEGMENT_ALLOC, Action.ALLOC]
    assert list(trace.size_bytes) == [2 << 20, 700]
    assert trace.streams == (0, 934270848)
    assert list(trace.stream) == [0, 1]
    assert (trace.alloc_conf, trace.torch_version, trace.cap_bytes) == ("max_split_size_mb:64", "2.11.0+cu130", 1 << 29)
    assert trace.complete
    assert trace.lost_events == 0
    assert trace.end is not None
    assert trace.end[0].total_bytes == 2 << 20
    assert trace.marks == {"step": (0, 1)}


def test_codes_mean_what_the_file_says() -> None:
    meta = {**META, "actions": {"alloc": 3, "segment_alloc": 0}}
    trace = read_npz_trace(saved(**arrays(meta=np.array(json.dumps(meta)))))
    assert list(trace.action) == [Action.ALLOC, Action.SEGMENT_ALLOC]


events = st.lists(
    st.tuples(st.sampled_from(list(Action)), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2)),
    max_size=30,
)


@given(events, st.booleans(), st.booleans())
def test_npz_trace_written_by_numpy_is_read(rows: list[tuple[int, int, int, int]], clock: bool, pooled: bool) -> None:
    trace = Trace(
        action=array("B", [row[0] for row in rows]),
        address=array("Q", [row[1] for row in rows]),
        size_bytes=array("Q", [row[2] for row in rows]),
        stream=array("H", [row[3] for row in rows]),
        time_us=array("q", range(len(rows)) if clock else []),
        pool=array("H", [row[3] % 2 for row in rows] if pooled else []),
        stack=array("i"),
        streams=(0, 7, 2**62),
        pools=((0, 0), (0, 1)),
        torch_version="2.13.0",
        alloc_conf="expandable_segments:True",
        cap_bytes=12345,
        total_bytes=80 << 30,
        end=(),
        marks={"step": tuple(range(len(rows)))},
        lost_events=0,
    )
    again = read_npz_trace(write_npz_trace(trace))
    assert [again.streams[place] for place in again.stream] == [trace.streams[place] for place in trace.stream]
    for name in (
        "action", "address", "size_bytes", "time_us", "pool", "pools", "torch_version", "alloc_conf", "cap_bytes",
        "total_bytes", "end", "complete",
    ):  # fmt: skip
        assert getattr(again, name) == getattr(trace, name), name
    assert again.marks.get("step", ()) == trace.marks["step"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"addr": None}, "no array 'addr' of numbers; there are: 'action, meta"),
        ({"addr": np.array([1], np.uint64)}, "'addr' has the shape"),
        ({"addr": np.array([1.0, 2.0])}, "elements of type '<f8'"),
        ({"addr": np.array([1, 2], ">u8")}, "elements of type '>u8'"),
        ({"addr": np.array([1, 2**63], np.uint64)}, "event 1: 'addr' is 9223372036854775808"),
        ({"size": np.array([-1, 2], np.int64)}, "event 0: 'size' is -1"),
        ({"stream": np.array([-1, 2], np.int64)}, "streams, the lowest -1"),
        ({"action": np.array([3, 77], np.uint8)}, "event 1: action 77 .* is unknown"),
        ({"segs": np.array([[1, 2]], np.uint64)}, "'segs' has the shape"),
        ({"segs": np.zeros((3, 7), np.uint64)}, "3 segments at the end cannot come from 2 events"),
        ({"steps": np.zeros((3, 7), np.int64)}, "'step_cols' names 2 columns"),
        ({"meta": None}, "no text 'meta'"),
        ({"meta": np.array("[1]")}, "no text 'meta'"),
        ({"meta": np.array("[" * 100_000)}, "no JSON text"),
        ({"meta": np.array(json.dumps({**META, "actions": 3}))}, "'actions' should say"),
        ({"meta": np.array(json.dumps({**META, "torch": 3}))}, "'torch' should be a text"),
        ({"meta": np.array(json.dumps({**META, "cap_gib": "1"}))}, "'cap_gib' is '1'"),
        ({"meta": np.array(json.dumps({**META, "total": -1}))}, "'total' should be a number of bytes"),
        ({"meta": np.array(json.dumps({**META, "pools": [[0]]}))}, "'pools' should be"),
        ({"pool": np.array([0, 1], np.uint16)}, "'pool' should hold one of 1 pools"),
    ],
)
def test_npz_trace_error_says_why(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(BadTraceError, match=said):
        read_npz_trace(saved(**arrays(**changed)))


def test_an_array_of_objects_is_refused_without_a_look() -> None:
    with pytest.raises(BadTraceError, match=r"'addr' has elements of type '\|O'"):
        read_npz_trace(saved(**arrays(addr=np.array([object, object], object))))


def test_an_array_that_claims_more_than_its_file_holds_costs_nothing() -> None:
    header = b"{'descr': '<u8', 'fortran_order': False, 'shape': (1099511627776,), }\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("addr.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(BadTraceError, match="1,099,511,627,776 numbers"):
        read_npz(file.getvalue(), most_bytes=1 << 20)


@pytest.mark.parametrize("letters", ["\u00b2", "1" * 60])
def test_a_text_of_an_odd_length_is_refused(letters: str) -> None:
    header = f"{{'descr': '<U{letters}', 'fortran_order': False, 'shape': (), }}\n".encode("latin-1")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("meta.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(BadTraceError, match="elements of type '<U"):
        read_npz(file.getvalue(), most_bytes=1 << 20)


def test_a_zip_bomb_is_refused_by_what_it_declares_and_by_what_it_holds() -> None:
    bomb = saved(**arrays(addr=np.zeros(1 << 20, np.uint64)))
    with pytest.raises(BadTraceError, match=r"unzips to 8\.0 MiB"):
        read_npz(bomb, most_bytes=1 << 20)
    # The same with a lie in the directory: the length there is the one that zipfile stops at.
    lying = bomb.replace((8 * (1 << 20) + 128).to_bytes(4, "little"), (256).to_bytes(4, "little"))
    assert lying != bomb
    with pytest.raises(BadTraceError):
        read_npz(lying, most_bytes=1 << 20)


@given(st.binary(max_size=300))
def test_any_zip_is_a_trace_or_an_error_of_ours(content: bytes) -> None:
    whole = bytearray(saved(**arrays()))
    for place, byte in enumerate(content):
        whole[(place * 37 + byte * 101) % len(whole)] = byte
    with contextlib.suppress(BadTraceError):
        assert len(read_npz_trace(bytes(whole))) == 2


def test_the_recordings_are_read(tmp_path: Path) -> None:
    recordings = sorted((Path(__file__).parents[2] / "data" / "allocator").glob("*.npz"))
    assert recordings
    for path in recordings:
        trace = read_npz_trace(path.read_bytes())
        assert len(trace) > 30_000
        assert len(trace.marks["step"]) == 120
