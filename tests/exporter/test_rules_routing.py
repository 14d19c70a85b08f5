"""Alertmanager's configuration agrees with the table of what mutes what, and lets no alert of ours fall through."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegauge_exporter.messages.values import INCIDENT_ALERT
from tidegauge_exporter.rules.alerts import ALERTS, MUTES, Mute
from tidegauge_exporter.rules.values import AlertSeverity

FOLDER = Path(__file__).parents[2] / "deploy" / "observability" / "alertmanager"
NAMES = {rule.name for group in ALERTS for rule in group.rules} | {INCIDENT_ALERT}
MATCHER = re.compile(r'(\w+)(=~|=)"(.*)"')


def loaded(name: str) -> dict[str, Any]:
    configuration: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return configuration


def values(matchers: list[str], label: str) -> tuple[str, ...]:
    """What the matchers want of this label; empty: they do not ask."""
    for matcher in matchers:
        found = MATCHER.fullmatch(matcher)
        assert found is not None, matcher
        if found[1] == label:
            return tuple(found[3].split("|"))
    return ()


def as_mute(rule: dict[str, Any]) -> Mute:
    source, target = rule["source_matchers"], rule["target_matchers"]
    return Mute(
        values(source, "alertname"),
        values(target, "alertname"),
        tuple(rule["equal"]),
        next(iter(values(source, "severity")), None),
        next(iter(values(target, "severity")), None),
    )


both = pytest.mark.parametrize("name", ["alertmanager.yml", "alertmanager-slack.yml"])


@both
def test_inhibition_is_the_table(name: str) -> None:
    assert tuple(map(as_mute, loaded(name)["inhibit_rules"])) == MUTES


@both
def test_alert_routing_names_only_existing_alerts(name: str) -> None:
    named = set(re.findall(r"\bTidegauge[A-Z]\w+", (FOLDER / name).read_text(encoding="utf-8")))
    assert named - NAMES == set()


def test_muting_names_alerts_that_exist_and_labels_that_both_sides_can_have() -> None:
    for mute in MUTES:
        assert set(mute.sources + mute.targets) - NAMES == set()
        assert {mute.source_severity, mute.target_severity} - {None} <= {one.value for one in AlertSeverity}


@both
def test_alert_routing_sends_only_our_alerts_and_none_of_severity_info(name: str) -> None:
    route = loaded(name)["route"]
    assert route["receiver"] == "nobody"
    assert {"name": "nobody"} in loaded(name)["receivers"]
    for branch in route["routes"]:
        if "info" in values(branch["matchers"], "severity"):
            assert branch["receiver"] == "nobody"
        pattern = "|".join(values(branch["matchers"], "alertname"))
        assert [alert for alert in NAMES if re.fullmatch(pattern, alert)]
        assert not re.fullmatch(pattern, "SomebodyElsesAlert")


def test_no_secret_is_in_the_configuration() -> None:
    text = (FOLDER / "alertmanager-slack.yml").read_text(encoding="utf-8")
    assert "hooks.slack.com" not in text
    assert re.findall(r"\bapi_url:|\bcredentials:", text) == []
