"""Snapshots for other tools: each form is read back by its own rules."""

from __future__ import annotations

import gzip
import importlib
import json
import pickle
import pickletools
import re
from array import array
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.analysis.growth.flame_graphs import NO_STACK, folded, pprof, speedscope
from tidegauge.analysis.snapshots.live_stacks import StackWeight, allocated_weights, live_weights
from tidegauge.analysis.snapshots.reading import read_bytes, read_snapshot
from tidegauge.analysis.snapshots.torch_pickle import torch_pickle, torch_snapshot
from tidegauge.analysis.snapshots.traces import Snapshot
from tidegauge.cli.offline.export_forms import plain_snapshot
from tidegauge.core.evidence.owners import CodeLine

DATA = Path(__file__).parents[2] / "data"
ORIGINAL = DATA / "snapshots" / "outputs_kept.late.pickle.gz"
ALLOCATOR = DATA / "allocator" / "snapshots"
HOSTILE = CodeLine("a;b\n.py", 7, "f;\x1b[31m\udcff <x> 5")


def original(path: Path = ORIGINAL) -> dict[str, Any]:
    whole: dict[str, Any] = pickle.loads(gzip.decompress(path.read_bytes()))
    return whole


def without(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in keys}


@pytest.mark.parametrize(
    "path",
    [ORIGINAL, ALLOCATOR / "two_devices.pickle.gz", ALLOCATOR / "no_history.pickle.gz"],
    ids=lambda path: path.name,
)
def test_torchs_pickle_says_what_torchs_own_did(path: Path) -> None:
    """But for what a snapshot is not read for: texts of the user's, annotations, stale sizes of free blocks."""
    before, after = original(path), pickle.loads(torch_pickle(read_snapshot(path)))
    used = len(after["device_traces"])
    assert not any(before["device_traces"][used:]), "devices of which nothing is known have no list"
    for history, again in zip(before["device_traces"][:used], after["device_traces"], strict=True):
        assert again == [{"frames": [], **without(entry, "compile_context", "user_metadata")} for entry in history]
    for segment, again in zip(before["segments"], after["segments"], strict=True):
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                block["requested_size"] = 0
                block["frames"] = []
        segment["frames"] = []
        assert again == segment
    assert after["allocator_settings"] == before["allocator_settings"]


def test_torchs_pickle_is_read_as_the_snapshot_that_it_was() -> None:
    snapshot = read_snapshot(ORIGINAL)
    assert read_bytes(torch_pickle(snapshot)).traces == snapshot.traces


def test_facts_travel_with_torchs_pickle() -> None:
    snapshot = read_snapshot(ORIGINAL)._replace(facts={"step": 499, "torch_version": "2.11.0"})
    assert read_bytes(torch_pickle(snapshot)).facts["step"] == 499


