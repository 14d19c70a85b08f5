"""The line on incidents and actions in ``tidegauge status``."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tidegauge.cli.main import main
from tidegauge.cluster.api.http_api import HttpApi, Route, json_route
from tidegauge.core.incidents.actions import LoopStatus

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


@pytest.fixture
def older_url() -> Iterator[str]:
    yield from api_with({})


def test_incidents_and_actions_are_a_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--api", url]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("actions"))
    assert line == "actions   policy observe, 3 incidents open, PAUSED by ada since noon"
    main(["status", "--json", "--api", url])
    assert json.loads(capsys.readouterr().out)["actions"]["incidents_open"] == 3


def test_a_coordinator_that_knows_no_incidents_is_no_error(older_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--api", older_url]) == 0
    assert "actions" not in capsys.readouterr().out
    main(["status", "--json", "--api", older_url])
    assert json.loads(capsys.readouterr().out)["actions"] is None
