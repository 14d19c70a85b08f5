"""PyTorch's snapshots, real ones and such as say anything."""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.snapshots import reading as snapshots
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.core.allocator.trace import Action, BlockState

FOLDER = Path(__file__).parents[2] / "data" / "allocator" / "snapshots"
Change = Callable[[dict[str, Any]], object]


def plain(name: str) -> dict[str, Any]:
    """A recorded snapshot as the plain object that it is."""
    snapshot: dict[str, Any] = pickle.loads(gzip.decompress((FOLDER / f"{name}.pickle.gz").read_bytes()))
    return snapshot


def read(snapshot: object) -> snapshots.Snapshot:
    return snapshots.read_bytes(pickle.dumps(snapshot))


def small() -> dict[str, Any]:
    """One allocation of 700 bytes, and the OOM of another, as torch 2.13 tells it."""
    free_bytes = (2 << 20) - 1024
    common = {"stream": 0, "time_us": 1_000_000, "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0)}
    return {
        "segments": [
            {
                "device": 0, "address": 4096, "total_size": 2 << 20, "stream": 0, "segment_type": "small",
                "segment_pool_id": (0, 0), "is_expandable": False,
                "blocks": [
                    {"address": 4096, "size": 1024, "requested_size": 700, "state": "active_allocated", "frames": []},
                    {"address": 5120, "size": free_bytes, "requested_size": 99, "state": "inactive", "frames": []},
                ],
            }
        ],
        "device_traces": [
            [
                {"action": "segment_alloc", "addr": 4096, "size": 2 << 20, **common},
                {"action": "alloc", "addr": 4096, "size": 700, **common},
                {"action": "oom", "device_free": 77, "size": 1 << 40, **common},
            ]
        ],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [],
    }  # fmt: skip


def without(snapshot: dict[str, Any], *keys: str) -> None:
    for entry in snapshot["device_traces"][0]:
        for key in keys:
            del entry[key]


def test_events_segments_and_settings_are_read() -> None:
    trace = read(small()).traces[0]
    assert list(trace.action) == [Action.SEGMENT_ALLOC, Action.ALLOC, Action.OOM]
    assert list(trace.address) == [4096, 4096, 77]
    assert list(trace.size_bytes) == [2 << 20, 700, 1 << 40]
    assert trace.end is not None
    live, free = trace.end[0].blocks
    assert (live.requested_bytes, live.state) == (700, BlockState.ACTIVE_ALLOCATED)
    assert (free.requested_bytes, free.state) == (0, BlockState.INACTIVE), "a free block's size is that of its last use"


def test_a_million_frames_are_a_few_stacks() -> None:
    stacks = plain("stacks")
    events = sum("frames" in entry for entry in stacks["device_traces"][0])
    trace = read(stacks).traces[0]
    assert events > 300
    assert 1 <= len(trace.stacks) < 30
    allocations = [place for place, action in enumerate(trace.action) if action == Action.ALLOC]
    innermost = trace.stacks[trace.stack[allocations[0]]][0]
    assert (innermost.name, innermost.filename) == ("requests", "snapshots/record.py")
    recorded = stacks["device_traces"][0][allocations[0]]["frames"][0]
    assert innermost.line == recorded["line"]


def test_live_blocks_name_their_stack_in_the_same_table() -> None:
    trace = read(plain("stacks")).traces[0]
    live = [block for segment in trace.end or () for block in segment.blocks if block.state]
    assert {trace.stacks[block.stack][0].name for block in live if block.stack is not None} == {"requests"}


def test_each_device_has_its_own_events_and_segments() -> None:
    traces = read(plain("two_devices")).traces
    assert set(traces) == {0, 1}
    assert all(len(trace) > 200 and trace.end and trace.device == device for device, trace in traces.items())


def test_a_snapshot_without_history_has_its_segments() -> None:
    trace = read(plain("no_history")).traces[0]
    assert len(trace) == 0
    assert trace.end


def test_a_snapshot_without_the_list_of_traces_is_read() -> None:
    """``include_traces=False``, or torch before 2.9 without a history."""
    snapshot = small()
    del snapshot["device_traces"]
    assert len(read(snapshot).traces[0]) == 0


@pytest.mark.parametrize(
    ("change", "version"),
    [
        (lambda s: s["allocator_settings"].update(max_round_threshold=1), "2.13"),
        (lambda s: s.pop("external_annotations"), "2.12"),
        (lambda s: without(s, "pool_id"), "2.10"),
        (lambda s: without(s, "pool_id", "user_metadata"), "2.9"),
        (lambda s: without(s, "pool_id", "user_metadata", "compile_context"), "2.5"),
    ],
)
def test_the_keys_betray_the_oldest_torch_that_writes_them(change: Change, version: str) -> None:
    snapshot = small()
    change(snapshot)
    assert read(snapshot).traces[0].torch_version == version


def test_snapshot_alloc_conf_includes_settings_enabled_by_an_earlier_call() -> None:
    snapshot = small()
    snapshot["allocator_settings"] |= {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
        "max_split_size": 64 << 20,
        "expandable_segments": True,
        "roundup_power2_divisions": {"1": 0, "2": 4},
    }
    assert read(snapshot).traces[0].alloc_conf == (
        "max_split_size_mb:64,expandable_segments:True,roundup_power2_divisions:[2:4]"
    )


def test_an_unknown_action_is_left_out_and_counted() -> None:
    snapshot = small()
    snapshot["device_traces"][0].insert(
        1, {"action": "teleport", "addr": 1, "size": 1, "stream": 0, "time_us": 1_000_000}
    )
    trace = read(snapshot).traces[0]
    assert len(trace) == 3
    assert dict(trace.skipped) == {"events of the unknown kind 'teleport'": 1}


def test_unknown_actions_without_end_do_not_make_a_message_without_end() -> None:
    snapshot = small()
    snapshot["device_traces"][0] += [{**snapshot["device_traces"][0][0], "action": f"x{n}" * 99} for n in range(500)]
    skipped = read(snapshot).traces[0].skipped
    assert sum(skipped.values()) == 500
    assert len(skipped) == 11
    assert all(len(reason) < 120 for reason in skipped)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("segments"), "no snapshot of torch.cuda.memory"),
        (lambda s: s.update(segments={}), "segments: should be a list, and is a dict"),
        (lambda s: s.update(device_traces=7), "device_traces: should be a list, and is 7"),
        (lambda s: s.update(device_traces=[[], 3]), r"device_traces\[1\]: should be a list"),
        (lambda s: s.update(device_traces=[[]] * 5000), "5,000 devices"),
        (lambda s: s["device_traces"][0].append([]), r"device_traces\[0\]\[3\]: should be a dict"),
        (lambda s: s["device_traces"][0][1].pop("size"), r"device_traces\[0\]\[1\]: 'size' .* is missing"),
        (lambda s: s["device_traces"][0][1].update(size=-1), "'size' should be a whole number from 0, and is -1"),
        (lambda s: s["device_traces"][0][1].update(size=2**63), "'size'"),
        (lambda s: s["device_traces"][0][1].update(addr="0x10"), "'addr' .* is '0x10'"),
        (lambda s: s["device_traces"][0][1].update(addr=1.5), "'addr' .* is 1.5"),
        (lambda s: s["device_traces"][0][1].update(stream=None), "'stream' .* is None"),
        (lambda s: s["device_traces"][0][1].update(action=[]), "'action' should be a text"),
        (lambda s: s["device_traces"][0][1].update(pool_id=(0,)), "'pool_id' should be a pair"),
        (lambda s: s["device_traces"][0][1].update(pool_id=(0, {})), "'pool_id' should be a pair"),
        (lambda s: s["device_traces"][0][1].update(frames="here"), "'frames' should be a list"),
        (lambda s: s["device_traces"][0][1].update(frames=[{"name": "f"}]), "'line' should be a line number"),
        (lambda s: s["device_traces"][0][2].pop("device_free"), "'device_free' .* is missing"),
        (lambda s: s["device_traces"][0][2].update(time_us=1), r"\[2\]: its clock is 1\.000 s before"),
        (lambda s: s["segments"][0].update(segment_type="huge"), "'small' or 'large', and is 'huge'"),
        (lambda s: s["segments"][0].update(is_expandable=1), "'is_expandable'"),
        (lambda s: s["segments"][0].update(total_size=4096), "more than its size"),
        (lambda s: s["segments"][0]["blocks"].pop(), "short of its size"),
        (lambda s: s["segments"][0]["blocks"][1].update(address=9), r"blocks\[1\]: is at 0x9, where 0x1400 comes next"),
        (lambda s: s["segments"][0]["blocks"][0].update(size=0), "has no size"),
        (lambda s: s["segments"][0]["blocks"][0].update(state="lost"), "'state' should be one of .* 'lost'"),
        (lambda s: s["segments"].append(s["segments"][0]), "overlaps"),
        (lambda s: s["segments"][0].update(address=2**63 - 10), "beyond all addresses"),
        (lambda s: s.update(allocator_settings=[]), "allocator_settings: should be a dict"),
        (lambda s: s.update(allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": 3}), "should be a text, and is 3"),
        (lambda s: s.update(tidegauge={1: 2}), "has the key 1, which is no text"),
    ],
)
def test_snapshot_error_names_its_place(change: Change, said: str) -> None:
    snapshot = small()
    change(snapshot)
    with pytest.raises(BadTraceError, match=said) as raised:
        read(snapshot)
    assert len(str(raised.value)) < 400
    assert str(raised.value).isprintable()


