"""Debian's promtool and amtool judge the rules and configurations, and run the cases in tests/data/rules."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.needs import missing
from tidegauge_exporter.rules.__main__ import main
from tidegauge_exporter.rules.alerts import ALERTS
from tidegauge_exporter.rules.recording import JOINS, recorded_names

ROOT = Path(__file__).parents[2]
OBSERVABILITY = ROOT / "deploy" / "observability"
CASES = sorted((ROOT / "tests" / "data" / "rules").glob("*.yml"))


def run(program: str, *arguments: str | Path) -> str:
    """What it says; raises ``AssertionError`` with that if it is not content."""
    binary = shutil.which(program)
    if binary is None:
        missing(f"{program} is not installed")
    done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def cases() -> list[dict[str, Any]]:
    return [case for path in CASES for case in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]]


@pytest.mark.parametrize(
    "file", sorted((OBSERVABILITY / "prometheus" / "rules").glob("*.yml")), ids=lambda file: file.name
)
def test_promtool_accepts_the_rules(file: Path) -> None:
    assert "SUCCESS" in run("promtool", "check", "rules", file)


def test_promtool_accepts_rules_with_other_addresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path), "--grafana-url", "https://grafana.example/a?b=%7B", "--runbook-url", "https://[::1]:9495/'x'"])
    capsys.readouterr()
    run("promtool", "check", "rules", tmp_path / "tidegauge-alerts.yml")


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_rules_give_what_the_cases_say(file: Path) -> None:
    run("promtool", "test", "rules", file)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    told = [test for case in cases() for test in case.get("alert_rule_test", ())]
    names = {rule.name for group in ALERTS for rule in group.rules}
    assert {test["alertname"] for test in told if test["exp_alerts"]} == names
    assert {test["alertname"] for test in told if not test["exp_alerts"]} == names - {"Watchdog"}, "it always fires"


def test_every_rule_of_a_name_that_several_share_has_a_case_in_which_it_fires() -> None:
    fired = {
        (test["alertname"], alert["exp_labels"]["severity"], alert["exp_labels"].get("scope"))
        for case in cases()
        for test in case.get("alert_rule_test", ())
        for alert in test["exp_alerts"]
    }
    assert fired == {(rule.name, rule.severity.value, rule.scope) for group in ALERTS for rule in group.rules}


def test_every_recording_rule_has_a_case_with_a_value() -> None:
    asked = " ".join(
        test["expr"] for case in cases() for test in case.get("promql_expr_test", ()) if test["exp_samples"]
    )
    wanted = recorded_names() | {join.record for join in JOINS}
    assert wanted - set(re.findall(r"[\w:]+", asked)) == set()


@pytest.mark.parametrize("name", ["alertmanager.yml", "alertmanager-slack.yml"])
def test_amtool_accepts_the_configuration(name: str) -> None:
    assert "SUCCESS" in run("amtool", "check-config", OBSERVABILITY / "alertmanager" / name)


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (["alertname=TidegaugeIncident", "severity=critical"], "tidegauge"),
        (["alertname=TidegaugeAgentDown", "severity=warning"], "tidegauge"),
        (["alertname=TidegaugeRankLost", "severity=info"], "nobody"),
        (["alertname=NodeDown", "severity=critical"], "nobody"),
    ],
)
def test_amtool_sends_alerts_where_they_belong(labels: list[str], receiver: str) -> None:
    configuration = OBSERVABILITY / "alertmanager" / "alertmanager.yml"
    said = run("amtool", "config", "routes", "test", f"--config.file={configuration}", *labels)
    assert said.splitlines()[0] == receiver
