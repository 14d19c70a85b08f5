"""Rings that earlier probes wrote, read by this agent; and rings of a probe that is newer than this agent."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import upgrade_fixtures as fixtures
from fake_node import FakeClock, FakeRank
from tidegauge.agent.rings.reader import RingReader
from tidegauge.core.ids import RankIdentity
from tidegauge.core.ring_layout import (
    HEADER_BYTES,
    IDENTITY_OFFSET,
    LAYOUT_VERSION,
    RECORD_BYTES,
    LayoutError,
    decode_header,
    decode_identity,
    decode_record,
)
from tidegauge.core.samples import Sample
from upgrade_fixtures import RELEASES

VERSION = struct.Struct("<I")
VERSION_AT = len(b"TIDEGAUG")
KIND_AT = 24
"""Of a record's kind in its 256 bytes: behind seq, wall and monotonic time."""
CRC_AT = RECORD_BYTES - 4


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(release: str, tmp_path: Path) -> Path:
    path = tmp_path / "1-1.ring"
    path.write_bytes(fixtures.ring(release))
    return path


@pytest.fixture
def reader(path: Path) -> Iterator[RingReader]:
    with path.open("rb") as file:
        yield RingReader(file.fileno())


def test_every_record_says_what_the_old_reader_said(release: str, path: Path) -> None:
    content, said = path.read_bytes(), fixtures.ring_as_said(release)
    header = decode_header(content[:HEADER_BYTES], file_bytes=len(content))
    assert header._asdict() == said["header"]
    for old in said["samples"]:
        at = header.offset(old["device"], old["seq"])
        sample = decode_record(content[at : at + RECORD_BYTES])
        assert sample is not None
        assert {name: getattr(sample, name) for name in old} == old


def test_the_identity_is_what_it_was_and_news_take_their_defaults(release: str, path: Path) -> None:
    said = fixtures.ring_as_said(release)["identity"]
    identity = decode_identity(path.read_bytes()[:HEADER_BYTES])
    assert identity is not None
    assert _plain(identity, said) == said
    news = set(RankIdentity._fields) - set(said)
    assert {name: getattr(identity, name) for name in news} == {
        name: RankIdentity._field_defaults[name] for name in news
    }


def test_the_agents_reader_takes_it_in(release: str, reader: RingReader) -> None:
    said = {(old["device"], old["seq"]): old for old in fixtures.ring_as_said(release)["samples"]}
    samples = reader.read()
    assert reader.identity is not None
    assert (reader.seen_records, reader.lost_records, reader.refused_records) == (len(said), 0, 0)
    assert all(_same(sample, said[sample.device, sample.seq]) for sample in samples)
    assert len(samples) > len(said) // 4, "steps in quick succession are left out, and no more than those"


def _same(sample: Sample, old: dict[str, Any]) -> bool:
    return all(getattr(sample, name) == value for name, value in old.items())


def _plain(identity: RankIdentity, said: dict[str, Any]) -> dict[str, Any]:
    return {name: json.loads(json.dumps(getattr(identity, name))) for name in said}


# A probe of tomorrow.


def test_a_newer_layout_is_refused_by_its_version_and_the_message_says_both(path: Path) -> None:
    content = bytearray(path.read_bytes())
    VERSION.pack_into(content, VERSION_AT, LAYOUT_VERSION + 1)
    with pytest.raises(LayoutError, match=rf"version {LAYOUT_VERSION + 1}; this Tidegauge reads version 1") as refused:
        decode_header(bytes(content[:HEADER_BYTES]), file_bytes=len(content))
    assert refused.value.reason == "version"


@pytest.mark.parametrize("at", [KIND_AT, KIND_AT + 2], ids=["kind", "event"])
def test_a_record_of_an_unknown_kind_is_counted_and_the_others_are_read(tmp_path: Path, at: int) -> None:
    rank = FakeRank(tmp_path, FakeClock(), capacity=64)
    written = [rank.record() for _ in range(3)]
    with rank.path.open("r+b") as file:
        file.seek(rank.header.offset(0, 2))
        record = bytearray(file.read(RECORD_BYTES))
        record[at] = 200
        record[CRC_AT:] = struct.pack("<I", zlib.crc32(record[:CRC_AT]))
        file.seek(rank.header.offset(0, 2))
        file.write(record)
    with rank.path.open("rb") as file:
        reader = RingReader(file.fileno())
        assert reader.read() == [written[0], written[2]]
        assert (reader.seen_records, reader.refused_records, reader.lost_records) == (3, 1, 0)


def test_upgrade_ignores_unknown_fields_of_a_newer_identity(path: Path) -> None:
    page = bytearray(path.read_bytes()[:HEADER_BYTES])
    generation, length, _ = struct.unpack_from("<III", page, IDENTITY_OFFSET)
    at = IDENTITY_OFFSET + 12
    fields = json.loads(page[at : at + length]) | {"checkpoint": "telepathy", "colour": "blue"}
    text = json.dumps(fields).encode()
    page[IDENTITY_OFFSET:at] = struct.pack("<III", generation, len(text), zlib.crc32(text))
    page[at : at + len(text)] = text
    identity = decode_identity(bytes(page))
    assert identity is not None
    assert identity.checkpoint is None, "a way that this version could not ask for is none"
    assert identity.job_id == fields["job_id"]