def test_user_metadata_of_events_is_read() -> None:
    snapshot = small()
    for entry, word in zip(snapshot["device_traces"][0], ("", "warm-up", "x" * 5_000), strict=True):
        entry["user_metadata"] = word
    trace = read(snapshot).traces[0]
    assert list(trace.metadata) == [-1, 0, 1]
    assert trace.words == ("warm-up", "x" * 1_000)
    assert list(trace.since(1).metadata) == [0, 1]


def test_events_without_user_metadata_have_no_column() -> None:
    assert not read(small()).traces[0].metadata


def test_a_number_too_long_to_print_does_not_break_the_message() -> None:
    snapshot = small()
    snapshot["device_traces"][0][1]["size"] = [[1] * 10] * 10_000
    with pytest.raises(BadTraceError, match="is a list"):
        read(snapshot)


def test_lists_that_hold_themselves_end() -> None:
    snapshot = small()
    snapshot["segments"][0]["blocks"].append(snapshot["segments"][0]["blocks"])
    with pytest.raises(BadTraceError, match=r"blocks\[2\]: should be a dict"):
        read(snapshot)


@pytest.mark.slow
def test_stacks_that_share_frames_do_not_multiply() -> None:
    """A thousand frames a stack in 5,100 stacks: five million frames to keep, in a file of that many links."""
    frame = {"name": "f", "filename": "f.py", "line": 1}
    snapshot = small()
    entry = snapshot["device_traces"][0][1]
    snapshot["device_traces"][0] = [{**entry, "frames": [frame] * 1000} for _ in range(5_100)]
    with pytest.raises(BadTraceError, match="more than 5,000,000 frames"):
        read(snapshot)


