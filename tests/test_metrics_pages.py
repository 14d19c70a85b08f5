"""A scraper of the tests' goes on whatever the server does: killed servers are what it is there for."""

from __future__ import annotations

import socketserver

import pytest

from metrics_pages import read_page
from serving import Serving
from waiting import PATIENCE_S

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n"


class Saying(socketserver.TCPServer):
    """A server on a free port of loopback that says what it was told, and ends the connection."""

    def __init__(self, said: bytes) -> None:
        self.said = said
        super().__init__(("127.0.0.1", 0), SayingHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/metrics"


class SayingHandler(socketserver.StreamRequestHandler):
    server: Saying

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        self.wfile.write(self.server.said)


@pytest.mark.parametrize(
    ("said", "page"),
    [
        pytest.param(HEAD + b"tidegauge_up 1.0000\n", "tidegauge_up 1.0000\n", id="whole"),
        pytest.param(HEAD + b"tidegauge", None, id="ends-in-the-body"),
        pytest.param(HEAD[:20], None, id="ends-in-the-head"),
        pytest.param(b"", None, id="says-nothing"),
        pytest.param(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", None, id="refuses"),
    ],
)
def test_page_is_read_whole_or_not_at_all(said: bytes, page: str | None) -> None:
    server = Saying(said)
    with Serving(server):
        assert read_page(server.url, timeout_s=PATIENCE_S) == page


def test_nobody_who_listens_is_no_page() -> None:
    server = Saying(b"")
    server.server_close()
    assert read_page(server.url, timeout_s=PATIENCE_S) is None
