"""Whatever bytes come over a connection to the HTTP API: an answer with a status that it knows, or none at all."""

from __future__ import annotations

import contextlib
import json
import re
import socket

from fuzz.oracles import require
from fuzz.target import Target
from loop_store import told_store
from tidegauge.cluster.api.http_api import HttpApi, html_route, json_route
from tidegauge.cluster.api.loop_api import loop_routes
from tidegauge.cluster.api.memory_api import evidence_routes
from tidegauge.cluster.api.record_api import RecordPages
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.http.served_hosts import ServedHosts
from tidegauge.http.server import Response

STATUSES = frozenset({200, 400, 401, 403, 404, 405, 408, 414, 421, 429, 431, 501, 503, 505})
"""500 is none of them: it says that a page failed."""
TIMEOUT_S = 20.0
_WELL_FORMED = re.compile(rb"(?:GET|HEAD) /[!-~]{0,500} HTTP/1\.[01]\r\n(?:[A-Za-z]{1,20}: [ -~]{0,80}\r\n){0,9}\r\n")

_STORE = told_store()
_API = HttpApi(
    {
        **loop_routes(lambda: _STORE, lambda: LoopStatus("act", None)),
        **RecordPages(lambda: _STORE).routes(),
        **evidence_routes(lambda: _STORE),
        "/report": html_route(lambda request: f"<p>{request.number('incident', default=0)}"),
        "/healthz": lambda _: Response(b"ok\n", "text/plain; charset=utf-8"),
        "/echo": json_route(lambda request: {**request.query, "text": request.text("text", most_chars=100)}),
    },
    host="127.0.0.1",
    port=0,
    hosts=ServedHosts("head"),
)
_API.start()


def one(data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", _API.port), timeout=TIMEOUT_S) as client:
        answer = _exchange(client, data)
    if not answer:
        require(_WELL_FORMED.fullmatch(data) is None, "a request without an answer")
        return  # not even a request line
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/"):
        return  # HTTP/0.9, or the error page of a request that has no version
    status = int(head.split(b" ", 2)[1])
    require(status in STATUSES, f"status {status} for {data[:80]!r}")
    fields = {line.partition(b":")[0].lower(): line.partition(b":")[2].strip() for line in head.split(b"\r\n")[1:]}
    require(
        b"x-content-type-options" in fields or status in (400, 405, 414, 431, 501, 505), "a page without its headers"
    )
    if fields.get(b"content-type") == b"application/json" and body:
        require(isinstance(json.loads(body), dict), "JSON that is no object")


def _exchange(client: socket.socket, data: bytes) -> bytes:
    """All that comes back until the server closes, which it does at the end of what it is sent."""
    try:
        client.sendall(data)
        with contextlib.suppress(OSError):  # refused and gone already
            client.shutdown(socket.SHUT_WR)
        got = b""
        while True:
            piece = client.recv(1 << 16)
            if not piece:
                return got
            got += piece
    except (ConnectionResetError, BrokenPipeError):
        return b""


def seeds() -> list[bytes]:
    paths = (
        b"/healthz", b"/api/v1/incidents?all=1&limit=5", b"/api/v1/incident?number=1", b"/report?incident=1",
        b"/nowhere", b"/api/v1/evidence?job_id=4711&attempt=0&uid=1001", b"/echo?text=%F0%9F%98%80&a=b&a=c",
        b"/api/v1/decisions?since=-1",
    )  # fmt: skip
    return [b"GET %s HTTP/1.1\r\nHost: head\r\nAccept: */*\r\nConnection: close\r\n\r\n" % path for path in paths] + [
        b"GET //[ HTTP/1.1\r\n\r\n"
    ]


_WORDS = (
    b"HTTP/1.1", b"HTTP/9.9", b"\r\n", b"\r\n\r\n", b"GET ", b"HEAD ", b"POST ", b"Content-Length: 99999999999\r\n",
    b"%00", b"%ff", b"//[", b"http://[::1", b"?", b"&", b"limit=", b"999999999999999",
    b"Transfer-Encoding: chunked\r\n", b"Authorization: Basic ", b"Authorization: Bearer ",
    b"Expect: 100-continue\r\n", b"\0", b"../", b"text=" + b"%41" * 200, b"Accept: ", b"since=", b"\xd9\xa3",
)  # fmt: skip
TARGET = Target(one, seeds, words=_WORDS, most_bytes=1 << 14, most_s=5.0, most_new_bytes=4 << 30, sandboxed=False)
