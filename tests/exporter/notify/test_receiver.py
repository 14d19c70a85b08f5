from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from exporter.notify.test_webhook import NOTIFICATION
from tidegauge_exporter.messages.values import AlertGroup
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError
from tidegauge_exporter.notify.receiver import CONNECTIONS_AT_ONCE, MAX_BODY_BYTES, Receiver
from waiting import PATIENCE_S

BODY = json.dumps(NOTIFICATION).encode()


class Taker:
    def __init__(self) -> None:
        self.groups: list[AlertGroup] = []
        self.error: Exception | None = None

    def take(self, group: AlertGroup) -> None:
        if self.error is not None:
            raise self.error
        self.groups.append(group)


@pytest.fixture
def taker() -> Taker:
    return Taker()


@pytest.fixture
def receiver(taker: Taker) -> Iterator[Receiver]:
    receiver = Receiver(taker.take)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


class Listening(Protocol):
    @property
    def port(self) -> int | None: ...


def ask(
    receiver: Listening, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    assert receiver.port is not None
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_a_notification_is_taken(receiver: Receiver, taker: Taker) -> None:
    assert ask(receiver, "POST", "/alerts", BODY) == (200, {"ok": True})
    assert [group.alerts[0].labels["incident"] for group in taker.groups] == ["12"]


def test_a_type_with_its_character_set_is_taken(receiver: Receiver) -> None:
    assert ask(receiver, "POST", "/alerts", BODY, **{"Content-Type": "application/json; charset=utf-8"})[0] == 200


@pytest.mark.parametrize(
    ("error", "status"),
    [(RetryLaterError("Slack is away"), 503), (RefusedError("token revoked"), 403), (ZeroDivisionError(), 500)],
)
def test_alertmanager_is_told_whether_to_try_again(
    receiver: Receiver, taker: Taker, error: Exception, status: int
) -> None:
    taker.error = error
    assert ask(receiver, "POST", "/alerts", BODY)[0] == status


def test_nonsense_is_given_up(receiver: Receiver, taker: Taker) -> None:
    status, answer = ask(receiver, "POST", "/alerts", b'{"version": "3"}')
    assert (status, taker.groups) == (400, [])
    assert answer["error"].startswith("version must be")


def test_a_page_in_a_browser_cannot_post(receiver: Receiver, taker: Taker) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded"):
        assert ask(receiver, "POST", "/alerts", BODY, **{"Content-Type": content_type})[0] == 415
    assert taker.groups == []


def test_a_body_that_is_too_long_is_not_read(receiver: Receiver) -> None:
    assert ask(receiver, "POST", "/alerts", None, **{"Content-Length": str(MAX_BODY_BYTES + 1)})[0] == 413
    assert ask(receiver, "POST", "/alerts", None, **{"Content-Length": "-1"})[0] == 411


def test_health_and_other_pages(receiver: Receiver) -> None:
    assert ask(receiver, "GET", "/healthz") == (200, {"ok": True})
    assert ask(receiver, "GET", "/alerts")[0] == 404
    assert ask(receiver, "POST", "/elsewhere", BODY)[0] == 404


def test_a_body_that_breaks_off_is_not_taken(receiver: Receiver, taker: Taker) -> None:
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=PATIENCE_S) as client:
        head = f"POST /alerts HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(BODY) + 9}\r\n\r\n"
        client.sendall(head.encode() + BODY)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""
    assert taker.groups == []


def test_connections_beyond_the_limit_are_closed_and_places_come_back(taker: Taker) -> None:
    at_work, let_go = threading.Semaphore(0), threading.Event()

    def take(group: AlertGroup) -> None:
        at_work.release()
        let_go.wait()

    receiver = Receiver(take)
    receiver.start()
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(receiver, "POST", "/alerts", BODY)[0]))
        for _ in range(CONNECTIONS_AT_ONCE)
    ]
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            assert at_work.acquire(timeout=PATIENCE_S)
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(receiver, "GET", "/healthz")
        let_go.set()
        for thread in threads:
            thread.join()
        assert answers == [200] * CONNECTIONS_AT_ONCE
    finally:
        let_go.set()
        receiver.stop()


def test_a_port_that_is_taken_is_an_error(receiver: Receiver, taker: Taker) -> None:
    second = Receiver(taker.take, port=receiver.port)
    with pytest.raises(OSError, match="in use"):
        second.start()
    assert not second.listens
    second.stop()


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        ({"Authorization": "Bearer of-the-webhook"}, 200),
        ({"Authorization": "Bearer of-the-webhook "}, 401),
        ({"Authorization": "Bearer another"}, 401),
        ({"Authorization": "of-the-webhook"}, 401),
        ({"Authorization": "Bearer \u00e9"}, 401),
        ({}, 401),
    ],
)
def test_receiver_with_a_token_refuses_requests_without_it(taker: Taker, shown: dict[str, str], status: int) -> None:
    receiver = Receiver(taker.take, token="of-the-webhook")
    receiver.start()
    try:
        told, body = ask(receiver, "POST", "/alerts", BODY, **shown)
    finally:
        receiver.stop()
    assert told == status
    assert len(taker.groups) == (status == 200)
    assert "of-the-webhook" not in str(body)
