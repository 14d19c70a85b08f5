"""The tables of rules: what they ask for exists, what they say is complete, and the committed files are theirs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from promql_labels import SERIES, labels_of_result, selectors
from tidegauge_exporter.messages.values import INCIDENT_ALERT
from tidegauge_exporter.rules.__main__ import main
from tidegauge_exporter.rules.alerts import ALERTS
from tidegauge_exporter.rules.docs_page import page
from tidegauge_exporter.rules.files import COMPONENT, Node, duration, rule_files, yaml_text
from tidegauge_exporter.rules.recording import JOINS, RECORDING, recorded_names
from tidegauge_exporter.rules.values import Addresses, AlertRule, Board, RecordingRule
from tidegauge_exporter.runbooks.job_alerts import JOB_RUNBOOK
from tidegauge_exporter.runbooks.service_alerts import SERVICE_RUNBOOK

RUNBOOK = (*JOB_RUNBOOK, *SERVICE_RUNBOOK)
ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "observability" / "prometheus" / "rules"
ALERT_RULES: list[AlertRule] = [rule for group in ALERTS for rule in group.rules]
RECORDING_RULES: list[RecordingRule] = [rule for group in RECORDING for rule in group.rules]
BOARD_LABELS = {
    Board.FLEET: set(),
    Board.INCIDENTS: {"cluster"},
    Board.JOB: {"cluster", "job_id", "attempt", "group"},
    Board.RANK: {"cluster", "job_id", "attempt", "group", "rank"},
}

by_name = pytest.mark.parametrize("rule", ALERT_RULES, ids=lambda rule: f"{rule.name}-{rule.severity.value}")


@pytest.mark.parametrize("name", rule_files(Addresses()))
def test_the_committed_file_is_what_the_tables_make(name: str) -> None:
    committed = (RULES / name).read_text(encoding="utf-8")
    assert committed == rule_files(Addresses())[name], f"run: python -m tidegauge_exporter.rules {RULES}"


def test_the_page_in_docs_is_what_the_tables_make() -> None:
    committed = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    assert committed == page(), "run: python -m tidegauge_exporter.rules.docs_page > docs/alerts.md"


def test_alerts_about_the_service_and_no_others_say_so_in_a_label() -> None:
    groups = yaml.safe_load(rule_files(Addresses())["tidegauge-alerts.yml"])["groups"]
    labelled = {group["name"]: {rule["labels"].get(COMPONENT) for rule in group["rules"]} for group in groups}
    assert labelled == {"tidegauge-job-alerts": {None}, "tidegauge-service-alerts": {"service"}}


def test_the_watchdog_fires_whatever_prometheus_knows() -> None:
    [watchdog] = [rule for rule in ALERT_RULES if rule.name == "Watchdog"]
    assert (watchdog.expr, watchdog.for_s, watchdog.severity.value) == ("vector(1)", 0, "none")


def test_the_yaml_means_what_the_tables_say() -> None:
    files: dict[str, Any] = {name: yaml.safe_load(text) for name, text in rule_files(Addresses()).items()}
    recording = [rule for group in files["tidegauge-recording.yml"]["groups"] for rule in group["rules"]]
    assert [(rule["record"], rule["expr"]) for rule in recording] == [
        (rule.record, rule.expr) for rule in RECORDING_RULES
    ]
    alerts = [rule for group in files["tidegauge-alerts.yml"]["groups"] for rule in group["rules"]]
    assert [(rule["alert"], rule["expr"], rule["annotations"]["description"]) for rule in alerts] == [
        (rule.name, rule.expr, rule.description) for rule in ALERT_RULES
    ]
    assert [rule.get("for", "0s") for rule in alerts][:2] == ["1m", "5m"]
    assert alerts[0]["labels"] == {"severity": "critical"}


LINES = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" ")).filter(str.isprintable)


@given(st.lists(LINES, min_size=1).map("\n".join).map(str.strip), st.from_regex(r"[a-z_]{1,9}", fullmatch=True))
def test_any_text_comes_back_from_the_yaml_as_it_was(text: str, word: str) -> None:
    rules: list[Node] = [{"expr": text, "labels": {"severity": word}}, {"expr": word}]
    made: dict[str, Node] = {"groups": [{"name": word, "rules": rules}]}
    assert yaml.safe_load(yaml_text(made, heading="any")) == made


@pytest.mark.parametrize(("seconds", "text"), [(30, "30s"), (90, "90s"), (300, "5m"), (3600, "1h"), (0, "0s")])
def test_durations_are_written_as_prometheus_reads_them(seconds: int, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("rule", RECORDING_RULES, ids=lambda rule: rule.record)
def test_a_recording_rule_reads_scraped_series_only_and_is_named_by_its_level(rule: RecordingRule) -> None:
    labels = labels_of_result(rule.expr)
    assert (
        labels
        == {
            "cluster_job": {"cluster", "job_id", "attempt", "group"},
            "cluster_node": {"cluster", "hostname"},
            "cluster": {"cluster"},
        }[rule.record.partition(":")[0]]
    )
    assert {selector.name for selector in selectors(rule.expr)} & recorded_names() == set()


@by_name
def test_alert_rule_uses_only_labels_and_series_that_exist(rule: AlertRule) -> None:
    labels = labels_of_result(rule.expr)
    used = set(re.findall(r"\$labels\.(\w+)", rule.summary + rule.description))
    assert used - labels == set()
    assert BOARD_LABELS[rule.board] - labels == set()
    assert not labels & {"component", "job"}, "an alert is not about a scrape job"


@by_name
def test_alert_rule_text_queries_only_existing_series(rule: AlertRule) -> None:
    looked_up = set(re.findall(r"tidegauge_\w+", rule.description)) | set(re.findall(r"tidegauge_\w+", rule.summary))
    assert looked_up - set(SERIES) == set()


@by_name
def test_an_alert_says_who_and_what_in_one_line_and_in_sentences(rule: AlertRule) -> None:
    assert rule.summary
    assert "\n" not in rule.summary + rule.description
    assert rule.description.endswith((".", "{{ end }}"))


def test_the_alerts_are_those_that_others_rely_on() -> None:
    assert {rule.name for rule in ALERT_RULES} == {
        "TidegaugeLeakOomSoon",
        "TidegaugeLeak",
        "TidegaugeOutOfMemory",
        "TidegaugeFragmentation",
        "TidegaugeUntrackedGrowth",
        "TidegaugeGpuMemoryUnheld",
        "TidegaugeMemoryNearlyFull",
        "TidegaugeRankLost",
        "TidegaugeRankSilent",
        "Watchdog",
        "TidegaugeAgentDown",
        "TidegaugeNodeStale",
        "TidegaugeCoordinatorDown",
        "TidegaugeDetectorSilent",
        "TidegaugeActionsFailing",
        "TidegaugeBreakerOpen",
        "TidegaugeUserBreakerOpen",
        "TidegaugeStoreDown",
        "TidegaugeSeriesDropped",
        "TidegaugeNotificationsFailing",
    }


def test_every_alert_has_a_runbook_and_no_runbook_is_about_nothing() -> None:
    entries = [entry.alert for entry in RUNBOOK]
    assert sorted(entries) == sorted({rule.name for rule in ALERT_RULES} | {INCIDENT_ALERT})


def test_runbooks_name_metrics_and_alerts_that_exist() -> None:
    text = " ".join(
        f"{entry.means} {entry.affects} {entry.first_look} {entry.what_to_do} {entry.escalate} {entry.when_to_silence}"
        for entry in RUNBOOK
    )
    assert set(re.findall(r"\btidegauge_\w+", text)) - set(SERIES) == set()
    assert set(re.findall(r"\bTidegauge[A-Z]\w+", text)) - {entry.alert for entry in RUNBOOK} == set()


def test_joins_ask_for_series_of_ours_that_exist() -> None:
    ours = {
        selector.name
        for join in JOINS
        for selector in selectors(join.expr)
        if selector.name and "tidegauge_" in selector.name
    }
    assert ours
    assert ours - set(SERIES) == set()


def test_addresses_are_what_the_options_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--grafana-url", "https://grafana.example/team/", "--runbook-url", "https://wiki.example/a"]
    options += ["--service-url", "https://head.example/tidegauge/"]
    assert main([str(tmp_path / "new"), *options]) == 0
    capsys.readouterr()
    loaded = yaml.safe_load((tmp_path / "new" / "tidegauge-alerts.yml").read_text(encoding="utf-8"))
    annotations = loaded["groups"][0]["rules"][0]["annotations"]
    assert annotations["dashboard_url"].startswith("https://grafana.example/team/d/tidegauge-rank?")
    assert annotations["runbook_url"] == "https://wiki.example/a#tidegaugeleakoomsoon"
    assert annotations["job_url"].startswith("https://head.example/tidegauge/job?job_id={{")


def test_alerts_about_jobs_link_to_their_pages_only_where_the_service_is_known() -> None:
    texts = [rule_files(addresses)["tidegauge-alerts.yml"] for addresses in (Addresses(), Addresses(service_url=None))]
    known, unknown = (
        {rule["alert"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"]
         if "job_url" in rule["annotations"]}
        for text in texts
    )  # fmt: skip
    assert unknown == set()
    assert known == {rule.name for group in ALERTS for rule in group.rules if rule.board in (Board.JOB, Board.RANK)}


@pytest.mark.parametrize(
    "address", ["grafana.example", "http://x/#y", "http://x/{{ 1 }}", "http://x\n- alert: y", "javascript:x"]
)
def test_rules_command_refuses_an_invalid_runbook_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "new"), "--runbook-url", address])
    assert "is not an http(s) address" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
