"""`HttpApi` over a real loopback socket: what it answers, refuses and survives."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tidegauge.cluster import client
from tidegauge.cluster.http_api import (
    MAX_REQUESTS_AT_ONCE,
    Answer,
    BadRequestError,
    HttpApi,
    NotFoundError,
    Request,
    Route,
    UnavailableError,
    html_route,
    json_route,
)
from waiting import PATIENCE_S


def explode(_: Request) -> Answer:
    raise RuntimeError("secret detail")


def missing(_: Request) -> Answer:
    raise NotFoundError("there is no incident 9")


def away(_: Request) -> Answer:
    raise UnavailableError("the database is locked")


PAGES = ("/value", "/page", "/accept", "/explode", "/missing", "/away", "/wait")


@pytest.fixture(scope="module")
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture(scope="module")
def api(gate: threading.Event) -> Iterator[HttpApi]:
    def wait(_: Request) -> Answer:
        gate.wait(PATIENCE_S)
        return Answer(b"late")

    routes: dict[str, Route] = {
        "/value": json_route(lambda request: {"after": request.number("after", default=7)}),
        "/page": html_route(lambda request: f"<!doctype html>\ud800{request.number('incident', default=0)}"),
        "/accept": lambda request: Answer((request.accept or "").encode(), "text/plain"),
        "/explode": explode,
        "/missing": missing,
        "/away": away,
        "/wait": wait,
    }
    api = HttpApi(routes, host="127.0.0.1", port=0)
    api.start()
    yield api
    gate.set()
    api.stop()


def ask(api: HttpApi, path: str, *, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_page_for_people_comes_with_orders_to_run_and_fetch_nothing(api: HttpApi) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE_S)
    connection.request("GET", "/page?incident=12")
    answer = connection.getresponse()
    assert answer.read() == b"<!doctype html>?12"
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    orders = dict(order.split(" ", 1) for order in answer.headers["Content-Security-Policy"].split("; "))
    assert (orders["default-src"], orders["style-src"]) == ("'none'", "'unsafe-inline'")
    assert "script-src" not in orders
    connection.close()


def test_a_page_for_people_refuses_as_the_others_do(api: HttpApi) -> None:
    assert ask(api, "/page?incident=x")[0] == 400


def test_a_page_of_the_table_is_answered(api: HttpApi) -> None:
    assert ask(api, "/value?after=41") == (200, b'{"after":41}')
    assert ask(api, "/value") == (200, b'{"after":7}')


def test_the_answer_may_depend_on_what_the_client_accepts(api: HttpApi) -> None:
    assert ask(api, "/accept", headers={"Accept": "application/openmetrics-text"})[1] == b"application/openmetrics-text"


@pytest.mark.parametrize("path", ["/", "/../etc/passwd", "/value/", "/%76alue", "/value%00", "/" + "a" * 5000])
def test_any_other_path_is_not_found_and_the_pages_are_named(api: HttpApi, path: str) -> None:
    status, body = ask(api, path)
    assert (status, json.loads(body)["pages"]) == (404, sorted(PAGES))


@pytest.mark.parametrize("text", ["x", "-1", "1e9", "\u0661", "9" * 16, "1\0"])
def test_a_number_that_is_none_is_a_bad_request(api: HttpApi, text: str) -> None:
    status, body = ask(api, f"/value?after={quote(text)}")
    assert status == 400
    assert "after must be a whole number" in json.loads(body)["error"]


def test_a_number_above_the_most_is_a_bad_request() -> None:
    request = Request({"limit": "11"}, None)
    assert request.number("limit", default=3, most=11) == 11
    with pytest.raises(BadRequestError, match="limit may be 10 at most, not 11"):
        request.number("limit", default=3, most=10)


def test_what_does_not_exist_and_what_is_away_are_said_in_a_sentence(api: HttpApi) -> None:
    assert ask(api, "/missing") == (404, b'{"error":"there is no incident 9"}')
    assert ask(api, "/away") == (503, b'{"error":"the database is locked"}')


def test_a_defect_in_a_page_is_an_error_without_its_details(api: HttpApi) -> None:
    status, body = ask(api, "/explode")
    assert status == 500
    assert b"secret" not in body
    assert ask(api, "/value")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed_through_it(api: HttpApi, method: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE_S)
    connection.request(method, "/value")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert answer.headers["Content-Type"] == "application/json"
    assert "only GET and HEAD" in json.loads(answer.read())["error"]
    connection.close()


def test_head_answers_without_a_body(api: HttpApi) -> None:
    assert ask(api, "/value", method="HEAD") == (200, b"")


def test_requests_beyond_the_limit_are_turned_away_until_one_is_done(api: HttpApi, gate: threading.Event) -> None:
    waiting = [
        socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE_S) for _ in range(MAX_REQUESTS_AT_ONCE)
    ]
    for connection in waiting:
        connection.sendall(b"GET /wait HTTP/1.0\r\n\r\n")
    while ask(api, "/value")[0] != 503:
        pass  # until all the others have been taken in
    gate.set()
    for connection in waiting:
        assert b"late" in connection.makefile("rb").read()
        connection.close()
    assert ask(api, "/value")[0] == 200


def test_garbage_on_the_socket_does_not_end_the_server(api: HttpApi) -> None:
    with socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"\x00\xff" * 100 + b"\r\n\r\n")
        connection.recv(1000)
    with socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET /value")  # and goes away
    assert ask(api, "/value")[0] == 200


def test_a_port_that_is_taken_is_an_error_of_start(api: HttpApi) -> None:
    with pytest.raises(OSError, match="in use"):
        HttpApi({}, host="127.0.0.1", port=api.port).start()


def test_the_client_reads_what_the_api_writes(api: HttpApi) -> None:
    assert client.get(api.url, "/value?after=3") == {"after": 3}


def test_the_client_says_which_address_failed_and_how(api: HttpApi) -> None:
    with pytest.raises(client.ApiError, match=f"127.0.0.1:{api.port}/explode answers 500"):
        client.get(api.url, "/explode")
    with pytest.raises(client.ApiError, match="does not answer"):
        client.get("http://127.0.0.1:1", "/value")
    with pytest.raises(client.ApiError, match=r"it looks like http://127\.0\.0\.1:9495"):
        client.get("ftp://example", "/value")
    with pytest.raises(client.ApiError, match="does not answer"):
        client.get(api.url, "/accept")


def test_the_client_tells_a_refusal_from_a_defect(api: HttpApi) -> None:
    found = {}
    for path in ("/missing", "/away", "/explode", "/no-such-page"):
        with pytest.raises(client.ApiError) as caught:
            client.get(api.url, path)
        found[path] = (caught.value.status, caught.value.refusal)
    assert found == {
        "/missing": (404, "there is no incident 9"),
        "/away": (503, "the database is locked"),
        "/explode": (500, None),
        "/no-such-page": (404, None),
    }
