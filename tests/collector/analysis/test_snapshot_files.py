"""Snapshots in every wrapping, from files and URLs; and histories that are read while they are unpickled."""

from __future__ import annotations

import contextlib
import gzip
import io
import pickle
import random
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from examples import fewer
from tidegauge.analysis.bad_traces import BadTraceError, RefusedPickleError
from tidegauge.analysis.snapshots.reading import read_bytes, read_snapshot, write_packed
from tidegauge.analysis.snapshots.restricted_pickle import loads
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.analysis.untrusted_files import decompressed
from tidegauge.core.snapshot_columns import MAGIC, pack
from trace_files import to_packed

DATA = Path(__file__).parents[2] / "data"
ORIGINAL = DATA / "snapshots" / "outputs_kept.early.pickle.gz"
MIB = 1 << 20


def columns() -> bytes:
    return pack(to_packed(read_snapshot(ORIGINAL)))


WRAPPINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content,
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "zstandard": lambda content: write_packed([content]),
    "two frames": lambda content: write_packed([content[:1000]]) + write_packed([content[1000:]]),
    "two gzip members": lambda content: gzip.compress(content[:1000]) + gzip.compress(content[1000:]),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("form", ["columns", "pickle"])
def test_content_is_told_by_its_first_bytes_whatever_the_name(tmp_path: Path, form: str, wrapping: str) -> None:
    content = columns() if form == "columns" else gzip.decompress(ORIGINAL.read_bytes())
    file = tmp_path / "snapshot.txt"
    file.write_bytes(WRAPPINGS[wrapping](content))
    assert read_snapshot(str(file)).traces == read_snapshot(ORIGINAL).traces


def test_packed_snapshot_file_round_trips_at_half_the_size(tmp_path: Path) -> None:
    snapshot = read_snapshot(ORIGINAL)
    file = tmp_path / "one.snap.zst"
    file.write_bytes(write_packed(to_packed(snapshot, {"step": 166})))
    assert read_snapshot(file).facts["step"] == 166
    assert file.stat().st_size < ORIGINAL.stat().st_size / 2


def test_a_trace_opens_in_tidegauges_own_form(tmp_path: Path) -> None:
    file = tmp_path / "one.snap.zst"
    file.write_bytes(write_packed(to_packed(read_snapshot(ORIGINAL))))
    assert open_trace(file) == open_trace(ORIGINAL)


