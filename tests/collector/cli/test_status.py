"""The line on incidents and actions in ``tidegauge status``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sample_views import gpu_view
from tidegauge.cli.errors import USAGE
from tidegauge.cli.main import main
from tidegauge.cli.service.status import MAX_PROBLEMS
from tidegauge.cluster.api.http_api import HttpApi, Route, json_route
from tidegauge.cluster.views import NodeHealth, NodeStatus, ProfileProblem
from tidegauge.core.detector.unheld import UNHELD_FOR_S
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.wire import to_wire
from tidegauge.http.served_hosts import ServedHosts

SERVICE = {
    "cluster": "lab", "version": "1", "jobs_running": 2, "jobs_leaking": 1, "healthy": True, "nodes": [],
}  # fmt: skip
ACTIONS = LoopStatus("observe", None, incidents_open=3, paused="by ada since noon")


def api_with(routes: dict[str, Route]) -> Iterator[str]:
    api = HttpApi({"/api/v1/status": json_route(lambda _: SERVICE), **routes}, host="127.0.0.1", port=0)
    api.start()
    yield api.url
    api.stop()


@pytest.fixture
def url() -> Iterator[str]:
    yield from api_with({"/api/v1/policy": json_route(lambda _: ACTIONS)})


PROBLEMS = [
    ProfileProblem(JobKey("4711", 0, 7), (0, 1), "put off: memory profiles of uid 7 have had 10 min: again in 12 min"),
    *(ProfileProblem(JobKey(f"{job}", 1, 7), (3,), "refused: \x1b[2Jbusy") for job in range(MAX_PROBLEMS)),
]


def test_why_ranks_have_no_profile_is_a_line_for_each_job(capsys: pytest.CaptureFixture[str]) -> None:
    pages = {"/api/v1/profiled-jobs": json_route(lambda _: {"jobs": [], "problems": PROBLEMS, "seen_as": None})}
    for url in api_with(pages):
        assert main(["status", "--api", url]) == 0
        lines = capsys.readouterr().out.splitlines()
        begins = lines.index(f"profiles  job 4711, rank 0, 1: {PROBLEMS[0].problem}")
        assert lines[begins + 1].startswith("          job 0 (attempt 1), rank 3: refused: ")
        assert "\x1b" not in lines[begins + 1]
        assert lines[begins + MAX_PROBLEMS] == "          and 1 more; --json has them"
        main(["status", "--json", "--api", url])
        assert json.loads(capsys.readouterr().out)["profile_problems"] == to_wire(PROBLEMS)


def test_status_says_which_nodes_reports_are_not_understood_and_of_an_older_service_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fine = to_wire(NodeStatus("a", "node-a", None, NodeHealth.OK, 1, "i", None, 0.5, 0, ()))
    assert isinstance(fine, dict)
    older = {name: part for name, part in fine.items() if name != "problem"}
    wrong = [{**fine, "hostname": f"node-{number}", "problem": "too \x1bold"} for number in range(MAX_PROBLEMS + 1)]
    service = {**SERVICE, "nodes": [fine, older, *wrong]}
    for url in api_with({"/api/v1/status": json_route(lambda _: service)}):
        assert main(["status", "--api", url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[lines.index("node-0: too ?old") - 2].split()[0] == f"node-{MAX_PROBLEMS}", "below the table"
        assert not any(line.startswith(f"node-{MAX_PROBLEMS}:") for line in lines)
        assert lines[-1] == "and 1 more node; --json has them"


def test_status_says_which_gpus_have_memory_that_no_process_holds(capsys: pytest.CaptureFixture[str]) -> None:
    gpus = [gpu_view(0), gpu_view(1, unheld_bytes=3 << 30, unheld_for_s=UNHELD_FOR_S),
            gpu_view(2, unheld_bytes=3 << 30, unheld_for_s=UNHELD_FOR_S - 1)]  # fmt: skip
    node: Any = to_wire(NodeStatus("a", "node-a", None, NodeHealth.OK, 1, "i", None, 0.5, 0, tuple(gpus)))
    older = {**node, "gpus": [{"uuid": "GPU-9", "gpu": 9}]}
    for url in api_with({"/api/v1/status": json_route(lambda _: {**SERVICE, "nodes": [older, node]})}):
        assert main(["status", "--api", url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == f"node-a: 3.0 GiB of GPU 1 ({gpus[1].uuid}) held by no process for 10 min"
        assert len([line for line in lines if "held by no process" in line]) == 1


@pytest.fixture
def older_url() -> Iterator[str]:
    yield from api_with({})


def test_incidents_and_actions_are_a_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--api", url]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("actions"))
    assert line == "actions   policy observe, 3 incidents open, PAUSED by ada since noon"
    main(["status", "--json", "--api", url])
    assert json.loads(capsys.readouterr().out)["actions"]["incidents_open"] == 3


def test_status_names_the_web_page_at_the_public_address(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--api", url]) == 0
    assert f"web page  {url}/\n" in capsys.readouterr().out
    main(["status", "--json", "--api", url, "--set", "public_url=https://head.example"])
    assert json.loads(capsys.readouterr().out)["url"] == "https://head.example/"


def test_status_tells_the_ways_to_log_in_and_of_an_older_service_none(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["status", "--api", url]) == 0
    assert "logins" not in capsys.readouterr().out
    monkeypatch.setitem(SERVICE, "login_methods", ["token", "munge", "kubernetes", "proxy", "of a newer service"])
    assert main(["status", "--api", url]) == 0
    assert "logins    API token, MUNGE, Kubernetes token, proxy header, of a newer service\n" in capsys.readouterr().out


def test_a_coordinator_that_knows_no_incidents_is_no_error(older_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--api", older_url]) == 0
    printed = capsys.readouterr().out
    assert "actions" not in printed
    assert "profiles" not in printed
    main(["status", "--json", "--api", older_url])
    told = json.loads(capsys.readouterr().out)
    assert (told["actions"], told["profile_problems"]) == (None, None)


class NoName(ServedHosts):
    """As where an alias of the head is asked."""

    def serve(self, header: str | None) -> bool:
        return False


def test_at_a_name_that_the_service_does_not_answer_its_words_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    api = HttpApi({}, host="127.0.0.1", port=0, hosts=NoName())
    api.start()
    assert main(["status", "--api", api.url]) == USAGE
    api.stop()
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith("tidegauge status: without authentication this service answers at an IP address")
    assert "HTTP 421" not in told
