from __future__ import annotations

import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import INCIDENT_ALERT
from tidegauge_exporter.rules.files import rule_files
from tidegauge_exporter.rules.values import Addresses
from tidegauge_exporter.runbooks import docs_page
from tidegauge_exporter.runbooks.__main__ import main
from tidegauge_exporter.runbooks.job_alerts import JOB_RUNBOOK
from tidegauge_exporter.runbooks.page import runbooks_html
from tidegauge_exporter.runbooks.service_alerts import SERVICE_RUNBOOK
from tidegauge_exporter.runbooks.values import CONTACT

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "deploy" / "observability" / "prometheus" / "consoles" / "tidegauge-runbooks.html"
RUNBOOK = (*JOB_RUNBOOK, *SERVICE_RUNBOOK)
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
    assert page.ids[0] == "before-you-start"
    assert page.ids[-2:] == ["logs-and-restarts", "keep-my-job-running"]


def test_logs_and_restarts_are_named_as_commands() -> None:
    section = runbooks_html().partition('id="logs-and-restarts"')[2].partition("</section>")[0]
    for part in ("STATE_DIR/logs", "journalctl -u UNIT", "systemctl restart tidegauge-agent", "rollout restart"):
        assert part in section


def test_an_owner_is_told_how_to_keep_a_job_running() -> None:
    section = runbooks_html().partition('id="keep-my-job-running"')[2].partition("</section>")[0]
    assert "tidegauge run --no-actions" in section
    assert "tidegauge:keep" in section
    assert "kubectl annotate --overwrite KIND NAME tidegauge.dev/actions=keep" in section
    assert "brakes.exempt" in section


def test_the_static_page_is_what_the_tables_make() -> None:
    assert STATIC.read_text(encoding="utf-8") == runbooks_html(), "run: make dashboards"
    assert "{{" not in runbooks_html(), "Prometheus reads it as a template"


def test_the_page_of_runbooks_in_docs_is_what_the_tables_make() -> None:
    committed = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    assert committed == docs_page.page(), "run: make docs"


@pytest.mark.parametrize("page", ["static", "docs"])
def test_every_runbook_url_of_a_rule_leads_to_a_section(page: str) -> None:
    links = re.findall(r"tidegauge-runbooks\.html#(\S+)", rule_files(Addresses())["tidegauge-alerts.yml"])
    headings = re.findall(r"^#+ (.+)$", docs_page.page(), re.MULTILINE)
    anchors = (
        Page(STATIC.read_text()).ids if page == "static" else [text.lower().replace(" ", "-") for text in headings]
    )
    assert len(links) > 15
    assert set(links) - set(anchors) == set()
    assert set(re.findall(r"\]\(#([a-z-]+)\)", docs_page.page())) - set(anchors) == set()


def test_a_runbook_says_whom_to_call_as_the_site_wants_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "runbooks.html"), "--contact", "<GPU on-call>, +49 30"]) == 0
    capsys.readouterr()
    text = (tmp_path / "runbooks.html").read_text(encoding="utf-8")
    assert text.count("For Tidegauge itself: &lt;GPU on-call&gt;, +49 30.") == len(RUNBOOK)
    assert CONTACT not in text


def test_every_runbook_has_something_to_type_logs_and_a_silence() -> None:
    page = runbooks_html()
    for entry in RUNBOOK:
        section = page.partition(f'<section id="{entry.alert.lower()}">')[2].partition("</section>")[0]
        headings = re.findall("<dt>(.+?)</dt>", section)
        assert headings[:4] == ["What it means", "Who is affected", "First look", "What to do"]
        assert headings[4].startswith("Logs ")
        assert headings[5:] == ["When to silence", "Whom to call"]
        assert entry.steps, entry.alert
        is_silenced = f"silence add --duration=2h --comment='WHY' alertname={entry.alert}" in section
        assert is_silenced == (entry.alert != "Watchdog")


def test_what_a_runbook_has_one_type_is_one_line_that_a_shell_understands() -> None:
    typed = [step.command for entry in RUNBOOK for step in (*entry.steps, *entry.silence)]
    for command in typed:
        assert "\n" not in command
        assert shlex.split(command)