@pytest.mark.parametrize("wrap", [gzip.compress, zlib.compress, lambda content: write_packed([content])])
def test_decompression_refuses_a_bomb_before_it_fills_memory(wrap: Any) -> None:
    bomb = wrap(bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(BadTraceError, match=r"unzips from .* to more than 1\.0 MiB"):
            decompressed(bomb, most_bytes=MIB)
        # One piece given to zstandard may become 32 MiB.
        assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("wrap", [gzip.compress, zlib.compress, lambda content: write_packed([content])])
def test_decompression_error_distinguishes_truncated_from_damaged(wrap: Any) -> None:
    whole = wrap(bytes(range(256)) * 100)
    for cut in range(5, len(whole)):
        with pytest.raises(BadTraceError, match="ends in the middle of its"):
            decompressed(whole[:cut])
    damaged = bytearray(whole)
    damaged[-3] ^= 0xFF  # the checksum
    with pytest.raises(BadTraceError, match="damaged"):
        decompressed(bytes(damaged))


@pytest.mark.parametrize("wrap", [gzip.compress, zlib.compress])
def test_joined_members_cost_what_their_length_does(wrap: Any) -> None:
    few, many = 1_000, 60_000  # at 8 bytes each, where each copied what follows it this took a minute
    content = wrap(b"x" * 100) + wrap(b"") * many + wrap(b"y")
    began_s = time.thread_time()  # of this thread alone, whatever else the machine does
    assert decompressed(wrap(b"x" * 100) + wrap(b"") * few + wrap(b"y")) == b"x" * 100 + b"y"
    few_s = time.thread_time() - began_s
    assert decompressed(content) == b"x" * 100 + b"y"
    assert time.thread_time() - began_s - few_s < 10 * (many / few) * max(few_s, 0.001)


@pytest.mark.parametrize("size", [4095, 4096, 4097, 3 * 4096, 100_000])
def test_pieces_and_members_may_end_anywhere(size: int) -> None:
    noise = random.Random(size).randbytes(size)
    for wrap in (gzip.compress, zlib.compress):
        assert decompressed(wrap(noise) + wrap(bytes(5 * MIB)) + wrap(noise)) == noise + bytes(5 * MIB) + noise


def test_a_frame_that_wants_a_window_beyond_reason_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    far_back = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = far_back.compress(b"x") + far_back.flush()
    with pytest.raises(BadTraceError, match="damaged zstandard data"):
        decompressed(content)


def test_a_file_of_a_later_version_says_so() -> None:
    with pytest.raises(BadTraceError, match="version 9; this Tidegauge reads versions 1 and 2"):
        read_bytes(MAGIC[:6] + b"\x09\n")


def test_a_hostile_pickle_is_refused_in_any_wrapping(tmp_path: Path) -> None:
    file = tmp_path / "one.snap.zst"
    file.write_bytes(write_packed([pickle.dumps(print)]))
    with pytest.raises(RefusedPickleError, match=r"one\.snap\.zst: wants builtins\.print"):
        read_snapshot(file)


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    file = tmp_path / "one.snap.zst"
    file.write_bytes(write_packed([columns()]))
    code = (
        "import sys; sys.modules.update(zstandard=None, fsspec=None)\n"
        "from tidegauge.analysis.snapshots.reading import read_snapshot, write_packed\n"
        "for call in (lambda: read_snapshot(sys.argv[1]), lambda: write_packed([b'']), lambda: read_snapshot('s3://a')):\n"
        "    try: call()\n"
        "    except ValueError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True).stdout
    assert told.count("pip install 'tidegauge[agent]'") == 3
    assert told.count("package fsspec") == 1


def test_urls_are_read_by_fsspec(tmp_path: Path) -> None:
    import fsspec

    with fsspec.open("memory://snapshots/one.snap", "wb") as stream:
        stream.write(write_packed([columns()]))
    assert read_snapshot("memory://snapshots/one.snap").traces == read_snapshot(ORIGINAL).traces
    with pytest.raises(BadTraceError, match=r"^memory://snapshots/one\.snap: is longer than 100 B"):
        read_snapshot("memory://snapshots/one.snap", most_bytes=100)
    with pytest.raises(BadTraceError, match=r"^memory://nowhere: cannot be read: FileNotFoundError"):
        read_snapshot("memory://nowhere")
    with pytest.raises(BadTraceError, match=r"^nothing://x: cannot be read: ValueError: Protocol not known"):
        read_snapshot("nothing://x")
    with pytest.raises(BadTraceError, match="cannot be read"):
        read_snapshot(tmp_path / "nowhere")


def entries(count: int, **more: object) -> list[dict[str, object]]:
    return [
        {"action": "alloc", "addr": 512 * number, "size": number + 1, "stream": 0, "time_us": number, **more}
        for number in range(count)
    ]


def whole(*histories: list[dict[str, object]]) -> dict[str, object]:
    return {"segments": [], "device_traces": list(histories)}


@fewer(4)
@given(st.lists(st.sampled_from([0, 1, 2, 999, 1000, 1001, 2500]), max_size=4), st.integers(2, 5))
def test_histories_of_any_length_keep_their_order_and_their_device(lengths: list[int], protocol: int) -> None:
    content = pickle.dumps(whole(*map(entries, lengths)), protocol)
    traces = read_bytes(content).traces
    assert {device: len(trace) for device, trace in traces.items()} == {
        device: length for device, length in enumerate(lengths) if length
    }
    for trace in traces.values():
        assert list(trace.size_bytes) == list(range(1, len(trace) + 1))


def test_a_history_takes_a_fraction_of_the_memory_that_its_entries_would() -> None:
    content = pickle.dumps(whole(entries(20_000)))
    peaks = []
    for read in (loads, read_bytes):
        tracemalloc.start()
        try:
            read(content)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] / 2


@pytest.mark.parametrize("index", [0, 999, 1000, 2499])
def test_snapshot_error_deep_in_the_history_names_its_place(index: int) -> None:
    history = entries(2500)
    history[index]["size"] = -1
    with pytest.raises(BadTraceError, match=rf"device_traces\[1\]\[{index}\]: 'size' should be"):
        read_bytes(pickle.dumps(whole(entries(1500), history)))


def test_an_entry_that_is_there_twice_is_no_history() -> None:
    history = entries(1500)
    history[1200] = history[3]
    with pytest.raises(BadTraceError, match=r"device_traces\[0\]\[1200\]: 'action' should be"):
        read_bytes(pickle.dumps(whole(history)))


def test_a_history_in_another_place_is_no_snapshot() -> None:
    decoy = entries(3000)
    with pytest.raises(BadTraceError, match="trace entries outside of its device_traces"):
        read_bytes(pickle.dumps({"segments": decoy, "device_traces": [entries(3000)]}))


def test_the_callback_gets_lists_and_what_it_leaves_is_what_is_loaded() -> None:
    seen: list[int] = []

    def take(grown: object) -> None:
        assert isinstance(grown, list)
        seen.append(len(grown))

    numbers = list(range(1 << 20, (1 << 20) + 5000))
    for protocol in range(2, 6):
        seen.clear()
        assert loads(pickle.dumps({"a": numbers, "b": ["x" * 70_000]}, protocol), on_grown=take) == {
            "a": numbers,
            "b": ["x" * 70_000],
        }
        assert seen == [1000, 2000, 3000, 4000, 5000]


@given(st.binary(max_size=300))
def test_any_bytes_are_an_object_or_an_error_of_ours_with_a_callback_too(content: bytes) -> None:
    with contextlib.suppress(BadTraceError):
        loads(b"\x80\x04" + content, on_grown=id)


def test_a_stream_of_no_end_is_not_read_to_it() -> None:
    from tidegauge.analysis.untrusted_files import read_content

    with pytest.raises(BadTraceError, match="is longer than"):
        read_content(io.BytesIO(bytes(2000)), most_bytes=1000)
