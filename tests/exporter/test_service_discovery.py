from __future__ import annotations

import json
from typing import Any

import pytest

from tidegauge.core.views import NodeSummary
from tidegauge_exporter.metrics.service_discovery import advertised_address, http_sd


def node(hostname: str, address: str | None, **changes: Any) -> NodeSummary:
    return NodeSummary(
        node_id=changes.get("node_id", f"id-{hostname}"),
        hostname=hostname,
        agent_pid=1,
        incarnation="a",
        metrics_address=address,
        sent_unix_s=0.0,
    )


def test_every_node_is_a_group_of_its_own_in_order_of_name() -> None:
    groups = http_sd([node("n2", "n2:9494"), node("n1", "n1:9494")], cluster="lab")
    assert [group["targets"] for group in groups] == [["n1:9494"], ["n2:9494"]]
    assert groups[0]["labels"] == {
        "__meta_tidegauge_component": "agent",
        "__meta_tidegauge_cluster": "lab",
        "__meta_tidegauge_hostname": "n1",
        "__meta_tidegauge_node_id": "id-n1",
    }
    assert json.loads(json.dumps(groups)) == groups


def test_a_node_that_serves_no_metrics_is_left_out() -> None:
    assert http_sd([node("n1", None)], cluster="lab") == []


def test_service_discovery_lists_an_address_once() -> None:
    groups = http_sd([node("n1", "n1:9494", node_id="old"), node("n1", "n1:9494", node_id="new")], cluster="lab")
    assert len(groups) == 1


def test_the_coordinator_is_a_target_too() -> None:
    groups = http_sd([node("n1", "n1:9494")], cluster="lab", coordinator_address="head:9495")
    assert groups[0] == {
        "targets": ["head:9495"],
        "labels": {"__meta_tidegauge_component": "coordinator", "__meta_tidegauge_cluster": "lab"},
    }
    assert len(groups) == 2


@pytest.mark.parametrize(
    ("bound", "advertised"),
    [
        ("0.0.0.0:9494", "node7:9494"),
        ("[::]:9494", "node7:9494"),
        (":9494", "node7:9494"),
        ("127.0.0.1:9494", "127.0.0.1:9494"),
        ("10.0.0.7:1", "10.0.0.7:1"),
        ("https://0.0.0.0:9494", "https://node7:9494"),
        ("https://10.0.0.7:1", "https://10.0.0.7:1"),
        ("[::1]:9494", "[::1]:9494"),
    ],
)
def test_a_server_on_every_address_is_reached_by_name(bound: str, advertised: str) -> None:
    assert advertised_address(bound, "node7") == advertised


def test_service_discovery_marks_tls_targets_with_the_https_scheme() -> None:
    groups = http_sd(
        [node("n1", "https://n1:9494"), node("n2", "n2:9494")], cluster="lab", coordinator_address="https://head:9495"
    )
    assert [(group["targets"], group["labels"].get("__scheme__")) for group in groups] == [
        (["head:9495"], "https"), (["n1:9494"], "https"), (["n2:9494"], None),
    ]  # fmt: skip


def test_a_node_with_an_ipv6_address_is_named_in_brackets() -> None:
    assert advertised_address("[::]:9494", "fd00::7") == "[fd00::7]:9494"


def test_the_notifier_is_a_target_on_the_coordinators_host_with_its_scheme() -> None:
    groups = http_sd([], cluster="lab", coordinator_address="https://[fd00::7]:9495", notifier_port=9496)
    assert groups[1] == {
        "targets": ["[fd00::7]:9496"],
        "labels": {
            "__scheme__": "https", "__meta_tidegauge_component": "notifier", "__meta_tidegauge_cluster": "lab",
        },
    }  # fmt: skip