VIEWERS_OPCODES = frozenset(
    {"PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT"}
    | {"EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "DICT", "LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
    | {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "NONE", "NEWTRUE", "NEWFALSE"}
    | {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"}
)
"""What ``unpickle`` of torch's MemoryViz.js knows; it throws at everything else."""


def test_the_viewer_in_the_browser_knows_each_opcode() -> None:
    snapshot = read_snapshot(ORIGINAL)._replace(facts={"step": 1, "unix_s": 1.5, "cap_bytes": None, "ok": True})
    opcodes = list(pickletools.genops(torch_pickle(snapshot)))
    assert {opcode.name for opcode, _, _ in opcodes} <= VIEWERS_OPCODES
    assert opcodes[0][1] in (2, 3, 4)


def test_frames_are_shared_as_torch_shares_them() -> None:
    """The browser would hold a million copies otherwise."""
    whole = torch_snapshot(read_snapshot(ORIGINAL))
    stacks = [entry["frames"] for entry in whole["device_traces"][0] if "frames" in entry]
    assert len({id(stack) for stack in stacks}) < len(stacks) / 10
    frames = [frame for stack in stacks for frame in stack]
    assert len({id(frame) for frame in frames}) == len({tuple(frame.items()) for frame in frames})


def test_each_device_up_to_the_last_has_its_list() -> None:
    trace = read_snapshot(ORIGINAL).traces[0]
    third = trace.__class__(**{**vars(trace), "device": 2})
    whole = torch_snapshot(Snapshot({2: third}, trace.stacks, {}))
    assert [len(history) for history in whole["device_traces"]] == [0, 0, len(trace)]
    assert {segment["device"] for segment in whole["segments"]} == {2}


def weights() -> list[StackWeight]:
    return live_weights(read_snapshot(ORIGINAL).traces[0])


def test_folded_stacks_hold_every_byte() -> None:
    lines = list(folded(weights()))
    parsed = [re.fullmatch(r"(.+) (\d+)", line) for line in lines]
    assert all(parsed)
    total = sum(int(one[2]) for one in parsed if one)
    assert total == sum(one.weight_bytes for one in weights())
    assert any(line.rpartition(" ")[0].endswith("linear.py:134)") for line in lines), "the innermost frame is the last"
    assert any(line.startswith(f"{NO_STACK} ") for line in lines)
    assert max(lines, key=lambda line: int(line.rsplit(" ", 1)[1])).startswith("<module> (train/record.py:41);")


NAMES = st.text(max_size=20)
STACKS = st.lists(st.builds(CodeLine, NAMES, st.integers(-1, 1 << 31), NAMES), max_size=4).map(tuple)


@given(st.lists(st.builds(StackWeight, STACKS, st.integers(1, 1 << 40), st.integers(1, 9)), max_size=5))
def test_no_name_ends_a_frame_a_line_or_a_text(many: list[StackWeight]) -> None:
    lines = list(folded(many))
    assert all(line.isprintable() for line in lines)
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == sum(one.weight_bytes for one in many)
    deepest = max((line.count(";") + 1 for line in lines), default=0)
    assert deepest == max((max(1, len(one.stack)) for one in many), default=0)
    parsed = json.loads(speedscope(many, name="x", title="y"))
    assert len(parsed["profiles"][0]["samples"]) == len(many)


def test_flame_graph_export_omits_shrunk_stacks() -> None:
    changes = [StackWeight((HOSTILE,), 5, 1), StackWeight((), -3, -1)]
    assert list(folded(changes)) == ["f:?[31m? <x> 5 (a:b?.py:7) 5"]
    assert json.loads(speedscope(changes, name="x", title="y"))["profiles"][0]["endValue"] == 5


def test_speedscopes_file_is_valid_and_whole() -> None:
    file = json.loads(speedscope([*weights(), StackWeight((HOSTILE,), 5, 1)], name="n\n", title="live"))
    jsonschema.validate(file, json.loads((DATA / "snapshots" / "speedscope.schema.json").read_text()))
    profile = file["profiles"][0]
    assert profile["endValue"] == sum(profile["weights"]) == sum(one.weight_bytes for one in weights()) + 5
    frames = file["shared"]["frames"]
    outermost = [frames[sample[0]] for sample in profile["samples"] if frames[sample[0]].get("file")]
    assert {"name": "<module>", "file": "train/record.py", "line": 41} in outermost
    assert all(frame["name"].isprintable() for frame in frames)


def profile_class() -> Any:
    """The part of pprof's ``profile.proto`` that is written, as Google's own runtime of protobuf reads it."""
    descriptor = importlib.import_module("google.protobuf.descriptor_pb2")
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    factory = importlib.import_module("google.protobuf.message_factory")
    file = descriptor.FileDescriptorProto(name="profile.proto", package="p", syntax="proto3")
    integer, text, message = 3, 9, 11
    fields: dict[str, list[tuple[str, int, int, bool, str]]] = {
        "ValueType": [("type", 1, integer, False, ""), ("unit", 2, integer, False, "")],
        "Sample": [("location_id", 1, integer, True, ""), ("value", 2, integer, True, "")],
        "Line": [("function_id", 1, integer, False, ""), ("line", 2, integer, False, "")],
        "Location": [("id", 1, integer, False, ""), ("line", 4, message, True, "Line")],
        "Function": [
            ("id", 1, integer, False, ""), ("name", 2, integer, False, ""), ("filename", 4, integer, False, ""),
        ],
        "Profile": [
            ("sample_type", 1, message, True, "ValueType"), ("sample", 2, message, True, "Sample"),
            ("location", 4, message, True, "Location"), ("function", 5, message, True, "Function"),
            ("string_table", 6, text, True, ""), ("time_nanos", 9, integer, False, ""),
            ("comment", 13, integer, True, ""), ("default_sample_type", 14, integer, False, ""),
        ],
    }  # fmt: skip
    for name, parts in fields.items():
        described = file.message_type.add(name=name)
        for field, number, kind, repeated, of in parts:
            one = described.field.add(name=field, number=number, type=kind, label=3 if repeated else 1)
            if of:
                one.type_name = f".p.{of}"
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))


