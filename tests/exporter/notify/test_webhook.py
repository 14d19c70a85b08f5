from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge_exporter.messages.values import AlertGroup
from tidegauge_exporter.notify.receiver import NotAGroupError, parse_group

# As Debian's Alertmanager 0.25 sent it.
NOTIFICATION: dict[str, Any] = {
    "receiver": "tidegauge",
    "status": "firing",
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "TidegaugeIncident", "cluster": "rose", "incident": "12", "severity": "critical"},
            "annotations": {"summary": "Rank 1 of job 4711 leaks 12.0 MiB per step."},
            "startsAt": "2026-11-21T06:12:55Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "https://head.example/report?incident=12",
            "fingerprint": "c4b0ad62d63f5c64",
        }
    ],
    "groupLabels": {"alertname": "TidegaugeIncident"},
    "commonLabels": {"alertname": "TidegaugeIncident", "cluster": "rose"},
    "commonAnnotations": {},
    "externalURL": "http://head:9093",
    "version": "4",
    "groupKey": '{}:{alertname="TidegaugeIncident"}',
    "truncatedAlerts": 0,
}


def parsed(**changes: Any) -> AlertGroup:
    return parse_group(json.dumps({**NOTIFICATION, **changes}).encode())


def with_alert(**changes: Any) -> AlertGroup:
    return parsed(alerts=[{**NOTIFICATION["alerts"][0], **changes}])


def test_a_notification_is_read() -> None:
    group = parsed()
    assert group.group_key == '{}:{alertname="TidegaugeIncident"}'
    assert group.firing
    assert group.group_labels == {"alertname": "TidegaugeIncident"}
    assert group.external_url == "http://head:9093"
    (alert,) = group.alerts
    assert alert.name == "TidegaugeIncident"
    assert alert.labels["incident"] == "12"
    assert alert.annotations == {"summary": "Rank 1 of job 4711 leaks 12.0 MiB per step."}
    assert (alert.firing, alert.fingerprint, alert.starts_at) == (True, "c4b0ad62d63f5c64", "2026-11-21T06:12:55Z")
    assert alert.generator_url == "https://head.example/report?incident=12"


def test_the_end_and_what_was_cut_off_are_read() -> None:
    assert not parsed(status="resolved").firing
    assert not with_alert(status="resolved").alerts[0].firing
    assert parsed(truncatedAlerts=3).left_out == 3


def test_missing_labels_are_none_and_later_fields_are_left_aside() -> None:
    assert parsed(groupLabels=None, something="new").group_labels == {}


@pytest.mark.parametrize("address", ["javascript:alert(1)", "", None, 3, "https://" + "a" * 3000])
def test_webhook_drops_links_that_are_no_web_address(address: object) -> None:
    assert parsed(externalURL=address).external_url == ""
    assert with_alert(generatorURL=address).alerts[0].generator_url == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "3"}, {"version": None}, {"groupKey": ""}, {"groupKey": 1}, {"status": "odd"}, {"alerts": []},
        {"alerts": {}}, {"alerts": ["x"]}, {"groupLabels": []}, {"groupLabels": {"a": 1}}, {"truncatedAlerts": -1},
        {"truncatedAlerts": "1"}, {"truncatedAlerts": True}, {"alerts": [{}]},
    ],
)  # fmt: skip
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(NotAGroupError):
        parsed(**changes)


@pytest.mark.parametrize(
    "changes", [{"labels": {}}, {"labels": {"alertname": 1}}, {"fingerprint": ""}, {"startsAt": None}, {"status": 1}]
)
def test_an_alert_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(NotAGroupError):
        with_alert(**changes)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"\xff", b"[" * 500_000, b'{"version": "4"}'])
def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(NotAGroupError):
        parse_group(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(name=st.sampled_from(sorted(NOTIFICATION)), value=json_values)
def test_whatever_a_field_holds_it_is_read_or_refused(name: str, value: object) -> None:
    try:
        group = parsed(**{name: value})
    except NotAGroupError:
        return
    assert all(isinstance(text, str) for alert in group.alerts for text in alert.labels.values())


@given(name=st.sampled_from(sorted(NOTIFICATION["alerts"][0])), value=json_values)
def test_whatever_a_field_of_an_alert_holds_it_is_read_or_refused(name: str, value: object) -> None:
    try:
        (alert,) = with_alert(**{name: value}).alerts
    except NotAGroupError:
        return
    assert alert.name
    assert all(isinstance(text, str) for text in alert.annotations.values())
