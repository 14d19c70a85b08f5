"""Files of strangers: found once, opened as what they are, read to their end or not at all; and what is in them."""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_node import PID
from open_files import open_below
from rank_windows import compressed, early, late, leave_snapshot, leave_window, put, recording, window
from tidegauge.agent.evidence.checks import MAX_ROWS, read_evidence, read_recording, read_snapshot
from tidegauge.agent.evidence.files import LOOK_EVERY_S, EvidenceFinder, FoundFiles, RankFolder
from tidegauge.agent.evidence.making import read_trace
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.run_dirs.folders import HostRunDir, UserFolder
from tidegauge.agent.source_health import SkipCounts
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.growth.diff import compare
from tidegauge.core import wire
from tidegauge.core.allocator.trace import Trace
from tidegauge.core.evidence.rank_evidence import MAX_HOLDERS, HolderKind, RankEvidence
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_recording import MAX_OWNED, MAX_RECORDING_BYTES, OwnedTensor, RankRecording
from tidegauge.core.run_dirs import ASKED_SUFFIX, EARLY_SUFFIX, LATE_SUFFIX, evidence_name
from tidegauge.core.snapshot_columns import MAGIC, pack

MAX_READ_BYTES = 1 << 20


class Beside:
    """A rank's folder, and the finder that looks into it."""

    def __init__(self, scratch: Path) -> None:
        self.path = scratch / str(os.getuid())
        self.path.mkdir(parents=True)
        self.at = RankFolder(UserFolder(HostRunDir(scratch), os.getuid()), PID, Tenant(os.getuid()), ended=False)
        self.skips = SkipCounts(logging.getLogger("test"))
        self.finder = EvidenceFinder(self.skips)
        self.now_s = 100.0

    def look(self, *, after_s: float = LOOK_EVERY_S, ended: bool = False) -> list[FoundFiles]:
        self.now_s += after_s
        return self.finder.new_files({PID: self.at._replace(ended=ended)}, self.now_s)


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    return Beside(tmp_path / "run")


def test_a_window_is_found_once_with_both_snapshots(beside: Beside) -> None:
    leave_window(beside.path, PID)
    [found] = beside.look()
    assert found.evidence is not None
    assert set(found.snapshots) == {EARLY_SUFFIX, LATE_SUFFIX}
    assert read_evidence(found.evidence.read(MAX_READ_BYTES), PID) == window(PID)
    assert beside.look() == []
    found.close()


def test_folders_are_looked_into_now_and_then_only(beside: Beside) -> None:
    assert beside.look() == []
    leave_window(beside.path, PID)
    assert beside.look(after_s=0.5) == []
    [found] = beside.look()
    found.close()


def test_of_a_rank_that_ended_the_last_is_found_at_once_and_then_no_more(beside: Beside) -> None:
    beside.look()
    leave_snapshot(beside.path, PID)
    [found] = beside.look(after_s=0.1, ended=True)
    assert set(found.snapshots) == {ASKED_SUFFIX}
    found.close()
    put(beside.path, evidence_name(PID), b"somebody else, later")
    assert beside.look(ended=True) == []


def test_evidence_finder_finds_a_file_again_after_look_again(beside: Beside) -> None:
    leave_window(beside.path, PID)
    [found] = beside.look()
    beside.finder.look_again(found)
    [again] = beside.look()
    again.close()


def test_evidence_finder_reads_open_files_after_they_are_unlinked(beside: Beside) -> None:
    leave_window(beside.path, PID)
    [found] = beside.look()
    for path in beside.path.iterdir():
        path.unlink()
    assert found.snapshots[LATE_SUFFIX].read(MAX_READ_BYTES) == compressed(late())
    found.close()


def test_a_file_that_another_one_replaced_is_read_as_it_was(beside: Beside) -> None:
    leave_window(beside.path, PID)
    [found] = beside.look()
    leave_window(beside.path, PID, early=b"the next window's")
    assert found.snapshots[EARLY_SUFFIX].read(MAX_READ_BYTES) == compressed(early())
    found.close()


@pytest.mark.parametrize("change", [b"grown", b""])
def test_a_file_that_is_written_to_while_it_is_read_is_refused(change: bytes, beside: Beside) -> None:
    leave_window(beside.path, PID)
    [found] = beside.look()
    assert found.evidence is not None
    file = beside.path / evidence_name(PID)
    file.write_bytes(file.read_bytes() + change if change else b"cut")
    with pytest.raises(UnsafeFileError, match="changed while it was read"):
        found.evidence.read(MAX_READ_BYTES)
    found.close()


def test_no_descriptor_stays_open_where_a_snapshot_is_refused(beside: Beside) -> None:
    leave_window(beside.path, PID)
    (beside.path / f"{PID.pid}-{PID.start_ticks}{LATE_SUFFIX}").unlink()
    (beside.path / f"{PID.pid}-{PID.start_ticks}{LATE_SUFFIX}").symlink_to("/etc/passwd")
    before = open_below(beside.path)
    assert beside.look() == []
    assert open_below(beside.path) == before
    assert beside.skips.snapshot() == {"evidence_symlink": 1}


def test_a_folder_of_somebody_else_is_not_looked_into(beside: Beside) -> None:
    leave_window(beside.path, PID)
    beside.at = beside.at._replace(folder=UserFolder(beside.at.folder.run_dir, os.getuid() + 1))
    assert beside.look() == []


# --- what is in them


def refusal(call: Callable[[], object]) -> str | None:
    """The reason for which it was refused, ``None`` if it was not. Anything else that is raised comes through."""
    try:
        call()
    except UnsafeFileError as refused:
        return refused.reason
    except BadTraceError:
        return "content"
    return None


