"""The runbooks as one HTML page, which the coordinator serves at ``/runbooks``: alerts and messages link into it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from tidegauge_exporter.reports.html_page import page, style_sheet
from tidegauge_exporter.runbooks.entries import (
    EXEMPTION,
    EXEMPTION_COMMAND,
    EXEMPTION_ID,
    EXEMPTION_TITLE,
    JOB_RUNBOOK,
    LOGS,
    LOGS_COMMANDS,
    LOGS_ID,
    LOGS_TITLE,
    SERVICE_RUNBOOK,
    RunbookEntry,
)

_TITLE = "Tidegauge runbooks"


def runbooks_html() -> str:
    """The page; it needs nothing beside itself. The id of a section is the alert's name in lower case."""
    return page(
        _TITLE,
        [
            f"<h1>{_TITLE}</h1>",
            "<p class=muted>For operators: what each alert means and what to do, and "
            f'<a href="#{LOGS_ID}">{LOGS_TITLE.lower()}</a>. For owners of a job: '
            f'<a href="#{EXEMPTION_ID}">{EXEMPTION_TITLE}</a>.</p>',
            _contents("About a job", JOB_RUNBOOK),
            _contents("About the service", SERVICE_RUNBOOK),
            *(_entry(entry) for entry in (*JOB_RUNBOOK, *SERVICE_RUNBOOK)),
            _section(LOGS_ID, LOGS_TITLE, LOGS, LOGS_COMMANDS),
            _section(EXEMPTION_ID, EXEMPTION_TITLE, EXEMPTION, (EXEMPTION_COMMAND,)),
        ],
        style=style_sheet() + _STYLE,
    )


_STYLE = """code { font: 13px/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; padding: 10px 14px; border: 1px solid var(--rule); border-radius: 6px; }
a { color: var(--calm); }
section:target { border-color: var(--calm); border-width: 2px; }
dt { font-weight: 600; margin-top: 8px; } dd { margin: 0; max-width: 75ch; }
"""


def _contents(title: str, entries: Iterable[RunbookEntry]) -> str:
    links = ", ".join(f'<a href="#{entry.alert.lower()}">{entry.alert}</a>' for entry in entries)
    return f"<p><b>{title}</b>: {links}</p>"


def _entry(entry: RunbookEntry) -> str:
    facts = (
        ("What it means", entry.means),
        ("Who is affected", entry.affects),
        ("First look", entry.first_look),
        ("What to do", entry.what_to_do),
        ("When to escalate", entry.escalate),
        ("When to silence", entry.when_to_silence),
    )
    told = "".join(f"<dt>{name}</dt><dd>{_inline(text)}</dd>" for name, text in facts)
    return (
        f'<section id="{entry.alert.lower()}">\n<h2>{entry.alert}</h2>\n<dl>{told}</dl>\n'
        f"{_commands(entry.commands)}</section>"
    )


def _section(section_id: str, title: str, texts: Iterable[str], commands: Iterable[str]) -> str:
    paragraphs = "\n".join(f"<p>{_inline(text)}</p>" for text in texts)
    return f'<section id="{section_id}">\n<h2>{title}</h2>\n{paragraphs}\n{_commands(commands)}</section>'


def _commands(commands: Iterable[str]) -> str:
    lines = "\n".join(map(escape, commands))
    return f"<pre><code>{lines}</code></pre>\n" if lines else ""


def _inline(text: str) -> str:
    """Code between backquotes and links as in Markdown; all else as it is."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\[([^]]+)\]\((#[a-z-]+)\)", r'<a href="\2">\1</a>', marked)
