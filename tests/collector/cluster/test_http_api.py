"""`HttpApi` over a real loopback socket: what it answers, refuses and survives."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from email.message import Message
from urllib.parse import quote

import pytest

from tidegauge.cluster.api import client
from tidegauge.cluster.api.http_api import (
    FORM_TYPE,
    MAX_FORM_BYTES,
    MAX_REQUESTS_AT_ONCE,
    BadRequestError,
    HttpApi,
    NotFoundError,
    Request,
    Route,
    UnavailableError,
    html_route,
    json_route,
)
from tidegauge.cluster.api.route_access import Access
from tidegauge.http.access import NO_HEADERS, OpenDoor, Refusal, Viewer
from tidegauge.http.served_hosts import MachineNames, ServedHosts
from tidegauge.http.server import Response
from waiting import PATIENCE_S


def explode(_: Request) -> Response:
    raise RuntimeError("secret detail")


def missing(_: Request) -> Response:
    raise NotFoundError("there is no incident 9")


def away(_: Request) -> Response:
    raise UnavailableError("the database is locked")


PAGES = ("/value", "/page", "/accept", "/explode", "/missing", "/away", "/wait", "/form")
FORM = {"Content-Type": FORM_TYPE}


@pytest.fixture(scope="module")
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture(scope="module")
def api(gate: threading.Event) -> Iterator[HttpApi]:
    def wait(_: Request) -> Response:
        gate.wait(PATIENCE_S)
        return Response(b"late")

    routes: dict[str, Route] = {
        "/value": json_route(lambda request: {"after": request.number("after", default=7)}),
        "/page": html_route(lambda request: f"<!doctype html>\ud800{request.number('incident', default=0)}"),
        "/accept": lambda request: Response((request.accept or "").encode(), "text/plain"),
        "/explode": explode,
        "/missing": missing,
        "/away": away,
        "/wait": wait,
        "/form": lambda _: Response(b""),
    }
    api = HttpApi(routes, forms={"/form": explode}, host="127.0.0.1", port=0)
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
    with pytest.raises(BadRequestError, match="limit may be at most 10, not 11"):
        request.number("limit", default=3, most=10)


def test_http_api_explains_404_and_503_in_a_sentence(api: HttpApi) -> None:
    assert ask(api, "/missing") == (404, b'{"error":"there is no incident 9"}')
    assert ask(api, "/away") == (503, b'{"error":"the database is locked"}')


def test_a_defect_in_a_page_is_an_error_without_its_details(api: HttpApi) -> None:
    status, body = ask(api, "/explode")
    assert status == 500
    assert b"secret" not in body
    assert ask(api, "/value")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_http_api_refuses_methods_that_change_state(api: HttpApi, method: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE_S)
    connection.request(method, "/value")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert answer.headers["Content-Type"] == "application/json"
    assert "use GET or HEAD" in json.loads(answer.read())["error"]
    connection.close()


def test_a_form_is_not_taken_from_somebody_without_a_name(api: HttpApi) -> None:
    """Nobody is asked for one here: any page that a browser on this machine opens could send it."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE_S)
    connection.request("POST", "/form", "word=x", FORM)
    answer = connection.getresponse()
    assert (answer.status, "has no authentication" in json.loads(answer.read())["error"]) == (403, True)
    connection.close()


def test_other_methods_of_a_page_with_a_form_are_refused_with_those_that_it_has(api: HttpApi) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE_S)
    connection.request("PUT", "/form", "word=x", FORM)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, POST")
    connection.close()


class Named(OpenDoor):
    """Whoever shows a word is called that."""

    def admit(self, authorization: str | None, peer: str, headers: Message[str, str] = NO_HEADERS) -> Viewer | Refusal:
        if authorization is None:
            return Refusal(401, "who are you")
        return Viewer(authorization, sees_all=False, reads_metrics=False)


@pytest.fixture(scope="module")
def named() -> Iterator[HttpApi]:
    forms: dict[str, Route] = {
        "/form": json_route(lambda request: {"word": request.text("word", most_chars=5), "by": request.viewer.name})
    }
    access = {"/form": Access.OWN}
    api = HttpApi(
        {"/form": lambda _: Response(b"")}, forms=forms, access=access, host="127.0.0.1", port=0, door=Named(),
        public_url="https://public.example/tidegauge/",
    )  # fmt: skip
    api.start()
    yield api
    api.stop()


