"""Connections that say nothing, drip, or do not speak TLS: over real sockets, for all servers that stand on it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from sample_views import node_view
from tidegauge.cluster.api.http_api import HttpApi, json_route
from tidegauge.cluster.api.route_access import Access
from tidegauge.http import server as guarded_server
from tidegauge.http.access import OPEN_DOOR, Door, LoginDoor, Refusal
from tidegauge.http.connections import ServerLimits
from tidegauge.http.door_start import ClosedDoor, open_door
from tidegauge.http.server import MAX_HEADER_BYTES, App, HttpRequest, HttpServer, Response
from tidegauge.settings import Settings
from tidegauge_exporter.metrics.server import MetricsServer
from tidegauge_exporter.notify.receiver import Receiver
from waiting import PATIENCE_S
from web_certificates import Authority


def page(request: HttpRequest) -> Response | Refusal:
    """``/`` is short, ``/endless`` longer than the buffers of its sockets, and ``/body`` tells what was sent there."""
    if request.path == "/body":
        body = request.body(1000, "send less")
        return body if isinstance(body, Refusal) else Response(body)
    return Response(b"x" * (64 << 20) if request.path == "/endless" else b"ok")


def app(limits: ServerLimits) -> App:
    return App({("GET", None): page, ("POST", None): page}, limits, "test")


@contextlib.contextmanager
def running(limits: ServerLimits, door: Door = OPEN_DOOR, *, look_s: float = 0.02) -> Iterator[HttpServer]:
    server = HttpServer(app(limits), door=door)
    with patch.object(guarded_server, "LOOK_S", look_s):
        server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def serving(limits: ServerLimits, door: Door = OPEN_DOOR, *, look_s: float = 0.02) -> Iterator[int]:
    with running(limits, door, look_s=look_s) as server:
        yield server.port


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still while room is made turns nobody away."""
    monkeypatch.setattr(guarded_server, "MAKE_ROOM_TIMEOUT_S", 60.0)


class Tls:
    """A door with TLS, and a client's side of it."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.authority = Authority(folder)
        self.authority.issue("node7", "127.0.0.1", "node7")
        self.web = folder / "web.yml"
        self.web.write_text(f"tls_server_config: {{cert_file: node7.pem, key_file: node7.key{more}}}\n")
        self.door = open_door(Settings(web_config_file=self.web), what="a test")

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority.certificate)


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(tmp_path)


def ask(port: int, context: ssl.SSLContext | None = None, path: str = "/") -> tuple[int, bytes]:
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def silent(port: int, count: int) -> contextlib.ExitStack:
    """So many connections on which nothing is said."""
    stack = contextlib.ExitStack()
    for _ in range(count):
        stack.enter_context(connected(port))
    return stack


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has hung up, waiting for it."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_silent_clients_lock_nobody_out() -> None:
    with serving(ServerLimits(4, ask_within_s=60, whole_s=60)) as port, silent(port, 40):
        assert ask(port) == (200, b"ok")


def test_clients_that_never_shake_hands_lock_nobody_out(tls: Tls) -> None:
    with serving(ServerLimits(4, ask_within_s=60, whole_s=60), tls.door) as port, silent(port, 40):
        assert ask(port, tls.client()) == (200, b"ok")


def test_a_handshake_has_to_end_in_time(tls: Tls) -> None:
    with serving(ServerLimits(4, ask_within_s=0.1, whole_s=60), tls.door) as port, connected(port) as connection:
        assert is_closed(connection)


def test_guarded_server_stops_without_waiting_for_its_next_check() -> None:
    with serving(ServerLimits(4, ask_within_s=60, whole_s=60), look_s=3600.0) as port:
        assert ask(port) == (200, b"ok")


@pytest.mark.parametrize("start", [b"GET / HTTP/1.0\r\nX: ", b"POST /body HTTP/1.0\r\nContent-Length: 1000\r\n\r\n"])
def test_a_client_that_drips_bytes_has_to_end_its_request_in_time(start: bytes) -> None:
    """No silence is as long as a socket's timeout, so that only the limit over all bytes ends it."""
    with serving(ServerLimits(4, ask_within_s=0.5, whole_s=60)) as port, connected(port) as connection:
        connection.sendall(start)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                connection.sendall(b"x")
                time.sleep(0.01)


