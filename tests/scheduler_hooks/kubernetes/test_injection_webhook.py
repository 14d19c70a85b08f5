"""The webhook's server on loopback: what it answers, what it refuses, and that nobody can hold it up."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tidegauge_scheduler_hooks.kubernetes.injection import webhook
from tidegauge_scheduler_hooks.kubernetes.injection.certificates import renewed, server_context
from tidegauge_scheduler_hooks.kubernetes.injection.webhook import MAX_BODY_BYTES, MAX_CONNECTIONS, WebhookServer
from waiting import PATIENCE_S

NAMES = ["localhost"]


class Served:
    """A certificate that a test may exchange."""

    def __init__(self) -> None:
        self.made = renewed(None, NAMES, now_s=1_800_000_000.0)
        self.context: ssl.SSLContext | None = server_context(self.made.certificate + self.made.key)

    def current(self) -> ssl.SSLContext | None:
        return self.context

    def trusting(self) -> ssl.SSLContext:
        """A client's context. Its clock is today's: what is checked is the signature and the name."""
        context = ssl.create_default_context(cadata=self.made.trusted.decode())
        context.verify_flags |= ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME
        return context


@contextmanager
def serving(answer: Any = None) -> Iterator[tuple[WebhookServer, Served]]:
    def echo(body: bytes) -> Mapping[str, Any]:
        return {"heard": len(body)}

    certificate = Served()
    server = WebhookServer("127.0.0.1", 0, certificate, answer or echo)
    server.start()
    try:
        yield server, certificate
    finally:
        server.stop()


def ask(
    server: WebhookServer, certificate: Served, body: bytes = b"{}", *, path: str = "/mutate", verb: str = "POST"
) -> tuple[int, bytes]:
    client = http.client.HTTPSConnection("localhost", server.port, timeout=PATIENCE_S, context=certificate.trusting())
    try:
        client.request(verb, path, body)
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


def test_a_question_is_answered_and_the_address_may_carry_a_timeout() -> None:
    with serving() as (server, certificate):
        status, content = ask(server, certificate, b"12345", path="/mutate?timeout=5s")
        assert (status, json.loads(content)) == (200, {"heard": 5})


@pytest.mark.parametrize(
    ("path", "verb", "body", "status"),
    [("/", "POST", b"{}", 404), ("/mutate", "GET", b"", 405), ("/mutate", "DELETE", b"", 501)],
)
def test_there_is_nothing_else(path: str, verb: str, body: bytes, status: int) -> None:
    with serving() as (server, certificate):
        assert ask(server, certificate, body, path=path, verb=verb)[0] == status


def test_injection_webhook_answers_400_with_the_reason() -> None:
    def refuse(body: bytes) -> Mapping[str, Any]:
        raise ValueError("not an AdmissionReview")

    with serving(refuse) as (server, certificate):
        assert ask(server, certificate) == (400, b"not an AdmissionReview\n")


def test_a_body_that_is_too_long_is_not_read() -> None:
    with serving() as (server, certificate):
        raw = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
        with certificate.trusting().wrap_socket(raw, server_hostname="localhost") as client:
            client.sendall(f"POST /mutate HTTP/1.1\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 413 ")
        assert ask(server, certificate)[0] == 200


def test_a_length_is_needed() -> None:
    with serving() as (server, certificate):
        raw = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
        with certificate.trusting().wrap_socket(raw, server_hostname="localhost") as client:
            client.sendall(b"POST /mutate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 411 ")


@pytest.mark.slow
def test_those_who_say_nothing_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    # It does not wait until they are late.
    monkeypatch.setattr(webhook, "LIMITS", webhook.LIMITS._replace(ask_within_s=300.0, whole_s=300.0))
    with serving() as (server, certificate):
        silent = [socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) for _ in range(MAX_CONNECTIONS + 9)]
        try:
            assert ask(server, certificate)[0] == 200
        finally:
            for one in silent:
                one.close()


def test_injection_webhook_survives_a_client_without_tls() -> None:
    with serving() as (server, certificate):
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionResetError):
                while plain.recv(4096):
                    pass
        assert ask(server, certificate)[0] == 200


def test_old_tls_is_refused() -> None:
    with serving() as (server, certificate):
        old = certificate.trusting()
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        raw = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
        with pytest.raises(OSError), raw:  # noqa: PT011 - refused by either side, in words of its own
            old.wrap_socket(raw, server_hostname="localhost")


def test_a_new_certificate_counts_from_the_next_connection_on() -> None:
    with serving() as (server, certificate):
        assert ask(server, certificate)[0] == 200
        before = certificate.trusting()
        certificate.made = renewed(None, NAMES, now_s=1_800_000_000.0)
        certificate.context = server_context(certificate.made.certificate + certificate.made.key)
        assert ask(server, certificate)[0] == 200
        raw = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
        with raw, pytest.raises(ssl.SSLCertVerificationError):
            before.wrap_socket(raw, server_hostname="localhost")


def test_without_a_certificate_connections_end_and_with_one_they_do_not() -> None:
    with serving() as (server, certificate):
        context, certificate.context = certificate.context, None
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as early:
            assert early.recv(1) == b""
        certificate.context = context
        assert ask(server, certificate)[0] == 200


def test_closing_waits_for_the_answer_that_is_under_way() -> None:
    asked, closed = threading.Event(), threading.Event()
    got: list[int] = []
    too_early: list[bool] = []

    def slow(body: bytes) -> Mapping[str, Any]:
        port = server.port
        asked.set()
        with suppress(OSError):
            while True:  # until nobody listens any more
                socket.create_connection(("127.0.0.1", port), PATIENCE_S).close()
        too_early.append(closed.wait(0.2))  # does not come true while we are at it
        return {}

    def close() -> None:
        server.stop(drain_s=PATIENCE_S)
        closed.set()

    with serving(slow) as (server, certificate):
        client = threading.Thread(target=lambda: got.append(ask(server, certificate)[0]))
        client.start()
        assert asked.wait(PATIENCE_S)
        close()
        client.join(PATIENCE_S)
    assert (got, too_early) == ([200], [False])
