"""Slack's WebSocket against a server that speaks the protocol by itself: pieces, bounds, pings, ends."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fakes.socket_mode import CLOSE, PING, TEXT, FakeSocketMode, frame
from tidegauge_exporter.slack.websocket import MAX_MESSAGE_BYTES, WebSocket, WebSocketError
from waiting import PATIENCE_S


@pytest.fixture
def server() -> Iterator[FakeSocketMode]:
    with FakeSocketMode() as running:
        running.greets = False
        yield running


@pytest.fixture
def connection(server: FakeSocketMode) -> Iterator[WebSocket]:
    found = WebSocket(server.url, timeout_s=PATIENCE_S)
    server.wait_for_connection()
    yield found
    found.close()


def test_messages_of_all_sizes_and_in_pieces_arrive_whole_with_pings_between(
    server: FakeSocketMode, connection: WebSocket
) -> None:
    for size in (0, 1, 125, 126, 65_535, 65_536, 200_000):
        server.say("x" * size)
        assert connection.receive(timeout_s=PATIENCE_S) == "x" * size
    server.send("e-1", {"text": "größer" * 100}, pieces=7)
    assert '"e-1"' in (connection.receive(timeout_s=PATIENCE_S) or "")
    server.wait_for_pong()
    connection.send('{"envelope_id": "e-1"}')
    server.wait_for_acknowledgement("e-1")
    connection.send('{"envelope_id": "%s"}' % ("e" * 70_000))
    server.wait_for_acknowledgement("e" * 70_000)


def test_bytes_that_drip_one_by_one_are_a_message_once_all_are_there(
    server: FakeSocketMode, connection: WebSocket
) -> None:
    whole = frame(TEXT, b'{"type": "hello"}') + frame(PING, b"?")
    for byte in whole[:-1]:
        server.send_bytes(bytes([byte]))
    assert connection.receive(timeout_s=PATIENCE_S) == '{"type": "hello"}'
    assert connection.receive(timeout_s=0.01) is None
    server.send_bytes(whole[-1:])
    assert connection.receive(timeout_s=0.05) is None
    server.wait_for_pong()


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("!BBQ", 0x81, 127, 1 << 62),
        struct.pack("!BBQ", 0x81, 127, MAX_MESSAGE_BYTES + 1),
        frame(TEXT, b"x" * MAX_MESSAGE_BYTES, last=False) + frame(0, b"x"),
        bytes([0x89, 126]) + struct.pack("!H", 200) + b"x" * 200,
        frame(0, b"a rest of nothing"),
        frame(TEXT, b"a", last=False) + frame(TEXT, b"b"),
        bytes([0x81, 0x81, 0, 0, 0, 0, 65]),
        bytes([0xC1, 1, 65]),
        frame(0x2, b"binary"),
        frame(TEXT, b"\xff\xfe"),
        frame(CLOSE, struct.pack("!H", 1001)),
    ],
)
def test_what_no_slack_sends_ends_the_connection(server: FakeSocketMode, connection: WebSocket, sent: bytes) -> None:
    server.send_bytes(sent)
    with pytest.raises(WebSocketError):
        connection.receive(timeout_s=PATIENCE_S)


def test_a_connection_that_is_cut_is_noticed_at_once(server: FakeSocketMode, connection: WebSocket) -> None:
    server.cut()
    with pytest.raises(WebSocketError, match="cut"):
        connection.receive(timeout_s=PATIENCE_S)


def test_a_connection_whose_other_side_answers_no_ping_is_dead(server: FakeSocketMode) -> None:
    connection = WebSocket(server.url, timeout_s=PATIENCE_S, ping_every_s=0.05)
    server.wait_for_connection()
    server.answers_pings = False
    with pytest.raises(WebSocketError):
        connection.receive(timeout_s=PATIENCE_S)
    connection.close()


@pytest.mark.parametrize(
    "url",
    ["ws://wss-primary.slack.com/link?ticket=secret", "http://127.0.0.1:9/secret", "ws://127.0.0.1:9/?ticket=secret"],
)
def test_a_connection_that_cannot_be_had_is_told_without_its_ticket(url: str) -> None:
    """Not without TLS to anybody but this machine."""
    with pytest.raises(WebSocketError) as error:
        WebSocket(url, timeout_s=PATIENCE_S)
    assert "secret" not in str(error.value)
    assert error.value.__cause__ is None


def test_a_server_without_tls_is_not_spoken_to_as_if_it_had_it(server: FakeSocketMode) -> None:
    with pytest.raises(WebSocketError):
        WebSocket(server.url.replace("ws://", "wss://"), timeout_s=1.0)


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://ada:s%20x@{proxy}"}, "Basic YWRhOnMgeA=="),
        ({"HTTPS_PROXY": "http://{proxy}", "NO_PROXY": ".slack.invalid"}, None),
        ({"HTTP_PROXY": "http://{proxy}"}, None),
    ],
)
def test_slack_is_reached_by_the_sites_proxy_unless_it_is_excluded(
    environ: dict[str, str], asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY"):
        for one in (name, name.lower()):
            monkeypatch.delenv(one, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name, value in environ.items():
            monkeypatch.setenv(name.lower(), value.format(proxy=f"127.0.0.1:{proxy.getsockname()[1]}"))
        heard: list[str] = []

        def refuse() -> None:
            with suppress(OSError):
                connection, _ = proxy.accept()
                with connection:
                    heard.append(connection.recv(10_000).decode())
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(WebSocketError) as error:
            WebSocket("wss://wss-primary.slack.invalid/link?ticket=secret", timeout_s=PATIENCE_S)
        proxy.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert "secret" not in str(error.value)
    assert [text.split("\r\n")[0] for text in heard] == (
        ["CONNECT wss-primary.slack.invalid:443 HTTP/1.1"]
        if "NO_PROXY" not in environ and "HTTPS_PROXY" in environ
        else []
    )
    assert not asked or f"Proxy-Authorization: {asked}" in heard[0]
