"""Incidents in a real Alertmanager: how their alerts begin and end there. Its clock is the host's, ours is a value."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.notify.telling import LINKS, closed, escalated, warning
from incident_watch import Watch, replica
from integration.alertmanager_server import AlertmanagerServer, alertmanager_binary, running_alertmanager
from integration.needs import missing
from sample_views import NOW_S
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.alertmanager import ENDS_LATER_S, AlertmanagerSink

pytestmark = pytest.mark.timeout(400)

CONFIG = Path(__file__).parents[2] / "deploy/observability/alertmanager/alertmanager.yml"


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AlertmanagerServer]:
    if alertmanager_binary() is None:
        missing("alertmanager is not installed")
    with running_alertmanager(tmp_path_factory.mktemp("alertmanager"), CONFIG) as server:
        yield server


class Late:
    """The host's clock, set back by so much."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return time.time() - self.seconds


def severities(alertmanager: AlertmanagerServer, cluster: str) -> list[str]:
    return sorted(alert["labels"]["severity"] for alert in alertmanager.alerts(cluster=cluster))


def sink(alertmanager: AlertmanagerServer, cluster: str, clock: Late) -> AlertmanagerSink:
    # Nobody here tries again when the server stood still for the usual 10 s.
    return AlertmanagerSink(alertmanager.url, cluster=cluster, links=LINKS, wall_s=clock, timeout_s=60.0)


def test_alert_ends_a_while_after_its_incident(alertmanager: AlertmanagerServer) -> None:
    clock = Late(ENDS_LATER_S + 10.0)
    posts = sink(alertmanager, "ends", clock)
    posts.take([warning()])
    posts.take([closed(warning())])
    assert severities(alertmanager, "ends") == ["warning"]
    clock.seconds = 1.0
    posts.take([closed(warning())])
    assert severities(alertmanager, "ends") == []


def test_notifier_that_takes_over_ends_what_the_one_before_has_left(alertmanager: AlertmanagerServer) -> None:
    clock = Late(2.0)
    sink(alertmanager, "left", clock).take([warning()])
    sink(alertmanager, "left", clock).take([escalated(warning())])
    assert severities(alertmanager, "left") == ["critical"]
    over = closed(escalated(warning()), at_s=time.time() - NOW_S - 60.0)
    sink(alertmanager, "left", clock).take([over])
    assert severities(alertmanager, "left") == []


def test_replicas_of_a_server_are_one_alert_which_mutes_the_rules_about_each_of_them_and_nothing_of_its_name(
    alertmanager: AlertmanagerServer,
) -> None:
    watch = Watch()
    watch.see(replica(0), replica(1))
    sink(alertmanager, "server", Late(1.0)).take([Story(one) for one in watch.tracker.incidents])
    (told,) = alertmanager.alerts(cluster="server")
    ours = {"alertname": "TidegaugeLeak", "cluster": "server", "attempt": "0"}
    others = [("team-a/llama", "replica 0"), ("team-a/vllm", ""), ("team-a/vllm", "pod vllm-a")]
    for job_id, group in (("team-a/vllm", "replica 0"), ("team-a/vllm", "replica 7"), *others):
        alertmanager.post_alert(
            {**ours, "job_id": job_id, **({"group": group} if group else {}), "severity": "warning"}
        )
    muted = alertmanager.wait_for(
        lambda found: len([one for one in found if one["status"]["inhibitedBy"]]) >= 2 and len(found) == 5,
        alertname="TidegaugeLeak",
        cluster="server",
    )
    by = {(one["labels"]["job_id"], one["labels"].get("group", "")): one["status"]["inhibitedBy"] for one in muted}
    assert [by["team-a/vllm", f"replica {ordinal}"] for ordinal in (0, 7)] == [[told["fingerprint"]]] * 2
    assert [by[other] for other in others] == [[], [], []]
