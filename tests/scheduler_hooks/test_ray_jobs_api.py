"""The client of Ray's job API: what it reads, and how it says what went wrong, against recorded answers."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_ray_jobs import (
    FakeRayJobs,
    Fault,
    drip,
    drip_unmeasured,
    drop,
    half,
    ray_jobs_server,
    recorded,
    says,
    silence,
)
from tidegauge_scheduler_hooks.ports import PermanentError, SchedulerError, TemporaryError
from tidegauge_scheduler_hooks.ray_jobs.api import RayJobsApi

TOKEN = "3f6a0c-not-to-be-seen"

CALLS: dict[str, Callable[[RayJobsApi], object]] = {
    "list": lambda api: api.jobs(),
    "look": lambda api: api.job("llm"),
    "stop": lambda api: api.stop("llm"),
    "submit": lambda api: api.submit({"submission_id": "llm-attempt-1", "entrypoint": "true"}),
    "delete": lambda api: api.delete("llm"),
    "package": lambda api: api.has_package("gcs://a.zip"),
    "put": lambda api: api.put_package("gcs://a.zip", b"x"),
}
ANY_CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def cluster() -> Iterator[FakeRayJobs]:
    with ray_jobs_server() as server:
        yield server


@pytest.fixture
def api(cluster: FakeRayJobs) -> RayJobsApi:
    return RayJobsApi(cluster.url)


def always(cluster: FakeRayJobs, fault: Fault) -> None:
    cluster.instead = lambda _: fault


def test_every_state_of_a_job_is_read(cluster: FakeRayJobs, api: RayJobsApi) -> None:
    cluster.jobs = {str(number): job for number, job in enumerate(recorded("jobs")["body"])}
    jobs = api.jobs()
    assert {(job.submission_id, job.status, job.finished) for job in jobs} == {
        ("llm", "RUNNING", False), ("needs-gpus", "PENDING", False), ("asleep", "STOPPED", True),
        ("broken", "FAILED", True), ("warm-up", "SUCCEEDED", True), (None, "RUNNING", False),
    }  # fmt: skip
    (llm,) = [job for job in jobs if job.submission_id == "llm"]
    assert llm.ray_job_id == recorded("job")["body"]["job_id"]
    assert llm.started_unix_ms == recorded("job")["body"]["start_time"]
    assert llm.metadata["tidegauge.requeue"] == "true"
    assert llm.environ == {"TIDEGAUGE_PROFILE": "auto", "TIDEGAUGE_JOB_ID": "llm"}


def test_a_job_is_found_by_either_id(cluster: FakeRayJobs, api: RayJobsApi) -> None:
    cluster.add("llm", job_id="03000000")
    assert api.job("llm") == api.job("03000000")
    assert api.job("nobody") is None


def test_an_id_with_odd_characters_stays_one_id(cluster: FakeRayJobs, api: RayJobsApi) -> None:
    cluster.add("a/b?c#d e")
    found = api.job("a/b?c#d e")
    assert found is not None
    assert found.submission_id == "a/b?c#d e"


def test_stop_says_whether_there_was_something_to_stop(cluster: FakeRayJobs, api: RayJobsApi) -> None:
    cluster.add("llm")
    assert [api.stop("llm"), api.stop("llm"), api.stop("nobody")] == [True, False, False]


def test_an_id_that_exists_is_refused_for_good(cluster: FakeRayJobs, api: RayJobsApi) -> None:
    cluster.add("llm-attempt-1")
    with pytest.raises(PermanentError, match=r"start job llm-attempt-1.*already exists"):
        CALLS["submit"](api)
    assert cluster.submitted == []


def test_a_path_before_the_api_is_kept(cluster: FakeRayJobs) -> None:
    assert RayJobsApi(cluster.url + "/ray/").address == cluster.url + "/ray"
    RayJobsApi(cluster.url + "/ray/").job("llm")
    assert cluster.requests == ["GET /ray/api/jobs/llm"]


@pytest.mark.parametrize(
    "address",
    ["head:8265", "ftp://head", "http://", "http://ada:secret@head", "http://h?x=1", "http://h:99999", "http://[::1"],
)
def test_ray_jobs_api_refuses_an_invalid_address_without_quoting_it(address: str) -> None:
    with pytest.raises(ValueError, match="looks like http://head:8265") as refused:
        RayJobsApi(address)
    assert "secret" not in str(refused.value)


# What can go wrong


@ANY_CALL
@pytest.mark.parametrize(
    "fault",
    [drop, half, says(500, "500 Internal Server Error\n\nServer got itself in trouble"), says(503, ""), says(429, "")],
    ids=["drop", "half", "500", "503", "429"],
)
def test_no_whole_answer_is_temporary(
    cluster: FakeRayJobs, api: RayJobsApi, call: Callable[[RayJobsApi], object], fault: Fault
) -> None:
    always(cluster, fault)
    with pytest.raises(TemporaryError, match=cluster.url):
        call(api)


@ANY_CALL
@pytest.mark.parametrize("fault", [silence, drip, drip_unmeasured])
def test_a_call_ends_in_time_however_the_answer_comes(
    cluster: FakeRayJobs, call: Callable[[RayJobsApi], object], fault: Fault
) -> None:
    always(cluster, fault)
    with pytest.raises(TemporaryError, match=r"no answer within 0\.2 s"):
        call(RayJobsApi(cluster.url, timeout_s=0.2))


def test_ray_jobs_api_reports_a_refused_connection_as_temporary() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TemporaryError, match=f"{address}: cannot list its jobs"):
            RayJobsApi(address).jobs()


def test_ray_jobs_api_passes_on_no_control_characters_of_a_head_that_speaks_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"\x1b[2J\rfake line\x07 injected\r\n")

        head = threading.Thread(target=answer)
        head.start()
        with pytest.raises(TemporaryError, match="fake line") as failed:
            RayJobsApi(f"http://127.0.0.1:{server.getsockname()[1]}").jobs()
        head.join()
    assert str(failed.value).isprintable()


def test_ray_jobs_api_passes_on_no_control_characters_of_an_error_page(cluster: FakeRayJobs, api: RayJobsApi) -> None:
    always(cluster, says(500, "a\x1b[2Jb\x07 refused"))
    with pytest.raises(TemporaryError, match="refused") as failed:
        api.jobs()
    assert str(failed.value).isprintable()


@pytest.mark.parametrize("name", ["list", "look"])
@pytest.mark.parametrize("body", ["<html>log in, please</html>", "[[[", '"text"', "[{}]", '{"status": "RUNNING"}', " "])
def test_ray_jobs_api_reports_an_unexpected_answer_as_temporary_without_quoting_it(
    cluster: FakeRayJobs, api: RayJobsApi, name: str, body: str
) -> None:
    always(cluster, says(200, body, "text/html"))
    with pytest.raises(TemporaryError) as failed:
        CALLS[name](api)
    assert str(failed.value).endswith(f"unexpected answer (text/html, {len(body)} bytes)")


@pytest.mark.parametrize("name", ["stop", "submit"])
def test_a_page_for_people_is_not_taken_for_consent(cluster: FakeRayJobs, api: RayJobsApi, name: str) -> None:
    always(cluster, says(200, "<html>log in, please</html>", "text/html"))
    with pytest.raises(TemporaryError, match="unexpected answer"):
        CALLS[name](api)


@ANY_CALL
@pytest.mark.parametrize("status", [301, 307, 400, 405, 410])
def test_a_refusal_is_permanent_and_a_redirection_is_not_followed(
    cluster: FakeRayJobs, api: RayJobsApi, call: Callable[[RayJobsApi], object], status: int
) -> None:
    always(cluster, says(status, "no\n" + "x" * 5000))
    with pytest.raises(PermanentError, match=f"HTTP {status}") as refused:
        call(api)
    assert len(cluster.requests) == 1
    assert len(str(refused.value)) < 600


def test_a_cluster_without_the_job_api_is_told_what_it_lacks(cluster: FakeRayJobs, api: RayJobsApi) -> None:
    always(cluster, says(404, "404: Not Found"))
    with pytest.raises(PermanentError, match=r"ray\[default\]"):
        api.jobs()


# The token


@ANY_CALL
def test_the_token_is_sent_with_every_call_and_in_no_message(
    call: Callable[[RayJobsApi], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    with ray_jobs_server(token=TOKEN) as cluster, caplog.at_level(logging.DEBUG):
        cluster.add("llm")
        call(RayJobsApi(cluster.url, token_file=token_file))
        for fault in (drop, half, says(500, "no"), says(400, "no"), says(403, "no")):
            always(cluster, fault)
            with pytest.raises(SchedulerError) as failed:
                call(RayJobsApi(cluster.url, token_file=token_file))
            assert TOKEN not in str(failed.value)
    assert TOKEN not in caplog.text


def test_a_missing_and_a_wrong_token_say_what_to_do(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("another cluster's")
    with ray_jobs_server(token=TOKEN) as cluster:
        with pytest.raises(PermanentError, match=r"\(HTTP 401\): set ray_jobs_token_file"):
            RayJobsApi(cluster.url).jobs()
        with pytest.raises(PermanentError, match=rf"\(HTTP 403\): does {token_file} belong to that cluster"):
            RayJobsApi(cluster.url, token_file=token_file).jobs()
        token_file.write_text(TOKEN)
        assert RayJobsApi(cluster.url, token_file=token_file).jobs() == []


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"one\ntwo"])
def test_a_token_that_cannot_be_used_is_said_with_its_file(
    cluster: FakeRayJobs, tmp_path: Path, content: bytes | None
) -> None:
    token_file = tmp_path / "token"
    if content is not None:
        token_file.write_bytes(content)
    with pytest.raises(PermanentError, match=str(token_file)):
        RayJobsApi(cluster.url, token_file=token_file).jobs()
    assert cluster.requests == []
