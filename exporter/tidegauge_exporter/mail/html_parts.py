"""Parts that all mails share: the HTML document, headings, paragraphs, and the plain text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

PLOT: Final = "memory-plot"
"""The name of the picture in the HTML (``cid:`` of RFC 2392)."""
CALM_COLOUR: Final = "#6b7683"
PARAGRAPH: Final = "margin:0 0 12px"
_SMALL: Final = "margin:20px 0 0;font-size:13px;color:#5b6570"


class MailText(NamedTuple):
    """Subject and texts of one mail."""

    subject: str
    """One line."""
    text: str
    html: str
    """The HTML, which refers to the picture, if there is one, as ``cid:PLOT``."""


def page(parts: Sequence[str]) -> str:
    """The HTML document. Styles stand at the elements, because most mail readers drop a style sheet. Ground and text
    have colours, so that the mail is readable in a dark theme."""
    body = "\n".join(filter(None, parts))
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"></head>\n'
        '<body style="margin:0;background:#ffffff;color:#1c2126;'
        'font:15px/1.5 -apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif">\n'
        f'<div style="max-width:680px;margin:0 auto;padding:20px 16px;overflow-wrap:anywhere">\n{body}\n</div>\n'
        "</body>\n</html>\n"
    )


def heading(line: str, colour: str) -> str:
    return (
        f'<h1 style="margin:0 0 16px;padding-left:12px;border-left:5px solid {colour};font-size:20px;'
        f'line-height:1.35">{escape(line)}</h1>'
    )


def paragraph(line: str) -> str:
    return f'<p style="{PARAGRAPH}">{escape(line)}</p>'


def small_lines(lines: Sequence[str]) -> str:
    return f'<p style="{_SMALL}">{"<br>".join(map(escape, lines))}</p>' if lines else ""


def plain_text(parts: Sequence[str], footer: str) -> str:
    return "\n\n".join(filter(None, [*parts, f"-- \n{footer}"])) + "\n"