def test_a_body_that_does_not_come_gives_its_place_to_whoever_asks() -> None:
    with serving(ServerLimits(1, ask_within_s=60, whole_s=60)) as port, connected(port) as connection:
        connection.sendall(b"POST /body HTTP/1.0\r\nContent-Length: 9\r\n\r\n")
        assert ask(port) == (200, b"ok")
        assert is_closed(connection)


def test_a_body_is_bounded_and_whole() -> None:
    with serving(ServerLimits(4, ask_within_s=60, whole_s=60)) as port:
        for length, sent, told in [
            (b"1000", b"x" * 1000, b" 200 "), (b"1001", b"", b" 413 "), (b"9" * 30, b"", b" 413 "),
            (b"-1", b"", b" 411 "), (b"\xd9\xa3", b"", b" 411 "), (b"9", b"12345678", b""),
        ]:  # fmt: skip
            with connected(port) as connection:
                connection.sendall(b"POST /body HTTP/1.0\r\nContent-Length: " + length + b"\r\n\r\n" + sent)
                connection.shutdown(socket.SHUT_WR)
                assert told in connection.recv(20)
                assert told or is_closed(connection)


def test_a_method_without_a_route_is_not_implemented() -> None:
    with serving(ServerLimits(4, ask_within_s=60, whole_s=60)) as port, connected(port) as connection:
        connection.sendall(b"PUT / HTTP/1.0\r\n\r\n")
        assert b" 501 " in connection.recv(100)


