"""The coordinator's pages as Prometheus and the commands get them: real sockets, the exporter's own pages, no Ray."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from sample_views import LEAK, identity, rank_summary
from still_service import AwayEngine
from tidegauge.cli.main import main
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.action_loop import ActionLoop, Opened
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
from tidegauge.cluster.ray_service.coordinator_service import CoordinatorService
from tidegauge.cluster.ray_service.exporter_pages import exporter_pages
from tidegauge.cluster.store import StoreError
from tidegauge.core.ids import JobId
from tidegauge.core.verdicts import Band
from tidegauge.core.views import NodeSummary, RankSummary
from tidegauge.http.access import NO_HEADERS, OPEN_DOOR, OpenDoor, Viewer
from tidegauge.settings import Settings
from tidegauge_exporter.metrics.jobs import job_metrics
from waiting import PATIENCE_S


def no_database() -> Opened:
    raise StoreError("no database here")


class Lab:
    """A coordinator service and the reports that a test sends it."""

    def __init__(self, port: int = 0, door: OpenDoor = OPEN_DOOR) -> None:
        self.now_s = 100.0
        coordinator = Coordinator(wall_s=lambda: 1.8e9, monotonic_s=lambda: self.now_s, incarnation="c")
        pages = replace(
            exporter_pages(Settings(cluster="lab")),
            job_metrics=lambda jobs, loop, _, accept: job_metrics(
                jobs, cluster="lab", now_unix_s=1_800_000_000.25, accept=accept, loop=loop
            ),
        )
        self.service = CoordinatorService(
            coordinator, AwayEngine(), pages, ActionLoop(no_database, keep_incidents_s=0.0), cluster="lab",
            host="127.0.0.1", port=port, advertise_host="10.0.0.1", asks=EvidenceAsks(Path(__file__) / "no folder"),
            door=door, public_url="https://lab.example",
        )  # fmt: skip
        self.service.start()

    def report(self, *ranks: RankSummary) -> None:
        self.service.coordinator.report(NodeSummary("id", "node7", 321, "i", "node7:9494", 1.8e9 + self.now_s, ranks))

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.service.url + path, timeout=PATIENCE_S) as answer:
            body: bytes = answer.read()
            return body


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.service.stop()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_prometheus_is_told_of_every_node_and_of_the_coordinator(lab: Lab) -> None:
    lab.report()
    groups = json.loads(lab.get("/sd"))
    assert [group["targets"] for group in groups] == [[lab.service.url.removeprefix("http://")], ["node7:9494"]]
    assert groups[1]["labels"]["__meta_tidegauge_hostname"] == "node7"


def test_job_info_is_served_by_the_coordinator(lab: Lab) -> None:
    lab.report(rank_summary(0), rank_summary(1, verdict=LEAK))
    page = lab.get("/metrics").decode()
    assert 'tidegauge_job_leak_state{attempt="0",cluster="lab",job_id="4711"} 2.0' in page
    assert "tidegauge_job_info{" in page
    assert 'tidegauge_nodes{cluster="lab",health="ok"} 1.0' in page
    assert 'tidegauge_nodes{cluster="lab",health="gone"} 0.0' in page


def test_pages_for_programs_are_objects_with_a_list(lab: Lab) -> None:
    lab.report(rank_summary(0, verdict=LEAK))
    for path, key in (("nodes", "nodes"), ("jobs", "jobs"), ("events", "events")):
        assert len(json.loads(lab.get(f"/api/v1/{path}"))[key]) == {"nodes": 1, "jobs": 1, "events": 3}[path]
    assert [event["seq"] for event in json.loads(lab.get("/api/v1/events?after=1"))["events"]] == [2, 3]
    assert lab.get("/healthz") == b"ok\n"


def test_a_port_that_is_taken_costs_the_port_not_the_service(lab: Lab) -> None:
    taken = int(lab.service.url.rpartition(":")[2])
    other = Lab(port=taken)
    try:
        assert other.service.url != lab.service.url
        assert json.loads(other.get("/api/v1/status"))["cluster"] == "lab"
    finally:
        other.service.stop()


class AdasDoor(OpenDoor):
    def admit(self, authorization: str | None, peer: str, headers: Message[str, str] = NO_HEADERS) -> Viewer:
        return Viewer("ada", sees_all=False, reads_metrics=False)


def test_a_form_is_taken_from_the_address_that_people_reach_the_service_at() -> None:
    """Behind a proxy that changes Host."""
    lab = Lab(door=AdasDoor())
    try:
        for origin, status in (("https://lab.example", 503), ("https://other.example", 403)):  # 503: no database here
            form = Request(f"{lab.service.url}/grade", b"incident=1&grade=leak", {"Origin": origin})
            with pytest.raises(HTTPError) as refused:
                urllib.request.urlopen(form, timeout=PATIENCE_S)
            assert refused.value.code == status
            refused.value.close()
    finally:
        lab.service.stop()


def test_status_is_healthy_while_every_agent_reports_and_says_so_by_its_exit_code(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "status", "--api", lab.service.url)[0] == 1  # no node at all
    lab.report(rank_summary(0), rank_summary(1, verdict=LEAK))
    code, out, _ = run(capsys, "status", "--api", lab.service.url)
    assert code == 0
    assert "1 job running, 1 growing" in out
    assert "http://node7:9494/metrics" in out
    lab.now_s += 60
    code, out, _ = run(capsys, "status", "--api", lab.service.url)
    assert (code, "stale" in out, "not healthy" in out) == (1, True, True)


def test_jobs_name_the_rank_that_leaks_and_what_it_costs(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.report(rank_summary(0), rank_summary(1, verdict=LEAK))
    code, out, _ = run(capsys, "jobs", "--api", lab.service.url)
    header, row = out.splitlines()
    assert (code, header.split()[:4]) == (0, ["job", "name", "user", "ranks"])
    cells = ["4711", "llm-pretrain", "ada", "2/2", "200", "10.0 GiB", "12.0 GiB", "leak (critical)", "rank 1",
             "allocated", "12.0 MiB", "14\u201322 min"]  # fmt: skip
    assert [cell.strip() for cell in row.split("  ") if cell.strip()] == cells


def test_a_leak_fails_jobs_only_where_that_is_asked_for(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    api = ("--api", lab.service.url)
    assert run(capsys, "jobs", "--fail-on-leak", *api)[0] == 0
    lab.report(rank_summary(0), rank_summary(1, verdict=LEAK))
    assert run(capsys, "jobs", *api)[0] == 0
    assert run(capsys, "jobs", "--fail-on-leak", *api)[0] == 1
    lab.report()
    code, out, _ = run(capsys, "jobs", "--fail-on-leak", *api)
    assert (code, "ended" in out) == (0, True)


def test_jobs_in_json_are_what_the_api_says(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    endless = LEAK._replace(seconds_to_oom=Band(60.0, 90.0, float("inf")))
    lab.report(rank_summary(0, verdict=endless))
    out = json.loads(run(capsys, "jobs", "--json", "--api", lab.service.url)[1])
    assert out["jobs"][0]["ranks"][0]["verdict"]["seconds_to_oom"] == {"low": 60.0, "likely": 90.0, "high": None}
    assert "or more" in run(capsys, "jobs", "--api", lab.service.url)[1]


def test_a_growth_that_all_ranks_share_is_not_blamed_on_one(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.report(rank_summary(0, verdict=LEAK), rank_summary(1, verdict=LEAK))
    assert "all alike (2)" in run(capsys, "jobs", "--api", lab.service.url)[1]


def test_a_name_from_a_job_is_printed_as_text(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    rogue = identity(0, job_name="[red]x[/red]", job_id=JobId("a[b]"))
    lab.report(rank_summary(0, identity=rogue))
    out = run(capsys, "jobs", "--api", lab.service.url)[1]
    assert "[red]x[/red]" in out
    assert "a[b]" in out


def test_without_a_service_the_commands_say_how_to_start_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGAUGE_STATE_DIR", str(tmp_path))
    for command in ("status", "jobs"):
        code, _, err = run(capsys, command)
        assert (code, "tidegauge up" in err) == (3, True)
    code, out, _ = run(capsys, "status", "--json")
    answer: dict[str, Any] = json.loads(out)
    assert (code, answer["running"], answer["healthy"]) == (3, False, False)
    assert run(capsys, "down")[0] == 0


def test_an_api_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "jobs", "--api", "http://127.0.0.1:1")
    assert (code, "no answer from http://127.0.0.1:1" in err) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--join", "10.0.0.1:6399"], "--token-file go together"),
        (["--node-address", "node7"], "--node-address takes an IP address"),
    ],
)
def test_a_wrong_call_of_up_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code, _, err = run(capsys, "up", "--set", f"state_dir={tmp_path}/s", *arguments)
    assert (code, said in err) == (2, True)


@pytest.mark.parametrize(
    ("mode", "text", "said"),
    [
        (0o644, "t" * 64, "chmod 600"),
        (0o440, "t" * 64, "chmod 600"),
        (0o600, "", "contains no token"),
        (0o600, "two words", "contains no token"),
    ],
)
def test_a_token_that_is_open_or_empty_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int, text: str, said: str
) -> None:
    token = tmp_path / "token"
    token.write_text(text)
    token.chmod(mode)
    join = ("--join", "127.0.0.2:1", "--token-file", str(token))
    code, _, err = run(capsys, "up", "--set", f"state_dir={tmp_path}/s", *join)
    assert (code, said in err) == (3, True)


@pytest.mark.parametrize("head", ["10.0.0.1", "10.0.0.1:0", "10.0.0.1:\u00b2", "10.0.0.1:" + "1" * 5000])
def test_up_join_explains_an_invalid_head_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], head: str
) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 64)
    token.chmod(0o600)
    code, _, err = run(capsys, "up", "--set", f"state_dir={tmp_path}/s", "--join", head, "--token-file", str(token))
    assert (code, "--join takes HOST:PORT" in err) == (2, True)


def test_joining_a_head_on_loopback_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 64)
    join = ("--join", "127.0.0.1:6399", "--token-file", str(token))
    code, _, err = run(capsys, "up", "--set", f"state_dir={tmp_path}/s", *join)
    assert (code, "--node-address" in err) == (3, True)
