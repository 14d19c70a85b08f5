"""From a rank that leaks to the JSON that Slack would get: our metrics, a real Prometheus with our rules, a real
Alertmanager with our configuration and template. Only times and addresses are shorter than in deploy/observability.

All pages that are scraped are this process's own. A scrape that fails is the end of every alert of its target and their
beginning anew, so one may take as long as a machine stands still.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from integration.alertmanager_server import AlertmanagerServer, alertmanager_binary, running_alertmanager
from integration.needs import missing
from integration.prometheus_server import PrometheusServer, prometheus_binary, running_prometheus
from integration.slack_sink import Posted, SlackSink, slack_sink
from integration.watched_cluster import WatchedCluster, served
from tidegauge_exporter.messages.values import INCIDENT_ALERT
from tidegauge_exporter.rules.files import rule_files
from tidegauge_exporter.rules.values import Addresses

pytestmark = pytest.mark.timeout(600)

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "observability" / "alertmanager"
ADDRESSES = Addresses("https://grafana.example", "https://wiki.example/runbooks", "https://tidegauge.example")
MANY = 30
AT_ONCE = frozenset({"TidegaugeLeak", "TidegaugeLeakOomSoon"})
"""The alerts that are tested. The others keep their minutes: an agent is not down because this process stood still."""
HOSTILE = "<!channel>&<http://evil|x>"

PROMETHEUS = """
global: {scrape_interval: 20s, scrape_timeout: 20s, evaluation_interval: 500ms}
rule_files: [rules/*.yml]
alerting: {alertmanagers: [{static_configs: [{targets: ["ALERTMANAGER"]}]}]}
scrape_configs:
"""


@dataclass(frozen=True)
class Site:
    """What a test holds. Every test has a cluster of its own, and so messages of its own."""

    clusters: dict[str, WatchedCluster]
    prometheus: PrometheusServer
    alertmanager: AlertmanagerServer
    slack: SlackSink


def clusters() -> list[WatchedCluster]:
    return [
        WatchedCluster("one-job", jobs=("4711", "4712")),
        WatchedCluster("bad-night", jobs=[str(number) for number in range(MANY)]),
        WatchedCluster("known", jobs=("1", "2")),
        WatchedCluster("soon", jobs=("1",)),
        WatchedCluster("silenced", jobs=("1", "2")),
        WatchedCluster("hostile", jobs=(HOSTILE,), user_name="<@U1>"),
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if prometheus_binary() is None or alertmanager_binary() is None:
        missing("prometheus or alertmanager is not installed")
    folder = tmp_path_factory.mktemp("alerts")
    write_rules(folder / "rules")
    watched = clusters()
    with (
        slack_sink() as slack,
        running_alertmanager(folder, write_alertmanager_configuration(folder, slack.url)) as alertmanager,
        served(watched) as scrapes,
    ):
        config = PROMETHEUS.replace("ALERTMANAGER", alertmanager.url.removeprefix("http://")) + scrapes
        with running_prometheus(folder, config) as prometheus:
            # An alert that begins before its owner is known begins anew once they are.
            jobs = sum(len(cluster.jobs) for cluster in watched)
            prometheus.wait_for(f"count(tidegauge_job_info) == {jobs}", within_s=100)
            yield Site({cluster.name: cluster for cluster in watched}, prometheus, alertmanager, slack)


def write_rules(folder: Path) -> None:
    """The rules as they are, with the waits of those about leaks a second."""
    folder.mkdir()
    for name, text in rule_files(ADDRESSES).items():
        rules = yaml.safe_load(text)
        for group in rules["groups"]:
            group["interval"] = "500ms"
            for rule in group["rules"]:
                rule.update({"for": "1s"} if rule.get("alert") in AT_ONCE else {})
        (folder / name).write_text(yaml.safe_dump(rules), encoding="utf-8")


def write_alertmanager_configuration(folder: Path, slack_url: str) -> Path:
    """alertmanager-slack.yml as it is, but for the address and the waits."""
    address = folder / "slack-webhook-url"
    address.write_text(slack_url, encoding="utf-8")
    text = (CONFIGURATION / "alertmanager-slack.yml").read_text(encoding="utf-8")
    for shipped, here in (
        ("/etc/tidegauge/slack-webhook-url", str(address)),
        ("[slack.tmpl]", f"[{CONFIGURATION / 'slack.tmpl'}]"),
        # An alert that is older than this when it arrives is told at once, before those that arrive with it.
        ("group_wait: 30s", "group_wait: 10s"),
        ("group_interval: 5m", "group_interval: 1s"),
    ):
        assert shipped in text, shipped
        text = text.replace(shipped, here)
    path = folder / "alertmanager.yml"
    path.write_text(text, encoding="utf-8")
    return path


def test_two_ranks_of_a_job_are_one_message_and_its_end_is_told(site: Site) -> None:
    cluster = site.clusters["one-job"]
    cluster.leaking = frozenset({"4711"})
    post = site.slack.wait_for("one-job: 2 alerts")
    [attachment] = post["attachments"]
    assert post["channel"] == "#gpu-alerts"
    assert attachment["color"] == "danger"
    assert attachment["fallback"] == attachment["title"]
    lines = attachment["text"].splitlines()
    assert sorted(line for line in lines if line.startswith(":red_circle:")) == [
        f":red_circle: *Out of memory in 18m 0s: rank {rank} of job 4711 on node7*" for rank in (0, 1)
    ]
    assert (
        "Memory of rank 1 of job 4711 (user ada) on node7, GPU 1, grows by 12MiB per step and reaches the rank's limit "
        "in 18m 0s at the current rate." in lines
    )
    board = "https://grafana.example/d/tidegauge-rank?var-cluster=one-job&var-job_id=4711&var-attempt=0&var-rank=1"
    assert f"<{board}&from=now-6h&to=now|Dashboard>" in attachment["text"]
    assert "<https://wiki.example/runbooks#tidegaugeleakoomsoon|What to do>" in attachment["text"]
    buttons = {action["text"]: action["url"] for action in attachment["actions"]}
    assert buttons["Silence"].endswith("/#/silences/new?filter=%7Bjob_id%3D%224711%22%2Ccluster%3D%22one-job%22%7D")
    assert "4712" not in attachment["text"]

    cluster.leaking = frozenset()
    alerts = [f"Out of memory in 18m 0s: rank {rank} of job 4711 on node7" for rank in (0, 1)]

    def are_over(posts: list[Posted]) -> bool:
        """An end may arrive at Alertmanager just behind a message that told of the other's; and that of what an alert
        muted, behind the alert's own."""
        resolved = posts[-1]["attachments"][0]["title"] == "one-job: resolved"
        return resolved and all(heard(posts, alert)[-1:] == ["over"] for alert in alerts)

    [over] = site.slack.wait_for("one-job: ", are_over)["attachments"]
    assert over["color"] == "good"
    assert over["text"].startswith("*Resolved:* ")
    for alert in alerts:
        told = heard(site.slack.posts_about("one-job: "), alert)
        assert told[0] == "fires"
        assert ("over", "over") not in zip(told, told[1:], strict=False), f"its end is told once: {told}"


def heard(posts: Sequence[Posted], alert: str) -> list[str]:
    """What was told of one alert, message by message: that it ``fires``, or is ``over``. A message that Alertmanager
    posts once more, because it had no answer in time, counts once."""
    told = []
    for before, post in zip([None, *posts], posts, strict=False):
        firing, _, ended = post["attachments"][0]["text"].partition("*Resolved:* ")
        if post != before and (alert in firing or alert in ended):
            told.append("over" if alert in ended else "fires")
    return told


def test_a_leak_that_ends_soon_mutes_that_it_is_a_leak(site: Site) -> None:
    site.clusters["soon"].leaking = frozenset({"1"})
    muted = site.alertmanager.wait_for(
        lambda found: len(found) == 2 and all(alert["status"]["inhibitedBy"] for alert in found),
        alertname="TidegaugeLeak",
        cluster="soon",
        job_id="1",
    )
    assert {alert["labels"]["rank"] for alert in muted} == {"0", "1"}
    assert "Memory leak" not in site.slack.wait_for("soon: ")["attachments"][0]["text"]


def test_a_bad_night_is_one_message_that_says_how_bad_it_is(site: Site) -> None:
    site.clusters["bad-night"].leaking = frozenset(str(number) for number in range(MANY))
    post = site.slack.wait_for(f"bad-night: {2 * MANY} alerts")
    text = post["attachments"][0]["text"]
    assert text.count(":red_circle:") == 8
    assert f"… {2 * MANY} in all." in text
    assert len(text) < 8_000
    # One message for all of it. A first one may have told of less, if Alertmanager heard of the rest much later.
    titles = [told["attachments"][0]["title"] for told in site.slack.posts_about("bad-night")]
    assert len(titles) <= 2, titles
    assert titles[-1] == f"bad-night: {2 * MANY} alerts"


def test_an_incident_mutes_the_rules_about_its_job_and_no_other(site: Site) -> None:
    incident = {
        "alertname": INCIDENT_ALERT,
        "cluster": "known",
        "job_id": "1",
        "attempt": "0",
        "cause": "leak",
        "severity": "critical",
        "incident": "12",
        "user_name": "ada",
    }
    site.alertmanager.post_alert(incident, {"summary": "Ranks 0 and 1 of job 1 leak."})
    site.clusters["known"].leaking = frozenset({"1", "2"})
    site.alertmanager.wait_for(
        lambda found: len(found) == 2 and all(alert["status"]["state"] == "suppressed" for alert in found),
        alertname="TidegaugeLeakOomSoon",
        cluster="known",
        job_id="1",
    )
    text = site.slack.wait_for("known: 3 alerts")["attachments"][0]["text"]
    assert "*Ranks 0 and 1 of job 1 leak.*" in text
    assert text.count("of job 2 on node7*") == 2
    assert "rank 0 of job 1 on node7*" not in text


def test_a_silenced_job_is_not_told_of(site: Site) -> None:
    site.alertmanager.silence({"cluster": "silenced", "job_id": "1"})
    site.clusters["silenced"].leaking = frozenset({"1", "2"})
    muted = site.alertmanager.wait_for(
        lambda found: len(found) == 2 and all(alert["status"]["silencedBy"] for alert in found),
        alertname="TidegaugeLeakOomSoon",
        cluster="silenced",
        job_id="1",
    )
    assert {alert["status"]["state"] for alert in muted} == {"suppressed"}
    assert "job 2" in site.slack.wait_for("silenced: 2 alerts")["attachments"][0]["text"]
    assert [post for post in site.slack.posts_about("silenced") if "job 1" in post["attachments"][0]["text"]] == []


def test_names_that_a_job_gave_itself_mention_nobody_and_link_nowhere(site: Site) -> None:
    site.clusters["hostile"].leaking = frozenset({HOSTILE})
    post = site.slack.wait_for("hostile: 2 alerts")["attachments"][0]
    assert "of job &lt;!channel&gt;&amp;&lt;http://evil|x&gt; (user &lt;@U1&gt;)" in post["text"]
    links = [part.partition(">")[0] for part in post["text"].split("<")[1:]]
    assert [link.rpartition("|")[2] for link in links] == ["Dashboard", "Job", "What to do"] * 2
    ours = ("https://grafana.example/", "https://tidegauge.example/job?", "https://wiki.example/")
    assert all(link.startswith(ours) for link in links)
    assert "var-job_id=%3C%21channel%3E%26%3Chttp%3A%2F%2Fevil%7Cx%3E&" in post["text"]
    silence = next(action["url"] for action in post["actions"] if action["text"] == "Silence")
    assert "job_id%3D%22%3C%21channel%3E%26%3Chttp" in silence
