"""Logging in and out with a real browser, also by a link of another site, for which it keeps the cookie back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from browser import TIMEOUT_S, Tab, chromium, open_tab
from integration.needs import missing
from tidegauge.cluster.api.http_api import HttpApi, html_route
from tidegauge.cluster.api.login_api import LoginPages
from tidegauge.cluster.api.route_access import Access
from tidegauge.cluster.ray_service.exporter_pages import exporter_pages
from tidegauge.http.door_start import open_door
from tidegauge.http.server import Response
from tidegauge.http.tokens import make_token, token_line
from tidegauge.settings import Settings

NAME = "head.example"
"""Of loopback for this browser: no secure context, as a head without TLS is for other machines."""
TOKEN = make_token()
ACCESS = {"/login": Access.OPEN, "/logout": Access.OPEN, "/page": Access.OWN}
FORM = "token or credential"


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    tokens = folder / "tokens"
    tokens.write_text(token_line("ada", TOKEN))
    tokens.chmod(0o600)
    settings = Settings(api_tokens_file=tokens)
    door, pages = open_door(settings, what="a test"), exporter_pages(settings)
    logins = LoginPages(door, pages.login, pages.logout)
    page = html_route(lambda request: f"<!doctype html><title>p</title><p>jobs of {request.viewer.name}")
    routes = {"/page": page, "/login": logins.routes()["/login"], "/logout": logins.routes()["/logout"]}
    api = HttpApi(routes, forms=logins.forms(), host="127.0.0.1", port=0, door=door, access=ACCESS)
    api.start()
    try:
        yield api.port
    finally:
        api.stop()


@pytest.fixture
def tab() -> Iterator[Tab]:
    program = chromium()
    if program is None:
        missing("no Chromium here")
    with open_tab(program, f"--host-resolver-rules=MAP {NAME} 127.0.0.1") as tab:
        yield tab


def wait_for_text(tab: Tab, wanted: str) -> None:
    """Until a page shows this; the browser may be on its way over another one."""
    until_s = time.monotonic() + TIMEOUT_S
    shown = ""
    while wanted not in shown:
        assert time.monotonic() < until_s, shown
        try:
            shown = str(tab.ask("document.body.innerText")).lower()
        except AssertionError:  # that page is left just now
            shown = ""
        time.sleep(0.02)  # between two looks


def log_in(tab: Tab) -> None:
    wait_for_text(tab, FORM)
    tab.ask(f"document.querySelector('#token').value = '{TOKEN}'")
    tab.follow("document.querySelector('button').click()")


@pytest.mark.parametrize("host", ["127.0.0.1", NAME])
def test_a_browser_logs_in_comes_to_the_page_and_logs_out(tab: Tab, tmp_path: Path, host: str) -> None:
    with serving(tmp_path) as port:
        tab.open(f"http://{host}:{port}/page?x=1")
        log_in(tab)
        wait_for_text(tab, "jobs of ada")
        assert tab.ask("location.pathname + location.search") == "/page?x=1"
        assert tab.ask("document.cookie") == "", "no script reads it"
        assert tab.complaints() == []
        tab.open(f"http://{host}:{port}/logout")
        wait_for_text(tab, "you are ada")
        tab.follow("document.querySelector('button').click()")
        tab.open(f"http://{host}:{port}/page")
        wait_for_text(tab, FORM)


@pytest.mark.parametrize("host", ["127.0.0.1", NAME])
def test_a_link_of_another_site_leads_whoever_is_logged_in_to_the_page(tab: Tab, tmp_path: Path, host: str) -> None:
    """As from a mail or a chat."""
    with serving(tmp_path) as port:
        tab.open(f"http://{host}:{port}/page")
        log_in(tab)
        wait_for_text(tab, "jobs of ada")
        link = f'<!doctype html><p>mail<p><a href="http://{host}:{port}/page?from=mail">report</a>'
        other = HttpApi({"/": lambda _: Response(link.encode(), "text/html")}, host="127.0.0.1", port=0, access={})
        other.start()
        try:
            tab.open(f"http://localhost:{other.port}/")
            tab.follow("document.querySelector('a').click()")
            wait_for_text(tab, "jobs of ada")
            assert tab.ask("location.search") == "?from=mail"
        finally:
            other.stop()


@pytest.mark.parametrize("dark", [False, True])
def test_the_form_fits_a_telephone_in_light_and_dark(tab: Tab, tmp_path: Path, dark: bool) -> None:
    with serving(tmp_path) as port:
        tab.screen(width=390, height=844, dark=dark)
        tab.open(f"http://127.0.0.1:{port}/login")
        assert tab.ask("document.documentElement.scrollWidth") == 390
        background = str(tab.ask("getComputedStyle(document.body).backgroundColor"))
        assert background == ("rgb(17, 22, 28)" if dark else "rgb(244, 246, 248)")
        assert tab.complaints() == []
        tab.picture(tmp_path / "login.png")