def test_a_file_that_is_something_else_is_named(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text("step 1\n")
    with pytest.raises(BadTraceError, match=r"slurm-1\.out: is neither a snapshot"):
        snapshots.read_snapshot(log)
    with pytest.raises(BadTraceError, match="cannot be read: Is a directory"):
        snapshots.read_snapshot(tmp_path)


def test_an_open_file_is_read() -> None:
    assert snapshots.read_stream(io.BytesIO(gzip.compress(pickle.dumps(small())))).traces[0].end


PATHS = st.lists(st.integers(0, 30), min_size=1, max_size=6)
ODD: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
    | st.just([]) | st.just({}) | st.just((0, 0)) | st.sampled_from([a.name.lower() for a in Action])
)  # fmt: skip


@given(
    st.sampled_from(["ring", "stacks", "expandable_ring", "out_of_memory", "two_devices"]),
    st.lists(st.tuples(PATHS, ODD), min_size=1, max_size=4),
)
def test_any_change_of_a_real_snapshot_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, changes: list[tuple[list[int], object]]
) -> None:
    snapshot = copy.deepcopy(REAL[name])
    for path, value in changes:
        _change(snapshot, path, value)
    file = tmp_path_factory.mktemp("changed") / "snapshot.pickle"
    file.write_bytes(pickle.dumps(snapshot))
    with contextlib.suppress(BadTraceError):
        open_trace(file, device=0)


REAL = {path.name.partition(".")[0]: plain(path.name.partition(".")[0]) for path in FOLDER.glob("*.pickle.gz")}


def _change(container: Any, path: list[int], value: object) -> None:
    """Walk down by the path's numbers and put the value where it ends."""
    for depth, step in enumerate(path):
        keys = list(container) if isinstance(container, dict) else range(len(container))
        if not keys:
            return
        key = keys[step * 7919 % len(keys)]
        if depth == len(path) - 1 or not isinstance(container[key], (list, dict)):
            container[key] = value
            return
        container = container[key]
