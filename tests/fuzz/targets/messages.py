"""Messages between nodes: the bytes of one, and any text behind a header that fits it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from fuzz.oracles import require
from fuzz.target import Target
from protocol_forms import full
from tidegauge.core.wire import to_wire, wire_json
from tidegauge.protocol.coding import HEADER, MAGIC, ProtocolError, decode, encode
from tidegauge.protocol.messages import MESSAGES, VERSION


def messages(data: bytes) -> None:
    """Only ``ProtocolError``, in few words; what is understood comes back as it was."""
    for name, form in MESSAGES.items():
        _one(form, data)
        _one(form, HEADER.pack(MAGIC, *VERSION, name.encode(), len(data)) + zlib.compress(data, 1))


def _one(form: type, data: bytes) -> None:
    try:
        received: Any = decode(form, data)
    except ProtocolError as error:
        require(len(str(error)) < 1000 and str(error).isprintable(), "words that nobody can read")
        return
    require(received.left_out is None or len(received.left_out) < 2000, "too many words on what was left out")
    again = encode(received.message)
    require(encode(decode(form, again).message) == again, f"a {form.__name__} does not come back as it was")


def _seeds() -> Iterable[bytes]:
    for form in MESSAGES.values():
        yield encode(full(form))
        yield wire_json(to_wire(full(form)))


TARGET = Target(
    messages, lambda: list(_seeds()),
    words=(
        MAGIC, b"report", b"null", b"NaN", b"1e999", b"9" * 30, b"\\ud800", b"true", b"[" * 600, b"{}", b"[]",
        b'"leak"', b'"node_id":', b'"evidence":[', b'"orders":[', b'"by_category":{', b'"process_bytes":{"1":',
    ),
)  # fmt: skip