def test_pprofs_profile_is_read_by_protobuf_itself() -> None:
    trace = read_snapshot(ORIGINAL).traces[0]
    samples = {one.stack: [one.weight_bytes, one.blocks] for one in live_weights(trace)}
    samples[(HOSTILE,)] = [-5, 1]
    types = (("inuse_space", "bytes"), ("inuse_objects", "count"))
    profile = profile_class()()
    profile.ParseFromString(gzip.decompress(pprof(samples, types, comment="why", unix_s=1.5)))
    strings = list(profile.string_table)
    assert strings[0] == ""
    assert [(strings[one.type], strings[one.unit]) for one in profile.sample_type] == list(types)
    assert (strings[profile.default_sample_type], profile.time_nanos) == ("inuse_space", 1_500_000_000)
    functions = {one.id: (strings[one.name], strings[one.filename]) for one in profile.function}
    places = {one.id: (*functions[one.line[0].function_id], one.line[0].line) for one in profile.location}
    read = {tuple(places[number] for number in one.location_id): tuple(one.value) for one in profile.sample}
    largest = live_weights(trace)[0]
    assert read[tuple((line.function, line.filename, line.line) for line in largest.stack)] == (
        largest.weight_bytes,
        largest.blocks,
    )
    assert sum(value[0] for value in read.values()) == sum(one.weight_bytes for one in live_weights(trace)) - 5
    assert (-5, 1) in read.values()
    assert all(text.isprintable() for text in strings)


def test_allocations_of_a_history_are_counted_whether_freed_or_not() -> None:
    trace = read_snapshot(ORIGINAL).traces[0]
    allocated = allocated_weights(trace)
    allocs = [size for action, size in zip(trace.action, trace.size_bytes, strict=True) if action == 0]
    assert sum(one.weight_bytes for one in allocated) == sum(allocs)
    assert sum(one.blocks for one in allocated) == len(allocs)
    without = trace.__class__(**{**vars(trace), "stack": array("i")})
    assert [one.stack for one in allocated_weights(without)] == [()]


def test_plain_json_holds_each_frame_and_stack_once() -> None:
    snapshot = read_snapshot(ORIGINAL)
    plain = json.loads(json.dumps(plain_snapshot(snapshot)))
    trace = snapshot.traces[0]
    device = plain["devices"][0]
    assert device["events"]["size_bytes"] == list(trace.size_bytes)
    assert device["events"]["pool"] is None
    assert len(plain["stacks"]) == len(trace.stacks)
    block = next(block for segment in device["segments"] for block in segment["blocks"] if block["stack"] is not None)
    innermost = plain["frames"][plain["stacks"][block["stack"]][0]]
    assert innermost["filename"] == trace.stacks[block["stack"]][0].filename
    assert block["state"] == "active_allocated"