def early_trace() -> Trace:
    trace = read_trace(early(), 0).trace
    assert trace is not None
    return trace


def compare_with(whole: Trace, content: bytes) -> None:
    read = read_trace(read_snapshot(zlib.compress(content, 1))[1], None)
    if read.trace is not None:
        compare(whole, read.trace)


def test_evidence_comes_through_as_it_was_written() -> None:
    assert read_evidence(wire.to_json(window(PID)), PID) == window(PID)


def test_the_process_may_have_another_pid_inside_its_container() -> None:
    inside = ProcessId(12, 777)
    assert read_evidence(wire.to_json(window(inside)), inside).early_file == "12-777.early.snap"
    with pytest.raises(UnsafeFileError, match="of another process"):
        read_evidence(wire.to_json(window(inside)), PID)


def test_so_many_holders_are_read_and_no_more() -> None:
    said = window(PID)
    assert said.search is not None
    many = said.search._replace(holders=said.search.holders * 1000)
    read = read_evidence(wire.to_json(window(PID, search=many)), PID)
    assert read.search is not None
    assert len(read.search.holders) == MAX_HOLDERS
    assert read.search.holders[0].kind is HolderKind.CONTAINER


@given(st.data())
def test_whatever_a_damaged_file_holds_it_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(wire.to_json(window(PID)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=10))
        content = content or bytearray(b" ")
    assert refusal(lambda: read_evidence(bytes(content), PID)) in (None, "content")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(changes=st.dictionaries(st.sampled_from(sorted(RankEvidence.__dataclass_fields__)), json_values, max_size=3))
def test_whatever_its_fields_say_it_is_read_or_refused(changes: dict[str, object]) -> None:
    raw = wire.to_wire(window(PID))
    assert isinstance(raw, dict)
    content = json.dumps({**raw, **changes}).encode()
    assert refusal(lambda: wire.to_json(read_evidence(content, PID))) in (None, "content")


def test_a_recording_comes_through_as_it_was_written() -> None:
    assert read_recording(wire.to_json(recording(PID)), PID) == recording(PID)


@given(changes=st.dictionaries(st.sampled_from(sorted(RankRecording.__dataclass_fields__)), json_values, max_size=3))
def test_whatever_the_fields_of_a_recording_say_it_is_read_or_refused(changes: dict[str, object]) -> None:
    raw = wire.to_wire(recording(PID))
    assert isinstance(raw, dict)
    content = json.dumps({**raw, **changes}).encode()
    assert refusal(lambda: wire.to_json(read_recording(content, PID))) in (None, "content")


@pytest.mark.parametrize(
    "changes",
    [
        {"recording_id": ""},
        {"ended_step": 99},
        {"boundaries_us": (2, 1)},
        {"boundaries_us": (1, 2, 3, 4, 5)},
        {"snapshot_file": "1-1.profile.snap"},
        {"owned": (OwnedTensor(-1, 1, Category.BUFFERS),)},
    ],
)
def test_a_recording_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    assert refusal(lambda: read_recording(wire.to_json(recording(PID, **changes)), PID)) == "content"


def test_so_many_tensors_of_a_recording_are_read_and_their_names_are_lines() -> None:
    hostile = OwnedTensor(1 << 32, 512, Category.PARAMETERS, "a\x1b[31m\n")
    read = read_recording(wire.to_json(recording(PID, owned=(hostile,) * (MAX_OWNED + 1))), PID)
    assert (len(read.owned), read.owned[0].name) == (MAX_OWNED, "a?[31m?")


def test_as_many_tensors_as_a_recording_may_have_fit_into_its_file() -> None:
    usual = OwnedTensor(0x7F12_3456_0000, 1 << 32, Category.OPTIMIZER_STATE, "model.layers.100.self_attn.q_proj.weight")
    assert len(wire.to_json(recording(PID, owned=(usual,) * MAX_OWNED))) < MAX_RECORDING_BYTES


def test_a_snapshot_is_read_with_its_facts() -> None:
    content, packed = read_snapshot(compressed(late()))
    assert content == pack(late())
    assert packed.facts["step"] == 134


@given(st.data())
def test_whatever_a_damaged_snapshot_holds_it_is_compared_or_refused(data: st.DataObject) -> None:
    content = bytearray(pack(late()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    whole = early_trace()
    assert refusal(lambda: compare_with(whole, bytes(content))) in (None, "content", "too_large")


def test_rows_are_bounded_before_anything_is_made_of_them() -> None:
    most = MAX_ROWS["events"] + 1
    head = (
        b'{"texts":[],"frames":0,"stacks":0,"stack_frames":0,"settings":{},"facts":{},"devices":[{"device":0,'
        b'"streams":[0],"pools":[[0,0]],"segments":0,"blocks":0,"events":%d,"absent":["time_us","pool","stack"]}]}'
        % most
    )
    columns = bytes(most) + bytes(8 * most) * 2 + bytes(2 * most)
    content = MAGIC + len(head).to_bytes(4, "little") + head + columns
    with pytest.raises(UnsafeFileError, match="events") as caught:
        read_snapshot(zlib.compress(content, 1))
    assert caught.value.reason == "too_large"


@pytest.mark.parametrize("name", ["began_unix_s", "device", "longest_stall_s", "early_step"])
@pytest.mark.parametrize("number", [10**400, -(10**400), 1 << 61])
def test_a_number_beyond_all_measure_is_refused(name: str, number: int) -> None:
    raw = wire.to_wire(window(PID))
    assert isinstance(raw, dict)
    assert refusal(lambda: read_evidence(json.dumps({**raw, name: number}).encode(), PID)) == "content"
