"""Blocks of Block Kit as plain values, within Slack's limits, of tidied texts (``messages.text``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tidegauge_exporter.links import Link, is_web
from tidegauge_exporter.messages.text import cut, plain
from tidegauge_exporter.notify.ports import Message

MAX_HEADER_CHARS: Final = 150
MAX_SECTION_CHARS: Final = 3000
MAX_FIELDS: Final = 10
MAX_TEXT_CHARS: Final = 4000
"""Slack's own limits, in characters: a message beyond one of them is refused as a whole."""

Block = Mapping[str, Any]


def header(line: str) -> Block:
    """A line in large letters."""
    return {"type": "header", "text": _plain_text(line, MAX_HEADER_CHARS)}


def paragraph(lines: Iterable[str]) -> list[Block]:
    """Lines of text in which nothing is interpreted."""
    text = "\n".join(filter(None, lines))
    return [{"type": "section", "text": _plain_text(text, MAX_SECTION_CHARS)}] if text else []


def fields(pairs: Iterable[tuple[str, str | None]]) -> list[Block]:
    """Figures in two columns, each a label and a short, safe ``mrkdwn`` (a cut could end a code span early); those
    without a value are left out."""
    written = [{"type": "mrkdwn", "text": f"*{label}*\n{value}", "verbatim": True} for label, value in pairs if value]
    return [{"type": "section", "fields": written[:MAX_FIELDS]}] if written else []


def context(line: str) -> list[Block]:
    """One line in small letters."""
    return [{"type": "context", "elements": [_plain_text(line, MAX_SECTION_CHARS)]}] if line else []


def link_row(chosen: Sequence[Link]) -> list[Block]:
    """Links beside each other.

    They are not buttons: Slack sends every click on a button to the app as well, and puts a warning sign beside it
    without an answer. Slack cannot reach a cluster, so there would be none. Rich text is not parsed: an address needs
    no escaping in it, and cannot end early.
    """
    elements: list[Mapping[str, Any]] = []
    for link in chosen:
        if link.url is None or not is_web(link.url):
            continue
        if elements:
            elements.append({"type": "text", "text": "    "})
        elements.append({"type": "link", "url": link.url, "text": link.label, "style": {"bold": True}})
    if not elements:
        return []
    return [{"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": elements}]}]


def message(text: str, *parts: Iterable[Block]) -> Message:
    """The message; ``text`` is for notifications, search and screen readers."""
    return Message(cut(plain(text), MAX_TEXT_CHARS), tuple(block for part in parts for block in part))


def _plain_text(text: str, most: int) -> Mapping[str, Any]:
    return {"type": "plain_text", "text": cut(plain(text), most), "emoji": False}
