"""Groups of alerts, and bad nights, in one message each."""

from __future__ import annotations

from dataclasses import replace

from fakes.block_kit import links, words
from sample_views import NOW_S
from slack_stories import bad_night, closed, fragmentation
from tidegauge.core.verdicts import Band
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Alert, AlertGroup
from tidegauge_exporter.notify.ports import Message
from tidegauge_exporter.slack.messages import alert_message, storm_message

LINKS = Links("https://grafana.example/", "https://tidegauge.example/")

RUNBOOK = "http://localhost:9495/runbooks#tidegaugeagentdown"
DASHBOARD = "http://localhost:3000/d/tidegauge-fleet?var-cluster=lab&from=now-6h&to=now"
"""What the rules of deploy/observability say."""


def read(message: Message) -> str:
    return "\n".join([message.text, *words(message.blocks)])


def alert(name: str = "TidegaugeAgentDown", *, firing: bool = True, **annotations: str) -> Alert:
    labels = {"alertname": name, "severity": "critical", "hostname": "node0"}
    return Alert(firing, labels, {"summary": "no agent on node0", **annotations}, "f", "2027-01-15T08:00:00Z")


def as_shipped(name: str = "TidegaugeAgentDown") -> Alert:
    return alert(name, dashboard_url=DASHBOARD, runbook_url=RUNBOOK)


class TestAlerts:
    def test_firing_ones_are_listed_first_and_counted(self) -> None:
        group = AlertGroup("k", True, (alert(firing=False), alert(), alert()), {"alertname": "TidegaugeAgentDown"})
        message = alert_message(group, links=LINKS)
        assert message.text == "\N{LARGE RED CIRCLE} TidegaugeAgentDown on node0: 2 firing, 1 resolved"
        lines = message.blocks[1]["text"]["text"].splitlines()
        assert [line[0] for line in lines] == ["\N{LARGE RED CIRCLE}"] * 2 + ["\N{LARGE GREEN CIRCLE}"]

    def test_ten_are_listed_and_the_rest_counted(self) -> None:
        message = alert_message(AlertGroup("k", True, (alert(),) * 14, left_out=100), links=LINKS)
        assert read(message).count("no agent on node0") == 10
        assert "104 more not listed" in read(message)

    def test_runbook_dashboard_and_silence_are_linked(self) -> None:
        firing = alert(dashboard_url="https://grafana.example/d/x", runbook_url="https://tidegauge.example/runbooks#a")
        labels = {"alertname": "TidegaugeAgentDown", "cluster": 'a"b\\c'}
        message = alert_message(AlertGroup("k", True, (firing,), labels, "https://am.example/"), links=LINKS)
        assert links(message.blocks) == {
            "Runbook": "https://tidegauge.example/runbooks#a",
            "Dashboard": "https://grafana.example/d/x",
            "Silence": "https://am.example/#/silences/new?filter="
            "%7Balertname%3D%22TidegaugeAgentDown%22%2Ccluster%3D%22a%5C%22b%5C%5Cc%22%7D",
        }

    def test_a_runbook_of_ours_stands_in_where_the_alert_names_none(self) -> None:
        message = alert_message(AlertGroup("k", True, (alert(),)), links=LINKS)
        assert links(message.blocks) == {"Runbook": "https://tidegauge.example/runbooks#tidegaugeagentdown"}

    def test_links_of_our_alerts_to_this_machine_lead_to_the_configured_addresses(self) -> None:
        group = AlertGroup("k", True, (as_shipped(),), {"alertname": "x"}, "http://localhost:9093")
        to = replace(LINKS, alertmanager_url="https://am.example/")
        assert links(alert_message(group, links=to).blocks) == {
            "Runbook": "https://tidegauge.example/runbooks#tidegaugeagentdown",
            "Dashboard": "https://grafana.example/d/tidegauge-fleet?var-cluster=lab&from=now-6h&to=now",
            "Silence": "https://am.example/#/silences/new?filter=%7Balertname%3D%22x%22%7D",
        }

    def test_a_silence_link_to_this_machine_is_left_out_where_people_come_from_elsewhere(self) -> None:
        group = AlertGroup("k", True, (alert(),), {"alertname": "x"}, "http://127.0.0.1:9093")
        here = Links(service_url="http://127.0.0.1:9495")
        to = replace(LINKS, alertmanager_url="http://127.0.0.1:9093")
        assert "Silence" not in links(alert_message(group, links=to).blocks)
        assert "Silence" in links(alert_message(group, links=here).blocks)
        assert "Silence" in links(alert_message(group, links=Links()).blocks)

    def test_links_of_our_alerts_stay_without_settings_and_those_of_others_always(self) -> None:
        ours, theirs = AlertGroup("k", True, (as_shipped(),)), AlertGroup("k", True, (as_shipped("X"),))
        unchanged = {"Runbook": RUNBOOK, "Dashboard": DASHBOARD}
        assert links(alert_message(ours, links=Links()).blocks) == unchanged
        assert links(alert_message(theirs, links=LINKS).blocks) == unchanged

    def test_an_alert_about_a_job_links_to_its_page_and_to_none_on_this_machine(self) -> None:
        def shown(address: str, to: Links) -> str | None:
            about = alert("TidegaugeLeak", job_url=address)
            return links(alert_message(AlertGroup("k", True, (about,)), links=to).blocks).get("Job")

        shipped = "http://localhost:9495/job?job_id=4711&attempt=0"
        assert shown(shipped, LINKS) == "https://tidegauge.example/job?job_id=4711&attempt=0"
        assert shown(shipped, Links()) is None
        assert shown("https://head.example/job?job_id=7", LINKS) == "https://head.example/job?job_id=7"

    def test_a_runbook_elsewhere_is_kept_because_it_may_be_the_one_that_survives_the_service(self) -> None:
        kept = alert(runbook_url="https://docs.example/runbooks#tidegaugecoordinatordown")
        shown = links(alert_message(AlertGroup("k", True, (kept,)), links=LINKS).blocks)
        assert shown["Runbook"] == "https://docs.example/runbooks#tidegaugecoordinatordown"

    def test_an_address_that_no_browser_should_follow_is_not_linked(self) -> None:
        odd = alert(dashboard_url="javascript:alert(1)", runbook_url="https://a b")
        assert links(alert_message(AlertGroup("k", True, (odd,)), links=Links()).blocks) == {}

    def test_slack_alert_that_is_resolved_has_no_silence_link(self) -> None:
        group = AlertGroup("k", False, (alert(firing=False),), {"alertname": "x"}, "https://am.example")
        message = alert_message(group, links=LINKS)
        assert "Silence" not in links(message.blocks)
        assert message.text == "\N{LARGE GREEN CIRCLE} Resolved: no agent on node0"

    def test_several_kinds_are_counted(self) -> None:
        group = AlertGroup("k", True, (alert(), alert("TidegaugeNodeStale")))
        assert "2 kinds of alerts on node0: 2 firing" in alert_message(group, links=LINKS).text


