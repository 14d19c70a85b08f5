"""A browser for the tests of this folder, and the report that they look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Tab, chromium, open_tab
from integration.needs import missing
from report_contents import content
from tidegauge_exporter.reports.report import render_report


@pytest.fixture(scope="module")
def browser_tab() -> Iterator[Tab]:
    program = chromium()
    if program is None:
        missing("no Chromium here")
    with open_tab(program) as tab:
        yield tab


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with all its parts."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_report(content()), encoding="utf-8")
    return path


@pytest.fixture
def tab(browser_tab: Tab, page: Path) -> Tab:
    """The report, open, in light colours on a laptop's screen."""
    browser_tab.screen(width=1180, height=900)
    browser_tab.open(page.as_uri())
    return browser_tab
