"""One door for all files: by content, never by name."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest

from tidegauge.analysis.bad_traces import BadTraceError, RefusedPickleError
from tidegauge.analysis.oom.snapshot import look_into
from tidegauge.analysis.snapshots.reading import read_bytes
from tidegauge.analysis.traces.reading import open_trace

FOLDER = Path(__file__).parents[2] / "data" / "allocator"
SNAPSHOTS = FOLDER / "snapshots"


def test_the_name_does_not_matter(tmp_path: Path) -> None:
    for number, path in enumerate((FOLDER / "mixed_cnn_s1_c0.npz", SNAPSHOTS / "stacks.pickle.gz")):
        other = tmp_path / f"{number}.txt"
        other.write_bytes(path.read_bytes())
        assert len(open_trace(other)) == len(open_trace(path)) > 0
    plain = tmp_path / "plain.gz"
    plain.write_bytes(gzip.decompress((SNAPSHOTS / "stacks.pickle.gz").read_bytes()))
    assert len(open_trace(plain)) > 0


def test_of_several_devices_one_must_be_chosen() -> None:
    path = SNAPSHOTS / "two_devices.pickle.gz"
    with pytest.raises(BadTraceError, match=r"two_devices.*choose one with --device: 0 \([0-9]+ events\), 1 \("):
        open_trace(path)
    assert [open_trace(path, device=device).device for device in (0, 1)] == [0, 1]
    with pytest.raises(BadTraceError, match="has no events of device 7; there are events of 0 "):
        open_trace(path, device=7)
    with pytest.raises(BadTraceError, match="there is no device 3"):
        open_trace(FOLDER / "mixed_cnn_s1_c0.npz", device=3)


def with_a_marker_on_device_1(path: Path) -> Path:
    """The snapshot of a process that sees two GPUs and uses one: PyTorch marks the snapshot on both."""
    snapshot = pickle.loads(gzip.decompress((SNAPSHOTS / "stacks.pickle.gz").read_bytes()))
    last = snapshot["device_traces"][0][-1]
    marker = {**last, "action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": []}
    snapshot["device_traces"] = [[*snapshot["device_traces"][0], dict(marker)], [dict(marker)]]
    path.write_bytes(pickle.dumps(snapshot))
    return path


def test_a_device_with_nothing_but_the_marker_of_a_snapshot_is_no_choice(tmp_path: Path) -> None:
    path = with_a_marker_on_device_1(tmp_path / "two_visible.pickle")
    trace = open_trace(path)
    assert trace.device == 0
    assert len(trace) == len(open_trace(SNAPSHOTS / "stacks.pickle.gz")) + 1
    with pytest.raises(BadTraceError, match=r"has no events of device 1; there are events of 0 \("):
        open_trace(path, device=1)
    assert look_into(read_bytes(path.read_bytes())).device == 0


def test_a_snapshot_without_history_says_how_to_record_one() -> None:
    with pytest.raises(BadTraceError, match=r"_record_memory_history\(.*, stacks=.python"):
        open_trace(SNAPSHOTS / "no_history.pickle.gz")


def test_the_caller_knows_better_than_the_file() -> None:
    path = FOLDER / "mixed_cnn_s1_c0.npz"
    assert open_trace(path).torch_version == "2.11.0+cu130"
    assert open_trace(path, torch_version="2.9.1").torch_version == "2.9.1"
    assert open_trace(path, cap_bytes=5 << 30).cap_bytes == 5 << 30


def with_facts(tmp_path: Path, **facts: Any) -> Path:
    snapshot = pickle.loads(gzip.decompress((SNAPSHOTS / "stacks.pickle.gz").read_bytes()))
    path = tmp_path / "1-2.oom.pickle"
    path.write_bytes(pickle.dumps({**snapshot, "tidegauge": facts}))
    return path


def test_open_trace_reads_facts_added_by_the_probe(tmp_path: Path) -> None:
    trace = open_trace(with_facts(tmp_path, torch_version="2.13.0+cu130", device=0, cap_bytes=7 << 30))
    assert (trace.torch_version, trace.cap_bytes) == ("2.13.0+cu130", 7 << 30)
    other = open_trace(with_facts(tmp_path, torch_version="2.13.0+cu130", device=1, cap_bytes=7 << 30))
    assert other.cap_bytes is None, "the cap is another device's"


def test_open_trace_refuses_invalid_probe_facts(tmp_path: Path) -> None:
    for facts in ({"torch_version": 2}, {"cap_bytes": "all"}, {"cap_bytes": -1}):
        with pytest.raises(BadTraceError, match="tidegauge: "):
            open_trace(with_facts(tmp_path, **facts))


def test_open_trace_error_names_the_file(tmp_path: Path) -> None:
    hostile = tmp_path / "hostile.pickle"
    hostile.write_bytes(b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.")
    with pytest.raises(RefusedPickleError, match=r"hostile\.pickle: wants posix\.system"):
        open_trace(hostile)
    with pytest.raises(BadTraceError, match=r"missing\.npz: cannot be read: No such file"):
        open_trace(tmp_path / "missing.npz")
    with pytest.raises(BadTraceError, match="is longer than"):
        open_trace(SNAPSHOTS / "stacks.pickle.gz", most_bytes=2000)


def test_settings_that_no_torch_has_are_refused_in_words(tmp_path: Path) -> None:
    snapshot = pickle.loads(gzip.decompress((SNAPSHOTS / "ring.pickle.gz").read_bytes()))
    snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "time_travel:True"
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    with pytest.raises(BadTraceError, match="time_travel"):
        open_trace(path)
