"""The record of a ``tidegauge run``: read back as written, and refused as a whole where a word of it is impossible."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.launches import (
    MAX_DECISIONS,
    MAX_RECORD_BYTES,
    MAX_TEXT_CHARS,
    LaunchRecord,
    LaunchState,
    decode_launch_record,
    encode_launch_record,
)

RECORD = LaunchRecord(
    ProcessId(12, 345), "job-1", "train", 2, LaunchState.STOPPING, True, False, 0.25, 1.7e9, ("d-1",), ("told",), ("r",)
)

texts = st.text(st.characters(categories=["L", "N", "P"]), max_size=40)


@given(
    st.builds(
        LaunchRecord,
        process=st.builds(ProcessId, st.integers(0, 1 << 22), st.integers(0, 1 << 40)),
        job_id=texts,
        job_name=st.none() | texts,
        restarts=st.integers(0, 1000),
        state=st.sampled_from(LaunchState),
        requeueable=st.booleans(),
        exempt=st.booleans(),
        gpu_share=st.none() | st.floats(0.01, 1.0),
        started_unix_s=st.floats(1.0, 2e9),
        decisions=st.lists(texts, max_size=MAX_DECISIONS).map(tuple),
        messages=st.lists(texts, max_size=5).map(tuple),
        remarks=st.lists(texts, max_size=5).map(tuple),
        exit_status=st.none() | st.integers(-64, 255),
        cancelled=st.booleans(),
    )
)
def test_launch_record_round_trips(record: LaunchRecord) -> None:
    assert decode_launch_record(encode_launch_record(record)) == record


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("process", [1]),
        ("process", ["1", 2]),
        ("process", [True, 2]),
        ("job_id", None),
        ("job_id", "x" * (MAX_TEXT_CHARS + 1)),
        ("job_id", "red\x1b[31m"),
        ("restarts", -1),
        ("exit_status", 256),
        ("exit_status", True),
        ("cancelled", 1),
        ("restarts", 1.5),
        ("restarts", 1 << 40),
        ("state", "flying"),
        ("requeueable", 1),
        ("exempt", "no"),
        ("gpu_share", 0),
        ("gpu_share", 1.01),
        pytest.param("gpu_share", 10**400, id="gpu_share-huge"),
        ("started_unix_s", "now"),
        ("started_unix_s", float("inf")),
        pytest.param("started_unix_s", 10**400, id="started_unix_s-huge"),
        ("decisions", ["d"] * (MAX_DECISIONS + 1)),
        ("decisions", "d-1"),
        ("messages", [None]),
    ],
)
def test_an_impossible_word_makes_it_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=" is "):
        decode_launch_record(json.dumps({**RECORD.as_json(), field: value}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 5000, b'{"a":' + b"1" * MAX_RECORD_BYTES + b"}"])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=" is "):
        decode_launch_record(data)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail_otherwise(data: bytes) -> None:
    with pytest.raises(ValueError, match=" is "):
        decode_launch_record(data)


def test_a_record_of_an_earlier_version_has_no_exit_status() -> None:
    raw = RECORD.as_json()
    del raw["exit_status"], raw["cancelled"]
    assert decode_launch_record(json.dumps(raw).encode()) == RECORD
