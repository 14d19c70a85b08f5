"""The runbooks as a page for browsers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final

from tidegauge_exporter.reports.html_page import page, style_sheet
from tidegauge_exporter.runbooks.job_alerts import JOB_RUNBOOK
from tidegauge_exporter.runbooks.sections import (
    EXEMPTION,
    EXEMPTION_COMMAND,
    EXEMPTION_ID,
    EXEMPTION_TITLE,
    LOGS,
    LOGS_ID,
    LOGS_STEPS,
    LOGS_TITLE,
    START,
    START_ID,
    START_STEPS,
    START_TITLE,
)
from tidegauge_exporter.runbooks.service_alerts import SERVICE_RUNBOOK
from tidegauge_exporter.runbooks.values import CONTACT, LOG_COMMANDS, RunbookEntry, Step

_TITLE: Final = "Tidegauge runbooks"


def runbooks_html(contact: str = CONTACT) -> str:
    """The page, which needs no other file. The id of a section is the alert's name in lower case. ``contact``: whom to
    call, as a site says it."""
    return page(
        _TITLE,
        [
            f"<h1>{_TITLE}</h1>",
            f"<p>Whom to call: <b>{escape(contact, quote=False)}</b></p>",
            f'<p class=muted>For operators: <a href="#{START_ID}">{START_TITLE.lower()}</a>, what each alert means and '
            f'what to do, and <a href="#{LOGS_ID}">{LOGS_TITLE.lower()}</a>. For owners of a job: '
            f'<a href="#{EXEMPTION_ID}">{EXEMPTION_TITLE}</a>.</p>',
            _contents("About a job", JOB_RUNBOOK),
            _contents("About the service", SERVICE_RUNBOOK),
            _section(START_ID, START_TITLE, START, START_STEPS),
            *(_entry(entry, contact) for entry in (*JOB_RUNBOOK, *SERVICE_RUNBOOK)),
            _section(LOGS_ID, LOGS_TITLE, LOGS, LOGS_STEPS),
            _section(EXEMPTION_ID, EXEMPTION_TITLE, EXEMPTION, (Step(EXEMPTION_COMMAND),)),
        ],
        style=style_sheet() + _STYLE,
    )


_STYLE: Final = """code { font: 13px/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; padding: 10px 14px; border: 1px solid var(--rule); border-radius: 6px; }
pre b { font-weight: 600; }
a { color: var(--calm); }
section:target { border-color: var(--calm); border-width: 2px; }
dt { font-weight: 600; margin-top: 8px; } dd { margin: 0; } dd p { margin: 0; max-width: 75ch; }
"""


def _contents(title: str, entries: Iterable[RunbookEntry]) -> str:
    links = ", ".join(f'<a href="#{entry.alert.lower()}">{entry.alert}</a>' for entry in entries)
    return f"<p><b>{title}</b>: {links}</p>"


def _entry(entry: RunbookEntry, contact: str) -> str:
    logs = "\n".join(f"<i># {how}</i>\n{_typed(map(Step, commands))}" for how, commands in LOG_COMMANDS[entry.logs])
    parts = (
        ("What it means", _paragraph(entry.means)),
        ("Who is affected", _paragraph(entry.affects)),
        ("First look", _paragraph(entry.first_look) + _terminal(entry.steps)),
        ("What to do", _paragraph(entry.what_to_do)),
        (f"Logs {entry.logs.value}", _code(logs)),
        ("When to silence", _paragraph(entry.when_to_silence) + _terminal(entry.silence)),
        ("Whom to call", _paragraph(f"{entry.escalate} For Tidegauge itself: {contact}.")),
    )
    told = "".join(f"<dt>{name}</dt><dd>{html}</dd>" for name, html in parts)
    return f'<section id="{entry.alert.lower()}">\n<h2>{entry.alert}</h2>\n<dl>{told}</dl>\n</section>'


def _section(section_id: str, title: str, texts: Iterable[str], steps: Iterable[Step]) -> str:
    paragraphs = "\n".join(map(_paragraph, texts))
    return f'<section id="{section_id}">\n<h2>{title}</h2>\n{paragraphs}\n{_terminal(steps)}</section>'


def _paragraph(text: str) -> str:
    return f"<p>{_inline(text)}</p>"


def _terminal(steps: Iterable[Step]) -> str:
    lines = _typed(steps)
    return _code(lines) if lines else ""


def _typed(steps: Iterable[Step]) -> str:
    """Commands in bold, and below each what it prints."""
    return "\n".join(
        f"<b>{escape(step.command, quote=False)}</b>" + (f"\n{escape(step.shows, quote=False)}" if step.shows else "")
        for step in steps
    )


def _code(lines: str) -> str:
    return f'<pre tabindex="0"><code>{lines}</code></pre>'


def _inline(text: str) -> str:
    """Markup: code between backquotes, and links as in Markdown."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\[([^]]+)\]\((#[a-z-]+)\)", r'<a href="\2">\1</a>', marked)
