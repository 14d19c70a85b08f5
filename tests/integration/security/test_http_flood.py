"""Ten thousand connections to each HTTP server: who asks something is answered, and what the flood takes is bounded."""

from __future__ import annotations

import random
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection

import pytest

from integration.security.users import open_files, private_bytes
from sample_views import node_view
from tidegauge.cluster.api.http_api import HttpApi, json_route
from tidegauge_exporter.metrics.server import MetricsServer

pytestmark = pytest.mark.timeout(240)

CONNECTIONS = 10_000
MIB = 1 << 20
ASK_WITHIN_S = 60.0
ATTACKS: dict[str, Callable[[random.Random], bytes]] = {
    "silent": lambda _: b"",
    "half a request": lambda _: b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    "endless headers": lambda _: b"GET /metrics HTTP/1.1\r\n" + b"X-Header: " + b"y" * 200_000,
    "garbage": lambda pick: pick.randbytes(300),
}


def metrics_server() -> tuple[str, int, str, Callable[[], None]]:
    server = MetricsServer(node_view)
    server.start()
    return "127.0.0.1", server.port, "/metrics", server.stop


def api() -> tuple[str, int, str, Callable[[], None]]:
    server = HttpApi({"/api/v1/status": json_route(lambda _: {"ok": True})}, host="127.0.0.1", port=0)
    server.start()
    return "127.0.0.1", server.port, "/api/v1/status", server.stop


@pytest.fixture(params=[metrics_server, api])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, int, str]]:
    host, port, path, stop = request.param()
    yield host, port, path
    stop()


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    """Both ends of every connection are in this process, as far as the server takes them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def answered(host: str, port: int, path: str) -> int:
    """The status of an ordinary request; it may be asked again, as every client does whom somebody hung up on."""
    for _ in range(20):
        asking = HTTPConnection(host, port, timeout=ASK_WITHIN_S)
        with suppress(OSError):
            asking.request("GET", path)
            status = asking.getresponse().status
            asking.close()
            return status
        asking.close()
    return 0


@pytest.mark.parametrize("attack", ATTACKS)
def test_http_server_answers_during_and_after_a_flood(attack: str, served: tuple[str, int, str]) -> None:
    host, port, path = served
    assert answered(host, port, path) == 200
    before_bytes, before_threads, before_files = private_bytes(), threading.active_count(), open_files()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500
    with ExitStack() as held:
        kept: list[socket.socket] = []
        pick = random.Random(0)
        for number in range(CONNECTIONS):
            one = socket.socket()
            one.setblocking(False)
            with suppress(OSError):
                one.connect((host, port))
            kept.append(held.enter_context(one))
            if number >= 50:
                with suppress(OSError):
                    kept[number - 50].send(ATTACKS[attack](pick))
            if len(kept) > limit:
                kept.pop(0).close()
            if number % 2500 == 2499:
                assert answered(host, port, path) == 200, f"after {number + 1} connections"
                assert threading.active_count() <= before_threads + 80
        assert private_bytes() <= before_bytes + 128 * MIB, "most of it is the other end, which is ours too"
    assert answered(host, port, path) == 200
    assert open_files() <= before_files + 400