def test_guarded_server_at_its_limit_queues_a_connection_only_if_configured() -> None:
    for queues, answer in ((True, b"HTTP/1.0 200"), (False, b"")):
        limits = ServerLimits(1, ask_within_s=60, whole_s=0.5 if queues else 60, queues=queues)
        with running(limits) as server, connected(server.port) as slow:
            slow.sendall(b"GET /endless HTTP/1.0\r\n\r\n")
            assert slow.recv(12) == b"HTTP/1.0 200"
            with connected(server.port) as other:
                with contextlib.suppress(OSError):
                    other.sendall(b"GET / HTTP/1.0\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):
                    assert other.recv(12) == answer


def test_guarded_server_stops_while_a_connection_is_queued() -> None:
    limits = ServerLimits(1, ask_within_s=60, whole_s=60, queues=True)
    with running(limits) as server, connected(server.port) as slow:
        slow.sendall(b"GET /endless HTTP/1.0\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.0 200"
        with connected(server.port) as other:
            other.sendall(b"GET / HTTP/1.0\r\n\r\n")
            server.stop()
            assert is_closed(other)


def test_a_client_that_does_not_read_has_to_end_in_time() -> None:
    with running(ServerLimits(4, ask_within_s=60, whole_s=3)) as server, connected(server.port) as connection:
        connection.sendall(b"GET /endless HTTP/1.0\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.0 200"
        assert server.connections.drain(PATIENCE_S)


def test_headers_without_end_are_not_read_to_the_end() -> None:
    line = b"X: " + b"x" * 60_000 + b"\r\n"
    with serving(ServerLimits(4, ask_within_s=60, whole_s=60)) as port:
        with connected(port) as connection:
            with contextlib.suppress(OSError):
                for part in [b"GET / HTTP/1.0\r\n", *[line] * (2 + MAX_HEADER_BYTES // len(line)), b"\r\n"]:
                    connection.sendall(part)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""
        assert ask(port) == (200, b"ok")


def test_plain_http_to_a_tls_port_gets_no_answer_and_ends_nothing(tls: Tls) -> None:
    with serving(ServerLimits(4, ask_within_s=60, whole_s=60), tls.door) as port:
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(port)
        assert ask(port, tls.client())[0] == 200


def test_a_renewed_certificate_is_shown_to_the_next_client(tls: Tls) -> None:
    with serving(ServerLimits(4, ask_within_s=60, whole_s=60), tls.door) as port:
        shown = [ssl.get_server_certificate(("127.0.0.1", port))]
        tls.authority.issue("node7", "127.0.0.1")
        shown.append(ssl.get_server_certificate(("127.0.0.1", port)))
        assert shown[0] != shown[1]
        assert ask(port, tls.client())[0] == 200


def test_while_a_file_is_broken_from_the_start_connections_are_closed_without_a_word(tls: Tls) -> None:
    good = tls.web.read_text()
    tls.web.write_text("tls_server_config: {cert_file: none.pem, key_file: none.key}")
    now_s = [0.0]
    door = ClosedDoor(Settings(web_config_file=tls.web), "", monotonic_s=lambda: now_s[0])
    with serving(ServerLimits(4, ask_within_s=60, whole_s=60), door) as port:
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(port)
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(port, tls.client())
        tls.web.write_text(good)
        now_s[0] += 1.0
        assert ask(port, tls.client())[0] == 200


CLIENTS = ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: test-authority.pem"


def test_guarded_server_accepts_only_client_certificates_of_its_authority(tmp_path: Path) -> None:
    tls = Tls(tmp_path, CLIENTS)
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").issue("mallory")
    ours = tls.authority.issue("prometheus")
    with serving(ServerLimits(4, ask_within_s=60, whole_s=60), tls.door) as port:
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(port, tls.client())
        for pair, comes_in in ((stranger, False), (ours, True)):
            context = tls.client()
            context.load_cert_chain(pair.certificate, pair.key)
            if comes_in:
                assert ask(port, context) == (200, b"ok")
            else:
                with pytest.raises((http.client.HTTPException, OSError)):
                    ask(port, context)


@pytest.mark.parametrize(
    ("san", "comes_in"),
    [
        ("prometheus.example", True), ("10.1.2.3", True), ("2001:db8::1", True), ("ops@example.org", True),
        ("spiffe://example/prometheus", True), ("evil-prometheus.example", False), ("10.1.2.4", False),
    ],
)  # fmt: skip
def test_a_clients_certificate_has_to_name_one_of_the_allowed(tmp_path: Path, san: str, comes_in: bool) -> None:
    allowed = "[prometheus.example, 10.1.2.3, '2001:db8::1', ops@example.org, 'spiffe://example/prometheus']"
    tls = Tls(tmp_path, f"{CLIENTS}, client_allowed_sans: {allowed}")
    context, pair = tls.client(), tls.authority.issue("client", san)
    context.load_cert_chain(pair.certificate, pair.key)
    with serving(ServerLimits(4, ask_within_s=60, whole_s=60), tls.door) as port:
        if comes_in:
            assert ask(port, context) == (200, b"ok")
        else:
            with pytest.raises((http.client.HTTPException, OSError)):
                ask(port, context)


def _api(door: LoginDoor) -> tuple[Callable[[], None], Callable[[], int], Callable[[], None]]:
    api = HttpApi(
        {"/healthz": json_route(lambda _: "ok")}, host="127.0.0.1", port=0, door=door, access={"/healthz": Access.OPEN}
    )
    return api.start, lambda: api.port, api.stop


def _metrics(door: Door) -> tuple[Callable[[], None], Callable[[], int], Callable[[], None]]:
    server = MetricsServer(node_view, door=door)
    return server.start, lambda: server.port, server.stop


def _alerts(door: Door) -> tuple[Callable[[], None], Callable[[], int], Callable[[], None]]:
    receiver = Receiver(lambda _: None, door=door)
    return receiver.start, lambda: receiver.port, receiver.stop


@pytest.mark.slow
@pytest.mark.parametrize("open_server", [_api, _metrics, _alerts])
def test_every_server_speaks_tls_while_silent_clients_hold_its_connections(
    tls: Tls, open_server: Callable[[Door], tuple[Callable[[], None], Callable[[], int], Callable[[], None]]]
) -> None:
    start, port, stop = open_server(tls.door)
    start()
    try:
        with silent(port(), 100):
            assert ask(port(), tls.client(), "/healthz")[0] == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(port(), None, "/healthz")
    finally:
        stop()
