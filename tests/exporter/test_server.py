from __future__ import annotations

import gzip
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from email.message import Message

import pytest

from exposition_text import OPENMETRICS, parse_openmetrics, parse_text
from sample_views import node_view
from tidegauge.core.views import NodeView
from tidegauge.http import server as guarded_server
from tidegauge.http.access import NO_HEADERS, Refusal, Viewer
from tidegauge_exporter.metrics import server as metrics_server
from tidegauge_exporter.metrics.server import CONNECTIONS_AT_ONCE, MetricsServer
from waiting import PATIENCE_S


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with running(MetricsServer(node_view)) as server:
        yield server


@contextmanager
def running(server: MetricsServer) -> Iterator[MetricsServer]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


def get(server: MetricsServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_metrics_are_text_unless_asked_otherwise(server: MetricsServer) -> None:
    status, headers, body = get(server, "/metrics")
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "tidegauge_rank_leak_state" in {family.name for family in parse_text(body.decode())}


def test_openmetrics_is_given_to_who_asks_for_it(server: MetricsServer) -> None:
    status, headers, body = get(server, "/metrics", Accept=f"{OPENMETRICS},text/plain;version=0.0.4;q=0.5")
    assert status == 200
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert "tidegauge_rank_leak_state" in {family.name for family in parse_openmetrics(body.decode())}


def test_an_answer_is_compressed_for_who_takes_it(server: MetricsServer) -> None:
    _, headers, body = get(server, "/metrics", **{"Accept-Encoding": "gzip"})
    assert headers["content-encoding"] == "gzip"
    assert b"tidegauge_rank_leak_state" in gzip.decompress(body)


def test_metrics_server_serves_a_single_family_on_request(server: MetricsServer) -> None:
    _, _, body = get(server, "/metrics?name[]=tidegauge_rank_leak_state")
    assert {family.name for family in parse_text(body.decode())} == {"tidegauge_rank_leak_state"}


def test_a_view_that_raises_is_still_an_answer() -> None:
    def view() -> NodeView:
        raise RuntimeError("not today")

    with running(MetricsServer(view)) as server:
        status, _, body = get(server, "/metrics")
    assert status == 200
    assert b'tidegauge_collect_success{source="view"} 0.0\n' in body


def test_health_and_a_page_that_links(server: MetricsServer) -> None:
    assert get(server, "/healthz")[::2] == (200, b"ok\n")
    status, _, body = get(server, "/")
    assert status == 200
    assert b'href="metrics"' in body


def test_an_unknown_path_and_an_unknown_method_are_refused(server: MetricsServer) -> None:
    assert get(server, "/etc/passwd")[0] == 404
    assert get(server, "/metrics", method="POST")[0] == 405


def test_the_address_names_the_port_that_was_found(server: MetricsServer) -> None:
    host, _, port = server.address.partition(":")
    assert host == "127.0.0.1"
    assert int(port) == server.port > 0


def test_an_ipv6_address_is_written_in_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    server = MetricsServer(node_view, host="::1")
    try:
        server.start()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    with_port = server.address
    server.stop()
    assert with_port.startswith("[::1]:")


def test_a_port_that_is_taken_is_an_error_for_the_caller(server: MetricsServer) -> None:
    second = MetricsServer(node_view, port=server.port)
    with pytest.raises(OSError, match="in use"):
        second.start()
    second.stop()


def test_a_host_that_is_not_ours_is_an_error_for_the_caller() -> None:
    with pytest.raises(OSError, match="assign"):
        MetricsServer(node_view, host="192.0.2.1").start()


def test_a_stopped_server_frees_its_port_and_stops_only_once() -> None:
    first = MetricsServer(node_view)
    first.start()
    port = first.port
    first.stop()
    first.stop()
    with running(MetricsServer(node_view, port=port)) as second:
        assert get(second, "/healthz")[0] == 200


def test_scrapes_at_once_each_get_a_whole_page(server: MetricsServer) -> None:
    pages: list[bytes] = []
    threads = [threading.Thread(target=lambda: pages.append(get(server, "/metrics")[2])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pages) == 8
    assert all(page.endswith(b'tidegauge_claims_overruled_total{claim="uuid"} 0.0\n') for page in pages)


def test_connections_that_ask_nothing_lock_no_scraper_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine that stands still turns nobody away, and nobody is closed for saying nothing in all that time.
    monkeypatch.setattr(guarded_server, "MAKE_ROOM_TIMEOUT_S", 60.0)
    monkeypatch.setattr(metrics_server, "LIMITS", metrics_server.LIMITS._replace(ask_within_s=300.0))
    with running(MetricsServer(node_view)) as server, ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S))
            for _ in range(CONNECTIONS_AT_ONCE)
        ]
        for connection in silent[::2]:
            connection.sendall(b"GET /metr")
        assert get(server, "/metrics")[0] == 200
        assert silent[0].recv(1) == b"", "the oldest should have been closed without an answer"
        silent[-1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert silent[-1].recv(15) == b"HTTP/1.0 200 OK"


class GuestBook:
    """A door that lets in by name alone, and remembers nobody."""

    headers = (("Strict-Transport-Security", "max-age=1"), ("Content-Type", "text/plain"))
    scheme = "http"

    def tls(self) -> None:
        return None

    def check_client(self, connection: object) -> None:
        raise AssertionError("there is no TLS")

    def admit(self, authorization: str | None, peer: str, headers: Message[str, str] = NO_HEADERS) -> Viewer | Refusal:
        assert peer == "127.0.0.1"
        if authorization is None:
            return Refusal(401, "who are you?", (("WWW-Authenticate", "Bearer"),))
        return Viewer(authorization, sees_all=False, reads_metrics=authorization == "prometheus")


@pytest.mark.parametrize("path", ["/metrics", "/", "/nothing"])
def test_metrics_server_admits_only_metrics_readers(path: str) -> None:
    with running(MetricsServer(node_view, door=GuestBook())) as server:
        status, headers, body = get(server, path)
        assert (status, body, headers["www-authenticate"]) == (401, b"who are you?\n", "Bearer")
        assert get(server, path, Authorization="ada")[0] == 403
        assert get(server, path, Authorization="prometheus")[0] == (404 if path == "/nothing" else 200)


def test_health_is_told_to_everybody() -> None:
    with running(MetricsServer(node_view, door=GuestBook())) as server:
        assert get(server, "/healthz")[::2] == (200, b"ok\n")


def test_headers_of_the_web_configuration_stand_beside_the_pages_own() -> None:
    with running(MetricsServer(node_view, door=GuestBook())) as server:
        _, headers, _ = get(server, "/metrics", Authorization="prometheus")
        assert headers["strict-transport-security"] == "max-age=1"
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        assert get(server, "/metrics")[1]["strict-transport-security"] == "max-age=1"
