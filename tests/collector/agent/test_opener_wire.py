"""Packets between agent and opener: whatever comes, it is a request within the rules or a ``WireError``."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidegauge.agent.opening.safe_files import Signature, UnsafeFileError
from tidegauge.agent.opening.wire import (
    MAX_ENTRIES,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    EntryOfRunDir,
    Kind,
    OpenerReply,
    OpenerRequest,
    OpenerStatus,
    WireError,
    decode_entries,
    decode_reply,
    decode_request,
    decode_status,
    encode_entries,
    encode_error,
    encode_reply,
    encode_request,
    encode_status,
    is_of_a_process,
    is_of_settings,
)
from tidegauge.opener.server import RequestPace

GOOD = encode_request(OpenerRequest(Kind.OPEN, uid=1000, name="1-1.ring"))
NUMBERS = some.integers(0, 2**32 - 1)


@given(some.sampled_from(Kind), NUMBERS, NUMBERS, some.integers(0, 2**64 - 1), some.binary(max_size=100))
def test_opener_request_comes_back_from_its_packet(kind: Kind, uid: int, pid: int, inode: int, tail: bytes) -> None:
    request = OpenerRequest(kind, 1, True, uid, pid, inode, inode, inode, "7-8.evidence.json", tail)
    assert decode_request(encode_request(request)) == request


@given(some.one_of(some.binary(max_size=400), some.binary(min_size=1, max_size=40).map(lambda end: GOOD[:-40] + end)))
def test_opener_request_of_any_bytes_is_within_the_rules_or_refused(data: bytes) -> None:
    try:
        request = decode_request(data)
    except WireError:
        return
    assert request.kind in Kind
    assert not set(request.name) & set("/\0")
    assert request.name not in (".", "..")


@pytest.mark.parametrize("data", [b"", GOOD[:-1], b"\x01" + GOOD[1:], GOOD[:1] + b"\x00" + GOOD[2:], b"x" * 20_000])
def test_opener_request_of_another_version_kind_or_size_is_refused(data: bytes) -> None:
    assert len(GOOD) <= MAX_REQUEST_BYTES
    with pytest.raises(WireError):
        decode_request(data)


def test_opener_entries_of_a_run_directory_come_back_from_their_bytes() -> None:
    entries = [EntryOfRunDir(1000, 2**63, -5, stat.S_IFDIR | 0o700, 1000), EntryOfRunDir(0, 1, 0, 0, 0)]
    assert decode_entries(encode_entries(entries)) == entries
    assert len(encode_reply(OpenerReply(tail=encode_entries(entries[:1] * MAX_ENTRIES)))) <= MAX_REPLY_BYTES
    with pytest.raises(WireError):
        decode_entries(encode_entries(entries)[1:])


def test_opener_status_comes_back_from_its_bytes() -> None:
    status = OpenerStatus(1.5, 2, 3, 0.0, 995, ("/run/tidegauge", "/dev/shm/tidegauge"))
    assert decode_status(encode_status(status)) == status
    with pytest.raises(WireError):
        decode_status(b"")


def test_opener_reply_comes_back_from_its_packet() -> None:
    reply = OpenerReply(4711, Signature(1, 2, 3, 4, 5, 6, 7), b"tail")
    assert decode_reply(encode_reply(reply)) == reply


@pytest.mark.parametrize("set_s", [0, -(10**9), -(2**62), 2**62])
def test_opener_reply_holds_any_time_that_a_user_gives_a_file(tmp_path: Path, set_s: int) -> None:
    """A struct that cannot hold it would end the connection, and the agent would do without the opener."""
    with tempfile.NamedTemporaryFile(dir=shared_memory_or(tmp_path)) as file:
        os.utime(file.fileno(), (0, set_s))
        signature = Signature.of(os.stat(file.name))
    assert decode_reply(encode_reply(OpenerReply(signature=signature))).signature == signature


def shared_memory_or(other: Path) -> Path:
    """Other file systems cut times down to those that they can store."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else other


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError(errno.ENOENT, "x"), FileNotFoundError),
        (ProcessLookupError("made by ourselves"), ProcessLookupError),
        (PermissionError(errno.EACCES, "x"), PermissionError),
        (BlockingIOError(errno.EAGAIN, "x"), BlockingIOError),
        (OSError("of no number"), OSError),
    ],
)
def test_opener_errors_are_raised_again_as_what_they_were(error: OSError, kind: type[OSError]) -> None:
    with pytest.raises(kind):
        decode_reply(encode_error(error))


def test_opener_refusals_keep_their_reason_and_are_cut() -> None:
    with pytest.raises(UnsafeFileError) as refused:
        decode_reply(encode_error(UnsafeFileError("owner", "x" * 5000)))
    assert refused.value.reason == "owner"
    assert 500 < len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("name", "of_a_process", "of_settings"),
    [
        ("1-1.ring", True, False),
        ("1-1.early.snap", True, False),
        ("4711.json", False, True),
        ("4711_3.json", False, True),
        ("..json", False, False),
        ("id_rsa", False, False),
        ("../1-1.ring", False, False),
        ("", False, False),
    ],
)
def test_opener_takes_names_that_probes_and_the_service_make(name: str, of_a_process: bool, of_settings: bool) -> None:
    assert (is_of_a_process(name), is_of_settings(name)) == (of_a_process, of_settings)


def test_request_pace_lets_a_second_of_requests_pass_and_slows_the_rest() -> None:
    pace = RequestPace(per_s=10.0)
    assert [pace.wait_s(100.0) for _ in range(10)] == [0.0] * 10
    assert pace.wait_s(100.0) == pytest.approx(0.1)
    assert pace.wait_s(100.0) == pytest.approx(0.2)
    assert pace.wait_s(200.0) == 0.0
