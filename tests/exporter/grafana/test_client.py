"""The Grafana client: what it sends, and what it makes of every kind of answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fakes.fake_grafana import TOKEN, FakeGrafana, Reply, grafana_server
from serving import Serving
from tidegauge_exporter.grafana.client import GrafanaClient
from tidegauge_exporter.grafana.values import (
    Annotation,
    DataSource,
    Folder,
    GrafanaRefusedError,
    StoredAnnotation,
    TakenError,
)
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

MODEL = {"uid": "tidegauge-fleet", "title": "Fleet", "tags": ["tidegauge"], "panels": []}
MARK = Annotation(1_800_000_000_000, None, ("tidegauge", "job:4711"), "it leaks")


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    with grafana_server() as server:
        yield server


@pytest.fixture
def client(grafana: FakeGrafana) -> Iterator[GrafanaClient]:
    client = GrafanaClient(grafana.url, token=TOKEN)
    yield client
    client.close()


@contextmanager
def answering_without_an_end(part: bytes, pause_s: float) -> Iterator[str]:
    """The address of a server whose answers are this part, again and again, until the block ends."""
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # the client hangs up
                while not is_over.wait(pause_s):
                    self.wfile.write(part)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with Serving(server):
        yield f"http://127.0.0.1:{server.server_port}"
        is_over.set()


def test_grafana_client_returns_none_for_a_missing_object(client: GrafanaClient) -> None:
    assert client.folder("tidegauge") is None
    assert client.data_source("prom") is None
    assert client.data_source_named("prom") is None
    assert client.dashboard("tidegauge-fleet") is None


def test_grafana_client_reads_back_what_it_stored(client: GrafanaClient) -> None:
    client.create_folder(Folder("tidegauge", "Tidegauge"))
    client.create_data_source(DataSource("prom", "Prometheus / one", "http://prometheus:9090"))
    client.save_dashboard(MODEL, folder_uid="tidegauge", overwrite=False, message="new")
    assert client.folder("tidegauge") == Folder("tidegauge", "Tidegauge")
    source = DataSource("prom", "Prometheus / one", "http://prometheus:9090")
    assert client.data_source("prom") == client.data_source_named("Prometheus / one") == source
    stored = client.dashboard("tidegauge-fleet")
    assert stored is not None
    assert (stored.folder_uid, stored.provisioned, stored.model["title"]) == ("tidegauge", False, "Fleet")


def test_a_grafana_below_a_path_is_found() -> None:
    with grafana_server(prefix="/tools/grafana") as grafana:
        client = GrafanaClient(grafana.url, token=TOKEN)
        client.create_folder(Folder("tidegauge", "Tidegauge"))
        assert client.url == grafana.url
        client.close()
    assert grafana.requests == ["POST /tools/grafana/api/folders"]


def test_a_data_source_that_moves_keeps_all_else(client: GrafanaClient, grafana: FakeGrafana) -> None:
    client.create_data_source(DataSource("prom", "Prometheus", "http://old:9090"))
    grafana.sources["prom"].update(basicAuth=True, basicAuthUser="ada", jsonData={"timeInterval": "30s"})
    client.move_data_source("prom", url="http://new:9090")
    after = grafana.sources["prom"]
    assert (after["url"], after["basicAuthUser"], after["jsonData"]) == (
        "http://new:9090", "ada", {"timeInterval": "30s"},
    )  # fmt: skip


def test_ids_and_versions_of_another_grafana_are_not_sent(client: GrafanaClient, grafana: FakeGrafana) -> None:
    client.save_dashboard({**MODEL, "id": 77, "version": 9}, folder_uid="", overwrite=False, message="")
    stored = grafana.dashboards["tidegauge-fleet"]["dashboard"]
    assert (stored["id"], stored["version"]) == (1, 1)


def test_an_annotation_is_made_found_and_changed(client: GrafanaClient, grafana: FakeGrafana) -> None:
    number = client.annotate(MARK)
    found = client.annotations(tags=("job:4711",), at_unix_ms=MARK.at_unix_ms)
    assert found == [StoredAnnotation(number, MARK.at_unix_ms, frozenset(MARK.tags))]
    assert client.annotations(tags=("job:4712",), at_unix_ms=MARK.at_unix_ms) == []
    over = Annotation(MARK.at_unix_ms, MARK.at_unix_ms + 60_000, MARK.tags, "it is over")
    assert client.change_annotation(number, over)
    assert (grafana.annotations[number]["timeEnd"], grafana.annotations[number]["text"]) == (
        1_800_000_060_000, "it is over",
    )  # fmt: skip


def test_an_annotation_that_was_deleted_cannot_be_changed(client: GrafanaClient) -> None:
    assert not client.change_annotation(12, MARK)


@pytest.mark.parametrize(
    ("status", "kind", "advice"),
    [
        (400, GrafanaRefusedError, "refuses POST"),
        (401, GrafanaRefusedError, "make a new one for the service account"),
        (403, GrafanaRefusedError, "needs the role Editor"),
        (404, GrafanaRefusedError, "is this Grafana's address"),
        (409, TakenError, "rename it"),
        (412, TakenError, "somebody else's dashboard"),
        (429, RetryLaterError, "with 429"),
        (500, RetryLaterError, "with 500"),
        (503, RetryLaterError, "with 503"),
    ],
)
def test_a_refusal_says_what_where_and_what_to_do(
    client: GrafanaClient, grafana: FakeGrafana, status: int, kind: type[Exception], advice: str
) -> None:
    grafana.instead = lambda _: Reply(status, {"message": "not\n today"})
    with pytest.raises(kind) as caught:
        client.create_folder(Folder("tidegauge", "Tidegauge"))
    text = str(caught.value)
    assert advice in text
    assert f"POST {grafana.url}/api/folders with {status}: not today" in text
    assert TOKEN not in text


@pytest.mark.parametrize("body", ["", "the word message on a page", '"message"', "[]", "5", '{"message": null}'])
def test_a_refusal_in_any_form_is_understood(client: GrafanaClient, grafana: FakeGrafana, body: str) -> None:
    grafana.instead = lambda _: Reply(502, body)
    with pytest.raises(RetryLaterError, match="with 502"):
        client.folder("tidegauge")


def test_a_long_page_is_cut(client: GrafanaClient, grafana: FakeGrafana) -> None:
    grafana.instead = lambda _: Reply(500, "x" * 100_000)
    with pytest.raises(RetryLaterError) as caught:
        client.folder("tidegauge")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(("header", "after_s"), [("7", 7.0), ("99999", 3600.0), ("soon", 30.0), (None, 30.0)])
def test_grafana_client_retries_after_the_servers_retry_after(
    client: GrafanaClient, grafana: FakeGrafana, header: str | None, after_s: float
) -> None:
    headers = {} if header is None else {"Retry-After": header}
    grafana.instead = lambda _: Reply(429, {"message": "slowly"}, headers)
    with pytest.raises(RetryLaterError) as caught:
        client.annotate(MARK)
    assert caught.value.after_s == after_s


@pytest.mark.parametrize("body", ["<html>log in</html>", "[]", '"ok"', "{}", '{"uid": 5}', "null"])
def test_an_answer_that_is_not_grafanas_is_refused(client: GrafanaClient, grafana: FakeGrafana, body: str) -> None:
    grafana.instead = lambda _: Reply(200, body)
    with pytest.raises(RefusedError, match="does not answer as Grafana does"):
        client.folder("tidegauge")


def test_the_token_does_not_follow_a_redirection(client: GrafanaClient, grafana: FakeGrafana) -> None:
    grafana.instead = lambda request: None if "login" in request else Reply(302, "", {"Location": "/login"})
    with pytest.raises(RefusedError, match="is redirected to /login"):
        client.folder("tidegauge")
    assert grafana.requests == ["GET /api/folders/tidegauge"]


def test_grafana_client_treats_a_refused_connection_as_retryable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets this port meanwhile
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        client = GrafanaClient(url, token=TOKEN)
        with pytest.raises(
            RetryLaterError, match=rf"^Grafana at {url} does not answer: \[Errno \d+\] Connection refused$"
        ):
            client.folder("tidegauge")
        client.close()


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = GrafanaClient(f"http://127.0.0.1:{silent.getsockname()[1]}", token=TOKEN, timeout_s=0.05)
        with pytest.raises(RetryLaterError, match="does not answer"):
            client.folder("tidegauge")
        client.close()


@pytest.mark.parametrize(
    ("part", "pause_s", "error", "words"),
    [
        pytest.param(b" " * 65536, 0.0, RefusedError, "more than 1 MiB", id="endless"),
        pytest.param(b" ", 0.02, RetryLaterError, "no whole answer within 0.3 s", id="drop by drop"),
    ],
)
def test_an_answer_without_an_end_is_given_up(part: bytes, pause_s: float, error: type[Exception], words: str) -> None:
    with answering_without_an_end(part, pause_s) as url:
        client = GrafanaClient(url, token=TOKEN, timeout_s=0.3, max_answer_bytes=1 << 20)
        with pytest.raises(error, match=words):
            client.check()
        client.close()


def test_grafana_client_reports_a_server_without_tls(grafana: FakeGrafana) -> None:
    client = GrafanaClient(grafana.url.replace("http:", "https:"), token=TOKEN)
    with pytest.raises(RetryLaterError, match="SSL"):
        client.folder("tidegauge")
    client.close()


@pytest.mark.parametrize("url", ["grafana.example", "ftp://grafana.example", "https://", ""])
def test_grafana_client_refuses_an_invalid_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"looks like https://grafana\.example"):
        GrafanaClient(url, token=TOKEN)


@pytest.mark.parametrize("url", ["https://admin:hunter2@grafana.example", "admin:hunter2@grafana.example"])
def test_a_password_in_the_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        GrafanaClient(url, token=TOKEN)
    assert "hunter2" not in str(caught.value)


def test_uids_are_one_part_of_the_path(client: GrafanaClient, grafana: FakeGrafana) -> None:
    assert client.dashboard("../../admin?x=1#y") is None
    assert grafana.requests == ["GET /api/dashboards/uid/..%2F..%2Fadmin%3Fx%3D1%23y"]


def test_check_accepts_a_token_and_refuses_another_with_the_mend(grafana: FakeGrafana) -> None:
    GrafanaClient(grafana.url, token=TOKEN).check()
    with pytest.raises(GrafanaRefusedError, match="put it into the token file"):
        GrafanaClient(grafana.url, token="glsa_revoked").check()


def test_check_refuses_what_is_no_grafana(grafana: FakeGrafana) -> None:
    grafana.instead = lambda _: Reply(200, {"status": "success"})
    with pytest.raises(RefusedError, match="does not answer as Grafana does"):
        GrafanaClient(grafana.url, token=TOKEN).check()
