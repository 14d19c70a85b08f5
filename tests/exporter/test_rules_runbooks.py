from __future__ import annotations

from html.parser import HTMLParser

from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import INCIDENT_ALERT
from tidegauge_exporter.runbooks import RUNBOOK, runbooks_html

VOID = ("meta", "br", "link", "img", "input", "hr")


class Page(HTMLParser):
    """Ids, links and other addresses of a page; insists that tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if (name := found.get("id")) is not None:
            self.ids.append(name)
        if tag == "a" and (link := found.get("href")) is not None:
            self.links.append(link)
        elif address := (found.get("src") or found.get("href")):
            self.loads.append(address)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_every_runbook_link_of_an_alert_or_message_leads_to_a_section() -> None:
    page, links = Page(runbooks_html()), Links(service_url="http://head:9495")
    wanted = [links.runbook(entry.alert) for entry in RUNBOOK] + [links.runbook(INCIDENT_ALERT), links.exemption()]
    assert [link for link in wanted if link is None or link.partition("#")[2] not in page.ids] == []


def test_ids_are_unique_and_links_within_the_page_lead_somewhere() -> None:
    page = Page(runbooks_html())
    assert len(set(page.ids)) == len(page.ids)
    assert [link for link in page.links if link.removeprefix("#") not in page.ids] == []


def test_the_page_needs_nothing_beside_itself() -> None:
    assert Page(runbooks_html()).loads == []
    assert "<script" not in runbooks_html()


def test_operators_come_first_and_owners_have_a_section_of_their_own() -> None:
    page = Page(runbooks_html())
    assert page.ids[-2:] == ["logs-and-restarts", "keep-my-job-running"]


def test_logs_and_restarts_are_named_as_commands() -> None:
    section = runbooks_html().partition('id="logs-and-restarts"')[2].partition("</section>")[0]
    for part in ("/logs/coordinator.log", "journalctl -u tidegauge-head", "systemctl restart tidegauge-agent"):
        assert part in section


def test_an_owner_is_told_how_to_keep_a_job_running() -> None:
    section = runbooks_html().partition('id="keep-my-job-running"')[2].partition("</section>")[0]
    assert "tidegauge run --no-actions" in section
    assert "tidegauge:keep" in section
    assert "kubectl annotate --overwrite KIND NAME tidegauge.dev/actions=keep" in section
    assert "brakes.exempt" in section