class TestStorm:
    def test_incidents_are_counted_by_cause_and_severity(self) -> None:
        told = read(storm_message(bad_night(30), cluster="prod", links=LINKS, now_unix_s=NOW_S))
        assert "30 incidents at once on cluster prod" in told
        assert "30 jobs of 5 users affected, first at 07:45 UTC." in told
        assert "Memory leak: 18 (18 critical)" in told
        assert "Reserved memory growth: 6 (6 warning)" in told

    def test_one_warning_is_no_crowd_and_not_red(self) -> None:
        message = storm_message([fragmentation()], cluster="prod", links=LINKS, now_unix_s=NOW_S)
        assert message.text == "\N{LARGE ORANGE CIRCLE} 1 incident on cluster prod"

    def test_groups_of_one_job_are_one_job(self) -> None:
        told = fragmentation()
        key = told.incident.key
        other = replace(told, incident=replace(told.incident, key=key._replace(job=key.job._replace(group="step 1"))))
        shown = storm_message([told, other], cluster="prod", links=LINKS, now_unix_s=NOW_S)
        assert "1 job of 1 user affected" in read(shown)

    def test_the_ten_that_end_soonest_are_named_soonest_first(self) -> None:
        stories = bad_night(30)
        expected = sorted(stories, key=lambda story: (story.incident.seconds_to_oom or Band(9e9, 0, 0)).low)[:10]
        told = read(storm_message(stories[::-1], cluster="prod", links=LINKS, now_unix_s=NOW_S))
        listed = [line.rsplit("#", 1)[1].rstrip(")") for line in told.splitlines() if "(#" in line]
        assert listed == [str(story.incident.number) for story in expected]
        assert "20 more not listed" in told

    def test_those_that_are_over_are_only_counted(self) -> None:
        told = read(storm_message([*bad_night(3), closed()], cluster="prod", links=LINKS, now_unix_s=NOW_S))
        assert "3 incidents at once" in told
        assert "1 resolved" in told

    def test_a_night_that_is_over_says_so(self) -> None:
        message = storm_message([closed()] * 4, cluster="prod", links=LINKS, now_unix_s=NOW_S)
        assert message.text == "\N{LARGE GREEN CIRCLE} Resolved: 4 incidents on cluster prod"

    def test_no_incident_at_all_is_a_message_still(self) -> None:
        assert "Resolved: 0 incidents" in storm_message([], cluster="prod", links=LINKS, now_unix_s=NOW_S).text

    def test_slack_storm_message_links_to_fleet_and_incidents(self) -> None:
        message = storm_message(bad_night(3), cluster="prod", links=LINKS, now_unix_s=NOW_S)
        assert links(message.blocks) == {
            "Fleet dashboard": "https://grafana.example/d/tidegauge-fleet?var-cluster=prod&from=1799997300250&to=now",
            "All incidents": "https://grafana.example/d/tidegauge-incidents?var-cluster=prod&from=1799997300250&to=now",
        }

    def test_slack_storm_message_links_to_the_web_page_of_incidents_where_no_grafana_is(self) -> None:
        message = storm_message(bad_night(3), cluster="prod", links=Links(None, "https://head"), now_unix_s=NOW_S)
        assert links(message.blocks) == {"All incidents": "https://head/incidents"}