def send(api: HttpApi, form: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", "/form", form, {"Authorization": "ada", **FORM, **named})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_form_is_read_like_a_query(named: HttpApi) -> None:
    assert send(named, "word=gr%C3%B6&more=x") == (200, '{"word":"grö","by":"ada"}')
    assert send(named, "") == (400, '{"error":"word is missing"}')
    assert send(named, "word=toolong")[0] == 400
    assert send(named, "&".join(["word=x"] * 40))[0] == 400


def test_a_form_has_each_field_once_and_hides_none(named: HttpApi) -> None:
    for form in ("word=x&word=y", "word=x&more=1&word=x", "word=x&word=", "word=x#&word=y"):
        assert send(named, form)[0] == 400, form
    assert "the form has word twice: send each field once" in send(named, "word=x&word=y")[1]
    assert send(named, "word=%232#3") == (200, '{"word":"#2#3","by":"ada"}')


def test_the_query_of_a_form_says_nothing(named: HttpApi) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", named.port, timeout=PATIENCE_S)
    connection.request("POST", "/form?word=x", "", {"Authorization": "ada", **FORM})
    assert connection.getresponse().status == 400
    connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # curl, scripts, commands
        ({"Origin": "HERE"}, 200),
        ({"Referer": "HERE/form?word=x"}, 200),
        ({"Sec_Fetch_Site": "same-origin", "Origin": "HERE"}, 200),
        ({"Origin": "HERE", "Referer": "http://elsewhere.example/"}, 200),
        ({"Host": "127.0.0.1:31000", "Origin": "http://127.0.0.1:31000"}, 200),  # kubectl port-forward 31000:9495
        ({"Host": "head.example", "Origin": "https://HEAD.example:443"}, 200),  # a proxy with TLS that keeps Host
        ({"Host": "[::1]:9495", "Origin": "http://[::1]:9495"}, 200),
        ({"Host": "inside:9495", "Origin": "https://public.example"}, 200),  # one that does not: public_url
        ({"Host": "inside:9495", "Referer": "https://public.example/tidegauge/grade?incident=1"}, 200),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Sec_Fetch_Site": "none"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Origin": "HERE"}, 403),
        ({"Sec_Fetch_Site": "same-origin", "Origin": "https://proxy.example"}, 403),
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Origin": "http://elsewhere.example", "Referer": "HERE/form"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "null", "Referer": "HERE/form"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://[junk"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Origin": "http://public.example"}, 403),
        ({"Referer": "http://elsewhere.example/form"}, 403),
        ({"Referer": "http://elsewhere.example/?HERE"}, 403),
        ({"Referer": "HERE@elsewhere.example/"}, 403),
        ({"Referer": "about:blank"}, 403),
        ({"Referer": "http://head:port/"}, 403),
    ],
)
def test_a_browser_sends_a_form_from_a_page_of_this_api_alone(
    named: HttpApi, headers: dict[str, str], status: int
) -> None:
    shown = {name: value.replace("HERE", named.url) for name, value in headers.items()}
    assert send(named, "word=x", **shown)[0] == status


def test_a_form_from_elsewhere_is_refused_with_what_may_be_wrong(named: HttpApi) -> None:
    assert "Behind a proxy" in send(named, "word=x", Origin="null")[1]
    assert "public_url" in send(named, "word=x", Origin="null")[1]


def test_a_form_is_bounded_and_is_a_form(named: HttpApi) -> None:
    assert send(named, "word=x" + "&" * MAX_FORM_BYTES)[0] == 413
    assert send(named, "word=x", Content_Length="9" * 30)[0] == 413
    assert send(named, "word=x", Content_Length="-6")[0] == 411
    assert send(named, "word=x", Content_Type="application/json")[0] == 415


