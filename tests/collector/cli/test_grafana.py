"""``tidegauge grafana``: apply, annotations and export, against a Grafana on loopback."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.fake_grafana import TOKEN, FakeGrafana, Reply, grafana_server
from loop_store import FakeIncidents, FakeStore, serving, told_store
from scheduler_values import incident
from tidegauge.cli.main import main
from tidegauge.core.incidents import ChangeKind, IncidentChange, IncidentState
from tidegauge.core.incidents.actions import LoopStatus

UIDS = {
    "tidegauge-fleet", "tidegauge-job", "tidegauge-rank", "tidegauge-node", "tidegauge-incidents",
    "tidegauge-efficiency",
}  # fmt: skip
OBSERVING = LoopStatus("observe", None)
EVER = ["--since", "9999w"]
"""The moment of the sample values is a fixed one."""


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    with grafana_server() as server:
        yield server


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGAUGE_GRAFANA_TOKEN", raising=False)


@pytest.fixture
def there(grafana: FakeGrafana, tmp_path: Path) -> list[str]:
    """The flags that name Grafana and the token."""
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    return ["--url", grafana.url, "--token-file", str(token)]


@pytest.fixture
def api() -> Iterator[str]:
    with serving(told_store(), OBSERVING) as url:
        yield url


# apply


def test_apply_puts_everything_there(
    grafana: FakeGrafana, there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["grafana", "apply", *there, "--prometheus-url", "http://prometheus:9090"]) == 0
    said = capsys.readouterr()
    assert set(grafana.dashboards) == UIDS
    assert "dashboard    tidegauge-fleet       created" in said.out
    assert f"first dashboard: {grafana.url}/d/tidegauge-fleet" in said.out
    assert "8 of 8" in said.err


def test_apply_again_has_nothing_to_do(
    grafana: FakeGrafana, there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["grafana", "apply", *there]) == 0
    grafana.requests.clear()
    assert main(["grafana", "apply", *there]) == 0
    assert capsys.readouterr().out.endswith("\nnothing to change\n")
    assert grafana.writes == []


def test_a_dry_run_only_says_so(grafana: FakeGrafana, there: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grafana", "apply", *there, "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["dry_run"]
    assert {step["uid"]: step["change"] for step in answer["steps"]} == {
        "tidegauge": "create", "-": "unchanged", **dict.fromkeys(UIDS, "create"),
    }  # fmt: skip
    assert grafana.writes == []


def test_grafana_apply_exits_1_if_a_dashboard_is_refused(
    grafana: FakeGrafana, there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.add_dashboard({"uid": "tidegauge-job", "title": "Boats"})
    assert main(["grafana", "apply", *there]) == 1
    assert "'Boats' has this uid and is not ours" in capsys.readouterr().out
    assert set(grafana.dashboards) == UIDS


def test_grafana_apply_lists_completed_steps_if_grafana_fails_midway(
    grafana: FakeGrafana, there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.instead = lambda request: Reply(503, "") if request == "POST /api/dashboards/db" else None
    assert main(["grafana", "apply", *there]) == 3
    said = capsys.readouterr()
    assert "folder       tidegauge  created" in said.out
    assert "first dashboard" not in said.out
    assert f"Grafana refuses POST {grafana.url}/api/dashboards/db with 503" in said.err


def test_grafana_apply_at_another_server_prints_no_steps_and_exits_3(
    grafana: FakeGrafana, there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.instead = lambda _: Reply(404, "404 page not found")
    assert main(["grafana", "apply", *there]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "is this Grafana's address" in said.err


def test_grafana_apply_refused_at_its_first_step_prints_no_success(
    grafana: FakeGrafana, there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.role = "Viewer"
    assert main(["grafana", "apply", *there]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "with 403" in said.err


def test_a_wrong_token_is_said_and_not_shown(
    grafana: FakeGrafana, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEGAUGE_GRAFANA_TOKEN", "glsa_wrong")
    assert main(["grafana", "apply", "--set", f"grafana_url={grafana.url}"]) == 3
    said = capsys.readouterr()
    assert "make a new one for the service account" in said.err
    assert "glsa_wrong" not in said.out + said.err


def test_a_token_that_others_can_read_is_refused(
    there: list[str], grafana: FakeGrafana, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(there[-1]).chmod(0o644)
    assert main(["grafana", "apply", *there]) == 2
    assert "run chmod 600" in capsys.readouterr().err
    assert grafana.requests == []


def test_without_address_or_token_it_says_how_to_give_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grafana", "apply"]) == 2
    assert "--url https://grafana.example, or the setting grafana_url" in capsys.readouterr().err
    assert main(["grafana", "apply", "--url", "http://127.0.0.1:1"]) == 2
    assert "pass that with --token-file" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["grafana.example", "http://ada:pw@grafana.example", "http://[", "https://x/{{y}}"])
def test_grafana_apply_refuses_an_invalid_url_with_exit_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["grafana", "apply", "--url", url])
    assert caught.value.code == 2
    assert "not a URL such as https://grafana.example" in capsys.readouterr().err


# annotations


def test_recorded_incidents_are_drawn_once(
    grafana: FakeGrafana, there: list[str], api: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["grafana", "annotations", *there, "--api", api, *EVER]
    assert main(command) == 0
    assert main(command) == 0
    assert len(grafana.annotations) == 4
    said = capsys.readouterr()
    assert "tidegauge, cluster:default, incident:1, job:4711, action:checkpoint" in said.out
    assert "now in Grafana: 4 annotations" in said.out
    assert "incident 1, 2 of 2" in said.err


def test_a_dry_run_of_annotations_needs_no_grafana(api: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grafana", "annotations", "--api", api, *EVER, "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["annotations"]) == 4


def test_grafana_annotations_since_limits_incidents_to_that_time(capsys: pytest.CaptureFixture[str]) -> None:
    def closed(number: int, *, ago_s: float) -> IncidentChange:
        over_s = time.time() - ago_s
        over = incident(number=number, state=IncidentState.CLOSED, opened_unix_s=over_s - 60.0, closed_unix_s=over_s)
        return IncidentChange(ChangeKind.CLOSED, over_s, over)

    with serving(FakeStore(FakeIncidents([closed(1, ago_s=7200), closed(2, ago_s=60)])), OBSERVING) as url:
        assert main(["grafana", "annotations", "--api", url, "--dry-run", "--since", "1h"]) == 0
    said = capsys.readouterr().out
    assert "incident:2" in said
    assert "dry run: 1 annotation" in said


# export


def test_export_writes_dashboards_and_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a folder"
    addresses = ["--grafana-url", "https://g.example/", "--runbook-url", "https://wiki.example/tidegauge"]
    assert main(["grafana", "export", str(folder), *addresses, "--set", "contact=GPU on-call"]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.stem for path in written if path.parent.name == "dashboards"} == UIDS
    assert all(json.loads(path.read_text())["uid"] == path.stem for path in written if path.suffix == ".json")
    alerts = (folder / "rules" / "tidegauge-alerts.yml").read_text()
    assert "https://g.example/d/tidegauge-job?" in alerts
    assert "https://wiki.example/tidegauge#tidegaugeleak\n" in alerts
    assert "GPU on-call" in (folder / "runbooks" / "tidegauge-runbooks.html").read_text()


def test_export_into_what_is_no_folder_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["grafana", "export", str(tmp_path / "file")]) == 3
    assert "cannot write " in capsys.readouterr().err
