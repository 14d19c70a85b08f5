"""The controller's three pages, over real sockets of this machine."""

from __future__ import annotations

import errno
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from fakes.kube import FakeKube
from tidegauge.http.server import Handler, Response
from tidegauge_exporter.metrics.families import exposition
from tidegauge_scheduler_hooks.kubernetes.controller import monitoring
from tidegauge_scheduler_hooks.kubernetes.controller.monitoring import HealthServer, StepCounts, gauge, text_page
from tidegauge_scheduler_hooks.kubernetes.controller.options import parse_options
from tidegauge_scheduler_hooks.kubernetes.controller.process import Controller

PAGES: Mapping[str, Handler] = {
    "/healthz": lambda _: text_page("ok\n"),
    "/readyz": lambda _: text_page("no Lease for 40 s: \N{SNOWMAN}\n", good=False),
}


@contextmanager
def serving(pages: Mapping[str, Handler]) -> Iterator[HealthServer]:
    server = HealthServer("127.0.0.1", 0, pages)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def server() -> Iterator[HealthServer]:
    with serving(PAGES) as server:
        yield server


def ask(server: HealthServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_good_page_is_200_and_a_bad_one_503_with_its_reason(server: HealthServer) -> None:
    assert ask(server, "/healthz?verbose") == (200, "ok\n")
    assert ask(server, "/readyz") == (503, "no Lease for 40 s: \N{SNOWMAN}\n")


def test_another_path_says_what_there_is(server: HealthServer) -> None:
    assert ask(server, "/secrets") == (404, "not found: try /healthz, /readyz\n")


def test_controller_health_answers_kubelet_while_others_hold_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet that is kept out starts the container again; any pod of the cluster can get here."""
    # Nobody goes for being silent, even if this machine stands still for a second.
    monkeypatch.setattr(monitoring, "LIMITS", monitoring.LIMITS._replace(ask_within_s=300.0))
    with serving(PAGES) as server, ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 30))
            for _ in range(4 * monitoring.CONNECTIONS_AT_ONCE)
        ]
        for connection in held:
            connection.sendall(b"GET")
        assert ask(server, "/healthz") == (200, "ok\n")
        assert held[0].recv(1) == b"", "who came first was hung up on"


def test_the_page_for_prometheus_is_exact() -> None:
    counts = StepCounts()
    for outcome in ("done", "conflict", "done"):
        counts.count("resume", outcome)
    families = [gauge("leader", "1 while this replica acts.", 1), gauge("x", "Not known.", None), counts.family()]
    page = exposition(families, None).body.decode()
    assert page == (
        "# HELP tidegauge_controller_leader 1 while this replica acts.\n"
        "# TYPE tidegauge_controller_leader gauge\n"
        "tidegauge_controller_leader 1.0\n"
        "# HELP tidegauge_controller_steps_total Steps on workloads, by outcome.\n"
        "# TYPE tidegauge_controller_steps_total counter\n"
        'tidegauge_controller_steps_total{outcome="conflict",step="resume"} 1.0\n'
        'tidegauge_controller_steps_total{outcome="done",step="resume"} 2.0\n'
    )


@pytest.mark.parametrize(("value", "text"), [('a"b', 'a\\"b'), ("a\\b", "a\\\\b"), ("a\nb", "a\\nb")])
def test_a_label_cannot_break_out_of_its_quotes(value: str, text: str) -> None:
    counts = StepCounts()
    counts.count(value, "done")
    assert f'{{outcome="done",step="{text}"}}' in exposition([counts.family()], None).body.decode()


def test_pages_are_made_anew_for_every_request() -> None:
    asked: list[Mapping[str, str]] = []

    def count(_: object) -> Response:
        asked.append({})
        return text_page(str(len(asked)))

    with serving({"/n": count}) as server:
        assert [ask(server, "/n")[1], ask(server, "/n")[1]] == ["1", "2"]


def test_taken_port_is_named_with_the_options_that_choose_another() -> None:
    kube = FakeKube()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = parse_options(["--namespace=a", "--no-webhook", "--health-host=127.0.0.1", f"--health-port={port}"])
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use. ") as told:
            Controller(options, kube, kube, quick_api=kube)
    assert told.value.errno == errno.EADDRINUSE
    assert str(told.value).endswith("End what listens there, or choose another by --health-host, --health-port")