def test_of_a_stranger_no_body_is_read(named: HttpApi) -> None:
    with socket.create_connection(("127.0.0.1", named.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"POST /form HTTP/1.0\r\nContent-Length: 4000\r\n\r\n")  # and it never comes
        assert b" 401 " in connection.recv(1000)


class NamedByTls(Named):
    """As behind TLS: what speaks it is the transport, which these tests leave out."""

    scheme = "https"


@pytest.mark.parametrize(("origin", "status"), [("https://head.example", 200), ("http://head.example", 403)])
def test_a_page_without_tls_sends_no_form_to_an_api_with_tls(origin: str, status: int) -> None:
    forms: dict[str, Route] = {"/form": lambda _: Response(b"")}
    api = HttpApi({}, forms=forms, access={"/form": Access.OWN}, host="127.0.0.1", port=0, door=NamedByTls())
    api.start()
    assert send(api, "word=x", Host="head.example", Origin=origin)[0] == status
    api.stop()


def local_names() -> MachineNames:
    return MachineNames(frozenset({"head", "head.cluster.example"}))


@pytest.fixture(scope="module")
def nameless() -> Iterator[HttpApi]:
    """Asks nobody for a name, on a machine called ``head``."""
    hosts = ServedHosts("https://public.example/tidegauge/", look=local_names)
    api = HttpApi({"/value": json_route(lambda _: 7)}, host="127.0.0.1", port=0, hosts=hosts)
    api.start()
    yield api
    api.stop()


@pytest.mark.parametrize("path", ["/value", "/no-such-page"])
def test_a_name_of_another_site_that_leads_here_gets_nothing_without_authentication(
    nameless: HttpApi, path: str
) -> None:
    """A page at ``http://attacker.example`` could read all else, in the browser of anybody who reaches this port."""
    status, body = ask(nameless, path, headers={"Host": "attacker.example:9495"})
    assert status == 421
    assert "set public_url" in json.loads(body)["error"]


def test_prometheus_scrapes_by_whatever_name_the_site_gives_the_head() -> None:
    routes = {"/metrics": json_route(lambda _: 7)}
    api = HttpApi(
        routes, access={"/metrics": Access.METRICS}, host="127.0.0.1", port=0, hosts=ServedHosts(look=local_names)
    )
    api.start()
    assert ask(api, "/metrics", headers={"Host": "gpu-monitoring.example:9495"}) == (200, b"7")
    api.stop()


@pytest.mark.parametrize("host", ["127.0.0.1:31000", "[::1]:9495", "localhost:9495", "HEAD", "public.example"])
def test_names_of_this_machine_and_of_public_url_are_answered_without_authentication(
    nameless: HttpApi, host: str
) -> None:
    assert ask(nameless, "/value", headers={"Host": host}) == (200, b"7")


def test_a_probe_is_answered_at_any_name() -> None:
    api = HttpApi({"/healthz": lambda _: Response(b"ok\n")}, host="127.0.0.1", port=0)
    api.start()
    assert ask(api, "/healthz", headers={"Host": "attacker.example"}) == (200, b"ok\n")
    api.stop()


@pytest.mark.parametrize("door", [Named(), NamedByTls()])
def test_a_client_who_shows_a_name_is_answered_at_any_host(door: OpenDoor) -> None:
    """A browser gives passwords and cookies to the host alone that they belong to."""
    api = HttpApi({"/value": json_route(lambda _: 7)}, access={}, host="127.0.0.1", port=0, door=door,
                  hosts=ServedHosts(look=local_names))  # fmt: skip
    api.start()
    assert ask(api, "/value", headers={"Host": "attacker.example", "Authorization": "ada"})[0] == 403  # admins' alone
    api.stop()


class NamelessByTls(OpenDoor):
    scheme = "https"


def test_with_tls_the_certificate_guards_the_name() -> None:
    """A browser shows no page whose name the certificate does not have, and such a certificate nobody else gets."""
    api = HttpApi({"/value": json_route(lambda _: 7)}, host="127.0.0.1", port=0, door=NamelessByTls(),
                  hosts=ServedHosts(look=local_names))  # fmt: skip
    api.start()
    assert ask(api, "/value", headers={"Host": "alias.example"}) == (200, b"7")
    api.stop()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/3.0\r\n\r\n", b"505"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", b"431"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET\r\n\r\n", b"400"),
    ],
)  # fmt: skip
def test_a_head_that_cannot_be_read_is_refused_in_json_as_all_else(api: HttpApi, head: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    told, _, body = answer.partition(b"\r\n\r\n")
    assert told.split()[1] == status
    assert b"application/json" in told
    assert json.loads(body)["error"]


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
    with pytest.raises(client.ApiError, match=f"127.0.0.1:{api.port}/explode: HTTP 500"):
        client.get(api.url, "/explode")
    with pytest.raises(client.ApiError, match="no answer from"):
        client.get("http://127.0.0.1:1", "/value")
    with pytest.raises(client.ApiError, match=r"it looks like http://127\.0\.0\.1:9495"):
        client.get("ftp://example", "/value")
    with pytest.raises(client.ApiError, match="unexpected answer"):
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
