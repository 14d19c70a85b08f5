"""``tidegauge status``: what it says of a web configuration that cannot be used, over the socket of the head's own
commands and to people who show a token."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from still_service import AwayEngine, StillLoop
from tidegauge.cli.main import main
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.action_loop import ActionLoop, Opened
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
from tidegauge.cluster.ray_service.coordinator_service import CoordinatorService
from tidegauge.cluster.ray_service.exporter_pages import exporter_pages
from tidegauge.core.views import NodeSummary
from tidegauge.http.door_start import open_door
from tidegauge.http.tokens import make_token, token_line
from tidegauge.settings import Settings
from web_certificates import Authority

TOKENS = {"ada": make_token(), "root": make_token()}


class Head:
    """A coordinator's files of the web configuration, and its service once it runs."""

    def __init__(self, folder: Path) -> None:
        self.web = folder / "web.yml"
        self.tokens = folder / "tokens"
        self.local = f"unix://{folder}/api.sock"
        self._folder = folder
        self.url = ""

    def write_tokens(self) -> None:
        self.tokens.write_text("\n".join(token_line(name, token) for name, token in TOKENS.items()))
        self.tokens.chmod(0o600)

    @contextlib.contextmanager
    def running(self, **files: Path) -> Iterator[None]:
        settings = Settings(cluster="lab", api_admins="root", **files)  # type: ignore[arg-type]  # paths by name
        action_loop = ActionLoop(lambda: Opened(None, StillLoop(), lambda: 1.8e9), keep_incidents_s=1e9)  # type: ignore[arg-type]  # no page of the store is asked
        service = CoordinatorService(
            Coordinator(wall_s=lambda: 1.8e9, monotonic_s=lambda: 100.0, incarnation="c"), AwayEngine(),
            exporter_pages(settings), action_loop, cluster="lab", host="127.0.0.1", port=0, advertise_host="127.0.0.1",
            asks=EvidenceAsks(self._folder / "asks"), door=open_door(settings, what="a test"),
            local_socket=self._folder / "api.sock",
        )  # fmt: skip
        service.start()
        service.coordinator.report(NodeSummary("node0", "node0", 321, "i", "node0:9494", 1.8e9, ()))
        self.url = service.url
        try:
            yield
        finally:
            service.stop()


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def told(capsys: pytest.CaptureFixture[str], api: str) -> tuple[list[str], Any]:
    """What ``status`` says of the web configuration: its lines for people, and its value for programs."""
    assert main(["status", "--api", api]) == 0, "pages that are closed cost no node its agent"
    lines = capsys.readouterr().out.splitlines()
    assert main(["status", "--json", "--api", api]) == 0
    problem = json.loads(capsys.readouterr().out)["service"]["web_access_problem"]
    start = next((place for place, line in enumerate(lines) if line.startswith("access")), None)
    return [] if start is None else lines[start : start + 3], problem


def test_a_web_configuration_that_was_broken_at_the_start_is_said(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    head.web.write_text("CANARY: x")
    with head.running(web_config_file=head.web):
        lines, problem = told(capsys, head.local)
    assert lines[0] == "access    CLOSED: the API port answers nobody; commands on this node still work"
    assert lines[1].startswith(f"          web_config_file {head.web}: ")
    assert "there is no such key" in lines[1]
    assert lines[2].startswith("          next: mend it: ")
    assert (problem["closed"], problem["file"]) == (True, str(head.web))
    assert "there is no such key" in problem["text"]
    assert lines[2].endswith(problem["advice"])


def test_files_that_are_away_are_said_by_their_names(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    with head.running(api_tokens_file=head.tokens):
        lines, problem = told(capsys, head.local)
    assert lines[1] == f"          api_tokens_file: {head.tokens} cannot be read: No such file or directory"
    assert problem["file"] == str(head.tokens)


def test_status_reports_refused_access_files_until_they_are_corrected(
    head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    head.write_tokens()
    with head.running(api_tokens_file=head.tokens):
        assert told(capsys, head.local) == ([], None)
        head.tokens.chmod(0o644)
        lines, problem = told(capsys, head.local)
        head.tokens.chmod(0o600)
        assert told(capsys, head.local) == ([], None)
    assert lines[0] == "access    unchanged: the current files are invalid, their last valid state stays in force"
    assert "has mode 0644" in lines[1]
    assert "a restart of the service before that would close" in lines[2]
    assert (problem["closed"], problem["file"]) == (False, str(head.tokens))


def test_a_change_that_takes_a_restart_says_so(head: Head, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Authority(tmp_path).issue("node7")
    head.web.write_text("{}")
    with head.running(web_config_file=head.web):
        head.web.write_text("tls_server_config: {cert_file: node7.pem, key_file: node7.key}")
        lines, problem = told(capsys, head.local)
    assert "TLS was switched on or off" in lines[1]
    assert "tidegauge down" in lines[2]
    assert (problem["closed"], problem["file"]) == (False, str(head.web))


def test_a_user_is_told_whether_and_an_admin_what(
    head: Head, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head.write_tokens()
    with head.running(api_tokens_file=head.tokens):
        head.tokens.chmod(0o644)
        monkeypatch.setenv("TIDEGAUGE_API_TOKEN", TOKENS["ada"])
        lines, problem = told(capsys, head.url)
        assert lines[0].startswith("access    unchanged: ")
        assert str(head.tokens) not in "".join(lines)
        assert problem == {
            "closed": False, "file": None, "text": "(admins see why)", "advice": "tell an admin of this service",
        }  # fmt: skip
        monkeypatch.setenv("TIDEGAUGE_API_TOKEN", TOKENS["root"])
        assert told(capsys, head.url)[1]["file"] == str(head.tokens)
