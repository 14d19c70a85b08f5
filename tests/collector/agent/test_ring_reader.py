from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_node import STEP_S, FakeClock, FakeRank, identity
from tidegauge.agent.rings.reader import (
    MAX_LOST_PER_READ,
    MAX_RECORDS_PER_READ,
    MAX_SANE,
    RingBlankError,
    RingReader,
)
from tidegauge.core.ring_layout import HEADER_BYTES, IDENTITY_OFFSET, MAGIC, RECORD_BYTES, LayoutError, encode_record
from tidegauge.core.samples import RecordKind, Sample


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def make_rank(folder: Path, *, capacity: int = 64, devices: int = 1) -> FakeRank:
    return FakeRank(folder, FakeClock(), capacity=capacity, devices=devices)


def seqs(samples: list[Sample]) -> list[int]:
    return [sample.seq for sample in samples]


def test_reads_each_record_once(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        assert reader.read() == []
        written = [rank.record(), rank.record()]
        assert reader.read() == written
        written = [rank.record()]
        assert reader.read() == written
        assert reader.read() == []


def test_reads_what_was_written_before_it_came(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    written = [rank.record() for _ in range(40)]
    with opened(rank.path) as fd:
        assert RingReader(fd).read() == written


@pytest.mark.parametrize("records", [63, 64, 65, 100, 128, 129, 1000])
def test_begins_a_wrapped_ring_at_its_oldest_record(tmp_path: Path, records: int) -> None:
    rank = make_rank(tmp_path)
    for _ in range(records):
        rank.record()
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        assert reader.newest_when_opened == (records,)
        assert seqs(reader.read()) == list(range(max(1, records - 63), records + 1))
        assert reader.lost_records == 0


@given(capacity=st.integers(1, 70), bursts=st.lists(st.integers(0, 200), max_size=8))
def test_every_record_is_read_or_counted_as_lost(
    tmp_path_factory: pytest.TempPathFactory, capacity: int, bursts: list[int]
) -> None:
    rank = make_rank(tmp_path_factory.mktemp("run"), capacity=capacity)
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        read: list[int] = []
        for burst in bursts:
            for _ in range(burst):
                rank.record()
            read += seqs(reader.read())
        assert read == sorted(set(read))
        assert len(read) + reader.lost_records == rank.seq[0]
        assert not rank.seq[0] or read[-1] == rank.seq[0] or bursts[-1] == 0


def test_keeps_devices_apart(tmp_path: Path) -> None:
    rank = make_rank(tmp_path, devices=3)
    one, two = rank.record(device=2), rank.record(device=0)
    with opened(rank.path) as fd:
        assert RingReader(fd).read() == [two, one]


@pytest.mark.parametrize("capacity", [16, 4096], ids=["a page", "a MiB"])
def test_a_device_that_is_used_late_is_read_at_once(tmp_path: Path, capacity: int) -> None:
    rank = make_rank(tmp_path, devices=8, capacity=capacity)
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        for device in (3, 7, 0):
            first = rank.record(device=3)
            assert reader.read() == [first]
            assert reader.read() == []
            late = rank.record(device=device)
            assert reader.read() == [late]


def test_a_device_is_read_late_although_its_file_has_no_holes(tmp_path: Path) -> None:
    rank = make_rank(tmp_path, devices=2, capacity=16)
    with opened(rank.path) as fd:
        with rank.path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, rank.header.file_bytes)
        reader = RingReader(fd)
        assert reader.read() == reader.read() == []
        written = rank.record(device=1)
        assert reader.read() == [written]


def test_a_page_that_was_there_before_its_record_is_read(tmp_path: Path) -> None:
    rank = make_rank(tmp_path, devices=3, capacity=16)
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        assert reader.read() == []
        rank.write(rank.header.offset(1, 1), b"\0")
        assert reader.read() == reader.read() == []
        written = rank.record(device=1)
        assert reader.read() == [written]


def test_waits_for_a_record_that_is_half_written(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        whole = encode_record(rank.record())
        rank.write(rank.header.offset(0, 1) + 100, bytes(156))
        assert reader.read() == []
        rank.write(rank.header.offset(0, 1), whole)
        assert seqs(reader.read()) == [1]
        assert reader.lost_records == 0


def test_steps_over_a_damaged_record_and_counts_it(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        for _ in range(3):
            rank.record()
        rank.write(rank.header.offset(0, 2) + 50, b"\xff")
        assert seqs(reader.read()) == [1, 3]
        assert reader.lost_records == 1


def test_finds_the_end_of_a_ring_with_a_damaged_first_record(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    for _ in range(20):
        rank.record()
    rank.write(rank.header.offset(0, 1) + 50, b"\xff")
    with opened(rank.path) as fd:
        assert RingReader(fd).newest_when_opened == (20,)


def test_ring_reader_bounds_one_read_and_continues_at_the_next(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        for _ in range(60):
            rank.record()
        assert seqs(reader.read(25)) == list(range(1, 26))
        assert seqs(reader.read(100)) == list(range(26, 61))


@pytest.mark.parametrize("step_s", [0.005, 0.010, 0.012])
def test_of_quick_steps_some_twenty_five_a_second_are_read_and_none_is_lost(tmp_path: Path, step_s: float) -> None:
    rank = make_rank(tmp_path, capacity=4096)
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        seconds = int(2000 * step_s)
        read: list[int] = []
        for number in range(1, 2001):
            rank.clock.pass_s(step_s - STEP_S)
            rank.record()
            if number % 40 == 0:
                read += seqs(reader.read())
                assert read[-1] == number
        assert 15 * seconds < len(read) < 40 * seconds
        assert reader.lost_records == 0
        gaps = {after - before for before, after in itertools.pairwise(read)}
        assert len(gaps) > 2


def test_ticks_and_events_are_read_however_quick_they_come(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    kinds = [RecordKind.STEP, RecordKind.TICK, RecordKind.STEP, RecordKind.EVENT, RecordKind.STEP, RecordKind.STEP]
    for kind in kinds:
        rank.clock.pass_s(-STEP_S)
        rank.record(kind=kind)
    with opened(rank.path) as fd:
        assert seqs(RingReader(fd).read()) == [1, 2, 4, 6]


def test_a_late_reader_takes_no_more_than_one_read_of_history(tmp_path: Path) -> None:
    rank = make_rank(tmp_path, capacity=2 * MAX_RECORDS_PER_READ)
    rank.seq[0] = 3 * MAX_RECORDS_PER_READ
    record = rank.record()
    for seq in range(1, rank.header.capacity + 1):
        at = rank.seq[0] - rank.header.capacity + seq
        rank.write(rank.header.offset(0, at), encode_record(record._replace(seq=at)))
    with opened(rank.path) as fd:
        read = RingReader(fd).read(10)
    assert read[0].seq == rank.seq[0] - MAX_RECORDS_PER_READ + 1


def test_a_reader_that_was_lapped_goes_on_with_the_oldest_record_left(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        for _ in range(64 + 40):
            rank.record()
        assert seqs(reader.read()) == list(range(41, 105))
        assert reader.lost_records == 40


def test_identity_is_taken_up_when_it_is_complete_and_when_it_changes(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    rank.write(IDENTITY_OFFSET, b"\1\0\0\0")  # an odd generation: being written
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        assert reader.identity is None
        rank.publish(identity(attempt=3))
        reader.read()
        assert reader.identity == identity(attempt=3)
        rank.write(IDENTITY_OFFSET, b"\5\0\0\0")
        reader.read()
        assert reader.identity == identity(attempt=3)


@pytest.mark.parametrize("size", [HEADER_BYTES - 1, HEADER_BYTES + RECORD_BYTES])
def test_a_file_cut_below_us_is_truncated(tmp_path: Path, size: int) -> None:
    rank = make_rank(tmp_path)
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        os.truncate(rank.path, size)
        with pytest.raises(LayoutError) as caught:
            reader.read()
        assert caught.value.reason == "truncated"


def test_a_header_that_changes_is_another_ring(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        rank.write(len(MAGIC) + 30, b"\x77")
        with pytest.raises(LayoutError) as caught:
            reader.read()
        assert caught.value.reason == "replaced"


@pytest.mark.parametrize("content", [b"", bytes(8), bytes(HEADER_BYTES)])
def test_a_file_without_its_first_bytes_is_blank(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ring").write_bytes(content)
    with opened(tmp_path / "ring") as fd, pytest.raises(RingBlankError):
        RingReader(fd)


@pytest.mark.parametrize(
    "lie",
    [
        {"allocated_bytes": MAX_SANE + 1},
        {"reserved_bytes": (1 << 64) - 2},
        {"active_bytes": MAX_SANE + 1},
        {"step": 1 << 60},
        {"ooms": 1 << 63},
        {"device": 1},
    ],
    ids=str,
)
def test_figures_that_cannot_be_true_are_refused_and_counted(tmp_path: Path, lie: dict[str, int]) -> None:
    rank = make_rank(tmp_path)
    sample = rank.record()
    lying = sample._replace(**lie)  # type: ignore[arg-type] # SAFETY: the names above are fields of whole numbers
    rank.write(rank.header.offset(0, 1), encode_record(lying))
    good = rank.record()
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        assert reader.read() == [good]
        assert reader.refused_records == 1


def test_a_jump_of_the_sequence_loses_a_bounded_number(tmp_path: Path) -> None:
    rank = make_rank(tmp_path)
    with opened(rank.path) as fd:
        reader = RingReader(fd)
        sample = rank.record()
        reader.read()
        far = (1 << 40) + 2  # lies in the slot of record 2
        rank.write(rank.header.offset(0, far), encode_record(sample._replace(seq=far)))
        assert seqs(reader.read()) == [far]
        assert reader.lost_records == MAX_LOST_PER_READ


@given(content=st.binary(max_size=3 * HEADER_BYTES), keep_header=st.booleans())
def test_random_bytes_are_refused_or_say_nothing(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, keep_header: bool
) -> None:
    rank = make_rank(tmp_path_factory.mktemp("run"), capacity=16, devices=2)
    at = IDENTITY_OFFSET if keep_header else 0
    rank.write(at, content)
    with opened(rank.path) as fd:
        try:
            reader = RingReader(fd)
            assert reader.read() == []
        except (LayoutError, RingBlankError):
            pass


@given(
    flips=st.lists(
        st.tuples(st.integers(0, HEADER_BYTES + 2 * 16 * RECORD_BYTES - 1), st.integers(1, 255)), max_size=12
    )
)
def test_flipped_bits_lose_records_but_invent_none(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    rank = make_rank(tmp_path_factory.mktemp("run"), capacity=16, devices=2)
    written = {(0, s): rank.record(device=0) for s in range(1, 25)} | {
        (1, s): rank.record(device=1) for s in range(1, 9)
    }
    content = rank.path.read_bytes()
    for at, bits in flips:
        rank.write(at, bytes([content[at] ^ bits]))
    with opened(rank.path) as fd:
        try:
            reader = RingReader(fd)
            read = reader.read()
        except (LayoutError, RingBlankError):
            return
        assert all(written[sample.device, sample.seq] == sample for sample in read)
        assert reader.lost_records <= 2 * 16
