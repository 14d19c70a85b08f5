"""The bytes of a ring: what is written comes back, and nothing else does."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, RankIdentity
from tidegauge.core.incidents.actions import CheckpointWay
from tidegauge.core.ring_layout import (
    CHECKPOINT_WAYS,
    HEADER_BYTES,
    IDENTITY_OFFSET,
    MAX_IDENTITY_BYTES,
    RECORD_BYTES,
    LayoutError,
    RingHeader,
    decode_header,
    decode_identity,
    decode_record,
    encode_header,
    encode_identity,
    encode_record,
)
from tidegauge.core.samples import EventCode, RecordKind, Sample

IDENTITY = RankIdentity(JobId("17"), 1, GlobalRank(3), LocalRank(3), 8, "node-a")
HEADER = RingHeader(capacity=16, device_count=2, pid=4711, start_ticks=99, created_ns=5)

counts = st.integers(0, (1 << 64) - 2)
unknowns = st.none() | counts
samples = st.builds(
    Sample,
    seq=st.integers(1, (1 << 64) - 1),
    kind=st.sampled_from(RecordKind),
    event=st.sampled_from(EventCode),
    device=st.integers(0, (1 << 32) - 1),
    wall_ns=counts,
    mono_ns=counts,
    step=counts,
    raw_steps=counts,
    phase=st.integers(0, 255),
    allocated_bytes=counts,
    reserved_bytes=counts,
    **dict.fromkeys(Sample._fields[11:25], unknowns),
    event_a=counts,
    event_b=counts,
    event_c=counts,
)


def page_with(identity: RankIdentity, generation: int = 2) -> bytearray:
    page = bytearray(encode_header(HEADER))
    block = encode_identity(identity, generation=generation)
    page[IDENTITY_OFFSET : IDENTITY_OFFSET + len(block)] = block
    return page


def test_what_was_run_comes_back_and_is_one_object_for_all_ranks() -> None:
    who = IDENTITY._replace(script="/home/ada/train.py", script_sha256="ab" * 32, arguments="--lr 3e-4")
    first, second = decode_identity(bytes(page_with(who))), decode_identity(bytes(page_with(who)))
    assert first is not None
    assert second is not None
    assert first == who
    assert first.arguments is second.arguments


def test_what_was_run_is_left_out_before_anything_else_is_cut() -> None:
    uuids = tuple(DeviceUuid(f"GPU-{number:036}") for number in range(64))
    who = IDENTITY._replace(script="s" * 256, script_sha256="ab" * 32, arguments="a" * 200, device_uuids=uuids)
    whole = who._replace(alloc_conf="c" * 300)
    assert decode_identity(bytes(page_with(who))) == who
    read = decode_identity(bytes(page_with(whole)))
    assert read is not None
    assert (read.alloc_conf, read.device_uuids, read.script, read.arguments) == ("c" * 300, uuids, "s" * 256, None)


@given(samples)
def test_record_comes_back_as_it_was(sample: Sample) -> None:
    encoded = encode_record(sample)
    assert len(encoded) == RECORD_BYTES
    assert decode_record(encoded) == sample


@given(samples, st.integers(0, RECORD_BYTES - 1), st.integers(1, 255))
def test_record_with_any_flipped_byte_does_not_decode(sample: Sample, position: int, flip: int) -> None:
    torn = bytearray(encode_record(sample))
    torn[position] ^= flip
    assert decode_record(bytes(torn)) is None


@given(samples, samples, st.integers(1, RECORD_BYTES - 1))
def test_record_half_overwritten_by_the_next_does_not_decode(old: Sample, new: Sample, cut: int) -> None:
    before, after = encode_record(old), encode_record(new)
    torn = after[:cut] + before[cut:]
    assert decode_record(torn) is None or torn in (before, after)


def test_empty_slot_is_not_a_record() -> None:
    assert decode_record(bytes(RECORD_BYTES)) is None


@given(st.binary(max_size=HEADER_BYTES + 8), st.integers(0, 1 << 40))
def test_random_bytes_are_never_a_header(page: bytes, file_bytes: int) -> None:
    with pytest.raises(LayoutError):
        decode_header(page, file_bytes=file_bytes)


def test_header_comes_back_with_its_geometry() -> None:
    header = decode_header(encode_header(HEADER), file_bytes=HEADER.file_bytes)
    assert header == HEADER
    assert header.offset(1, 17) == HEADER_BYTES + 16 * RECORD_BYTES


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [(0, b"TIDEGAUX", "magic"), (8, struct.pack("<I", 2), "version"), (12, struct.pack("<I", 8192), "geometry"),
     (20, struct.pack("<I", 0), "geometry"), (20, struct.pack("<I", 1 << 30), "geometry"),
     (24, struct.pack("<I", 65), "geometry"), (20, struct.pack("<I", 17), "truncated")],
)  # fmt: skip
def test_damaged_header_names_its_reason(offset: int, value: bytes, reason: str) -> None:
    page = bytearray(encode_header(HEADER))
    page[offset : offset + len(value)] = value
    with pytest.raises(LayoutError) as caught:
        decode_header(bytes(page), file_bytes=HEADER.file_bytes)
    assert caught.value.reason == reason


def test_identity_comes_back_as_it_was() -> None:
    identity = IDENTITY._replace(
        device_uuids=(DeviceUuid("GPU-1"), DeviceUuid("GPU-2")), limit_fraction=0.5, job_name="résumé 2", run_id="r",
        checkpoint="signal", gpu_share=0.25, attempts_each=4,
    )  # fmt: skip
    assert decode_identity(bytes(page_with(identity))) == identity


def test_an_older_ring_without_the_later_fields_is_read() -> None:
    older = IDENTITY._replace(attempts_each=None)  # type: ignore[arg-type]  # what is None is not written
    identity = decode_identity(bytes(page_with(older)))
    assert identity is not None
    assert (identity.checkpoint, identity.gpu_share, identity.attempts_each) == (None, None, 1)


def test_a_way_of_a_later_version_is_no_way_for_this_one() -> None:
    identity = decode_identity(bytes(page_with(IDENTITY._replace(checkpoint="telepathy"))))
    assert identity is not None
    assert identity.checkpoint is None


def test_the_ways_are_those_of_the_actions() -> None:
    assert set(CHECKPOINT_WAYS) == {way.value for way in CheckpointWay}


def test_identity_is_unreadable_while_its_generation_is_odd() -> None:
    assert decode_identity(bytes(page_with(IDENTITY, generation=3))) is None


@given(st.lists(st.text(max_size=3000), min_size=3, max_size=3))
def test_identity_of_any_length_fits_its_page(texts: list[str]) -> None:
    identity = IDENTITY._replace(job_name=texts[0], alloc_conf=texts[1], run_id=texts[2])
    assert len(encode_identity(identity, generation=2)) <= MAX_IDENTITY_BYTES + 12


@pytest.mark.parametrize(
    "wrong",
    [{"rank": 8}, {"rank": -1}, {"world_size": 0}, {"job_id": ""}, {"job_id": "a\nb"}, {"limit_fraction": 0.0},
     {"limit_fraction": float("nan")}, {"attempt": True}, {"hostname": 7}, {"device_uuids": "GPU-1"},
     {"gpu_share": 0.0}, {"gpu_share": 1.5}, {"gpu_share": True}, {"gpu_share": "1/4"}, {"checkpoint": 1},
     {"checkpoint": "a\nb"}, {"attempts_each": 0}, {"attempts_each": "4"}, {"attempts_each": 1 << 40}],
)  # fmt: skip
def test_identity_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    page = page_with(IDENTITY._replace(**wrong))  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(LayoutError) as caught:
        decode_identity(bytes(page))
    assert caught.value.reason == "identity"


@pytest.mark.parametrize(
    "text",
    [b"[]", b"null", b"7", b'"job"', b"[1, 2]", b"{", b"{}", b"\xff", b'{"job_id": "a", "world_size": []}',
     b'{"job_id": {}, "world_size": 1}', b'{"job_id": "a", "world_size": 1, "device_uuids": {}}',
     b'{"job_id": "a", "world_size": 1, "device_uuids": [[]]}',
     b'{"job_id": "a", "world_size": 1, "attempt": 0, "rank": 0, "local_rank": 0, "checkpoint": []}',
     b'{"job_id": "a", "world_size": 1, "limit_fraction": {}}', b"[" * 3000 + b"]" * 400],
    ids=lambda text: text[:60].decode(errors="replace"),
)  # fmt: skip
def test_json_that_is_no_identity_is_refused(text: bytes) -> None:
    page = bytearray(encode_header(HEADER))
    block = struct.pack("<III", 2, len(text), zlib.crc32(text)) + text
    page[IDENTITY_OFFSET : IDENTITY_OFFSET + len(block)] = block
    with pytest.raises(LayoutError) as caught:
        decode_identity(bytes(page))
    assert caught.value.reason == "identity"
