"""Alertmanager's configuration agrees with the table of what mutes what, and lets no alert of ours fall through."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegauge_exporter.messages.values import INCIDENT_ALERT
from tidegauge_exporter.rules.alerts import ALERTS, JOB_ALERTS, MUTES, Mute
from tidegauge_exporter.rules.files import COMPONENT
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
        servers="|".join(found) if (found := values(source, "server")) else None,
        groups="|".join(values(target, "group")),
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
        assert branch["receiver"] in {receiver["name"] for receiver in loaded(name)["receivers"]}
        pattern = "|".join(values(branch["matchers"], "alertname"))
        assert [alert for alert in NAMES if re.fullmatch(pattern, alert)]
        assert not re.fullmatch(pattern, "SomebodyElsesAlert")


def receiver_of(name: str, **labels: str) -> str:
    """Where Alertmanager sends an alert: to the first branch that matches."""
    for branch in loaded(name)["route"]["routes"]:
        found = [MATCHER.fullmatch(matcher) for matcher in branch["matchers"]]
        if all(one and re.fullmatch(one[3], labels.get(one[1], "")) for one in found):
            return str(branch["receiver"])
    return str(loaded(name)["route"]["receiver"])


def test_alerts_about_the_service_go_past_the_service() -> None:
    sent = {
        rule.name: receiver_of(
            "alertmanager.yml",
            alertname=rule.name,
            severity=rule.severity.value,
            **({COMPONENT: group.component} if group.component else {}),
        )
        for group in ALERTS
        for rule in group.rules
    }
    of_jobs = {rule.name for rule in JOB_ALERTS.rules}
    assert {name for name, receiver in sent.items() if receiver == "tidegauge-service"} == set(sent) - of_jobs - {
        "Watchdog"
    }
    assert receiver_of("alertmanager.yml", alertname=INCIDENT_ALERT) == "tidegauge"


@both
def test_the_watchdog_goes_to_the_dead_mans_switch_every_minute_and_that_of_others_does_not(name: str) -> None:
    ours = {"alertname": "Watchdog", "severity": "none", COMPONENT: "service"}
    assert receiver_of(name, **ours) == "tidegauge-watchdog"
    assert receiver_of(name, alertname="Watchdog", severity="none") == "nobody"
    [branch] = [one for one in loaded(name)["route"]["routes"] if one["receiver"] == "tidegauge-watchdog"]
    assert (branch["group_interval"], branch["repeat_interval"]) == ("1m", "50s")


@both
def test_the_configuration_has_a_place_for_receivers_of_the_site(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    places = ["watchdog"] if "slack" in name else ["service", "watchdog"]
    for place in places:
        assert text.count(f"    # {place} receiver: begin\n") == text.count(f"    # {place} receiver: end\n") == 1


def test_no_secret_is_in_the_configuration() -> None:
    text = (FOLDER / "alertmanager-slack.yml").read_text(encoding="utf-8")
    assert "hooks.slack.com" not in text
    assert re.findall(r"\bapi_url:|\bcredentials:", text) == []
