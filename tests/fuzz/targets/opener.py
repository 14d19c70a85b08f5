"""Packets between an agent and its opener, which is root: within the rules, or refused."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress

from fuzz.oracles import require
from fuzz.target import Target
from tidegauge.agent.opening.safe_files import Signature, UnsafeFileError
from tidegauge.agent.opening.wire import (
    Kind,
    OpenerReply,
    OpenerRequest,
    WireError,
    decode_reply,
    decode_request,
    encode_error,
    encode_reply,
    encode_request,
    is_of_a_process,
    is_of_settings,
)


def one(data: bytes) -> None:
    with suppress(WireError):
        request = decode_request(data)
        require(encode_request(request) == data, "a request that does not come back as it was sent")
        require(not set(request.name) & set("/\0\n") and request.name not in (".", ".."), f"a path: {request.name!r}")
        require(not (is_of_a_process(request.name) and is_of_settings(request.name)), f"two names: {request.name!r}")
    with suppress(WireError, OSError, UnsafeFileError):
        decode_reply(data)


def seeds() -> Iterable[bytes]:
    yield b""
    for kind in Kind:
        yield encode_request(OpenerRequest(kind, 1, True, 1000, 4711, 99, 5, 7, "4711-99.ring"))
    yield encode_request(OpenerRequest(Kind.WRITE_SETTINGS, name="4711_3.json", tail=b"{}\n"))
    yield encode_reply(OpenerReply(1000, Signature(1, 2, 3, 4, 5, 6, 7), b"\0" * 16))
    yield encode_error(FileNotFoundError(errno.ENOENT, "gone"))
    yield encode_error(UnsafeFileError("owner", "it belongs to uid 7"))


WORDS = (b"../", b"/etc/shadow", b"..", b"\0/", b".json", b".ring", b".job.sock", b"-", b"\xff" * 8)
TARGET = Target(one, lambda: list(seeds()), words=WORDS, most_bytes=1 << 15)
