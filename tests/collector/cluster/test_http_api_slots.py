"""What a request slot of `HttpApi` is for: work. Slow readers, health checks and the head's own commands need none."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tidegauge.cluster.api import client, http_api
from tidegauge.cluster.api.client import ApiError
from tidegauge.cluster.api.http_api import MAX_REQUESTS_AT_ONCE, HttpApi, Request, json_route
from tidegauge.cluster.api.route_access import Access
from tidegauge.http.server import Response
from waiting import PATIENCE_S, eventually

BIG = b"x" * (32 << 20)
"""More than the sockets' buffers take."""


class Site:
    """An API whose pages say that they are at work."""

    def __init__(self, folder: Path) -> None:
        self.at_work = threading.Semaphore(0)
        self.gate = threading.Event()
        self.socket = folder / "api.sock"
        self.api = HttpApi(
            {
                "/big": self._big, "/wait": self._wait, "/value": json_route(lambda _: {"value": 7}),
                "/healthz": json_route(lambda _: {"ok": True}),
            },
            host="127.0.0.1", port=0, local_socket=self.socket,
            access={"/healthz": Access.OPEN, **dict.fromkeys(("/big", "/wait", "/value"), Access.OWN)},
        )  # fmt: skip
        self.api.start()

    def _big(self, _: Request) -> Response:
        self.at_work.release()
        return Response(BIG)

    def _wait(self, _: Request) -> Response:
        self.at_work.release()
        self.gate.wait(PATIENCE_S)
        return Response(b"late")

    def occupy(self, path: str, connections: ExitStack) -> None:
        """As many requests as there are slots, of which nobody reads the answer, all of them begun."""
        for _ in range(MAX_REQUESTS_AT_ONCE):
            connection = connections.enter_context(
                socket.create_connection(("127.0.0.1", self.api.port), timeout=PATIENCE_S)
            )
            connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        for _ in range(MAX_REQUESTS_AT_ONCE):
            assert self.at_work.acquire(timeout=PATIENCE_S)

    def ask(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.api.port, timeout=PATIENCE_S)
        connection.request("GET", path)
        status = connection.getresponse().status
        connection.close()
        return status


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    # A reader that reads nothing is not cut off.
    monkeypatch.setattr(http_api, "LIMITS", http_api.LIMITS._replace(ask_within_s=3600.0, whole_s=3600.0))
    site = Site(tmp_path)
    yield site
    site.gate.set()
    site.api.stop()


def test_slow_readers_of_big_pages_hold_no_slot(site: Site) -> None:
    with ExitStack() as connections:
        site.occupy("/big", connections)
        first = connections.enter_context(socket.create_connection(("127.0.0.1", site.api.port), timeout=PATIENCE_S))
        first.sendall(b"GET /big HTTP/1.0\r\n\r\n")
        # The slots come free once the pages are made; readers would hold them for as long as this goes on.
        eventually(lambda: site.ask("/value") == 200)


def test_health_and_the_heads_own_commands_are_answered_while_all_slots_work(site: Site) -> None:
    with ExitStack() as connections:
        site.occupy("/wait", connections)
        assert site.ask("/value") == 503
        assert site.ask("/healthz") == 200
        assert client.get(f"unix://{site.socket}", "/value") == {"value": 7}


def test_a_socket_that_could_not_be_bound_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "later" / "api.sock"
    api = HttpApi({"/value": json_route(lambda _: {"value": 7})}, host="127.0.0.1", port=0, local_socket=path)
    api.start()
    try:
        path.parent.mkdir(mode=0o700)
        eventually(path.exists)

        def answer() -> object:
            """No name is asked for here, so any page that is there is answered; until listen(2) it is refused."""
            with suppress(ApiError):
                return client.get(f"unix://{path}", "/value")
            return None

        assert eventually(answer) == {"value": 7}
    finally:
        api.stop()
    assert not path.exists()


def test_an_api_that_stops_before_its_socket_could_be_bound_binds_it_no_more(tmp_path: Path) -> None:
    path = tmp_path / "later" / "api.sock"
    api = HttpApi({}, host="127.0.0.1", port=0, local_socket=path)
    api.start()
    trying = next(thread for thread in threading.enumerate() if thread.name == "tidegauge-api-local-bind")
    api.stop()
    path.parent.mkdir()
    trying.join(PATIENCE_S)
    assert not trying.is_alive()
    assert not path.exists()


def test_a_socket_that_another_head_put_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    first = HttpApi({}, host="127.0.0.1", port=0, local_socket=path)
    second = HttpApi({}, host="127.0.0.1", port=0, local_socket=path)
    first.start()
    second.start()
    inode = os.stat(path).st_ino
    first.stop()
    assert os.stat(path).st_ino == inode
    second.stop()
    assert not path.exists()
