"""The page that asks whether it was a leak, in a real browser: its own form is taken, another site's is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path

import pytest

from browser import Tab, chromium, open_tab
from integration.needs import missing
from sample_views import NOW_S
from scheduler_values import incident
from tidegauge.cluster.api.grade_api import GradePages
from tidegauge.cluster.api.http_api import HttpApi
from tidegauge.cluster.ray_service.exporter_pages import exporter_pages
from tidegauge.cluster.store import Store, open_store, sqlite_url
from tidegauge.core.incidents import ChangeKind, IncidentChange
from tidegauge.http.access import NO_HEADERS, OpenDoor, Viewer
from tidegauge.http.server import Response
from tidegauge.settings import Settings

NAME = "head.example"
"""Of loopback for this browser: no secure context, as a head without TLS is for other machines."""
CLICK = "document.querySelector('button[value=not_a_leak]').click()"


class AdasDoor(OpenDoor):
    """Everybody is ada, as a browser that remembers her password makes them."""

    def admit(self, authorization: str | None, peer: str, headers: Message[str, str] = NO_HEADERS) -> Viewer:
        return Viewer("ada", sees_all=False, reads_metrics=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(sqlite_url(tmp_path))
    store.incidents.save([IncidentChange(ChangeKind.OPENED, NOW_S, incident())])
    yield store
    store.close()


@contextmanager
def serving(store: Store) -> Iterator[int]:
    pages = GradePages(lambda: store, lambda: NOW_S, exporter_pages(Settings()).grade)
    api = HttpApi(pages.routes(), forms=pages.forms(), host="127.0.0.1", port=0, door=AdasDoor())
    api.start()
    try:
        yield api.port
    finally:
        api.stop()


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    program = chromium()
    if program is None:
        missing("no Chromium here")
    with open_tab(program, f"--host-resolver-rules=MAP {NAME} 127.0.0.1") as tab:
        yield tab


@pytest.mark.parametrize("host", ["127.0.0.1", NAME])
def test_a_click_on_a_button_is_an_answer_and_opening_the_page_is_none(tab: Tab, store: Store, host: str) -> None:
    with serving(store) as port:
        tab.open(f"http://{host}:{port}/grade?incident=1")
        assert store.grades.answers(1) == ()
        tab.ask("document.querySelector('input[name=comment]').value = 'größer <b>'")
        tab.follow(CLICK)
        assert "Not a leak, says ada: größer <b>" in str(tab.ask("document.body.textContent"))
        assert tab.complaints() == []
    (answer,) = store.grades.answers(1)
    assert (answer.by, answer.grade.value, answer.comment) == ("ada", "not_a_leak", "größer <b>")


def test_grade_page_lets_a_visitor_enter_the_incident_number(tab: Tab, store: Store) -> None:
    with serving(store) as port:
        tab.open(f"http://127.0.0.1:{port}/grade")
        tab.ask("document.querySelector('input[name=incident]').value = '1'")
        tab.follow("document.querySelector('button').click()")
        assert "Was this a leak?" in str(tab.ask("document.body.textContent"))


@pytest.mark.parametrize("host", ["127.0.0.1", NAME])
def test_a_form_on_another_site_is_refused_whoever_the_browser_is(tab: Tab, store: Store, host: str) -> None:
    with serving(store) as port:
        form = (
            f'<form method="post" action="http://{host}:{port}/grade"><input name="incident" value="1">'
            '<button name="grade" value="not_a_leak">Win a prize</button></form>'
        )
        other = HttpApi({"/": lambda _: Response(form.encode(), "text/html")}, host="127.0.0.1", port=0, access={})
        other.start()
        try:
            tab.open(f"http://127.0.0.1:{other.port}/")
            tab.follow(CLICK)
            assert "sent from a page of another site" in str(tab.ask("document.body.textContent"))
        finally:
            other.stop()
    assert store.grades.answers(1) == ()
