"""Block Kit's rules as Slack documents them, and what a reader sees: for the fake Slack and for tests of messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from slack_sdk.errors import SlackObjectFormationError
from slack_sdk.models.blocks import Block

MAX_BLOCKS = 50
MAX_MESSAGE_CHARS = 13_200
"""Of all text objects together; Slack's own figure for a message."""
MAX_URL_CHARS = 3000

_OUR_MARKUP = re.compile(r"<!date\^\d+\^\{[a-z_]+\}( \{[a-z_]+\})?\|[A-Za-z0-9: ]+>")
"""Times in the reader's own zone."""
_CODE = re.compile(r"`[^`]+`")


def block_problems(blocks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why Slack would refuse these; none: it takes them. Also asks the classes of ``slack_sdk``."""
    problems = [] if len(blocks) <= MAX_BLOCKS else [f"{len(blocks)} blocks"]
    for block in blocks:
        problems += _problems_of(block)
        try:
            parsed = Block.parse(dict(block))
            if parsed is None:
                problems.append(f"an unknown block: {block.get('type')}")
            else:
                parsed.to_dict()
        except SlackObjectFormationError as error:
            problems.append(str(error))
    if sum(len(one["text"]) for one in text_objects(blocks)) > MAX_MESSAGE_CHARS:
        problems.append("too much text")
    return problems


def text_objects(value: Any) -> list[Mapping[str, Any]]:
    """Every ``plain_text`` and ``mrkdwn`` object in some blocks."""
    if isinstance(value, Mapping):
        own = [value] if value.get("type") in ("plain_text", "mrkdwn") else []
        return own + [one for inner in value.values() for one in text_objects(inner)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [one for inner in value for one in text_objects(inner)]
    return []


def words(value: Any) -> list[str]:
    """All that can be read in some blocks, in order."""
    if isinstance(value, Mapping):
        own = [value["text"]] if isinstance(value.get("text"), str) else []
        return own + [word for key, inner in value.items() if key != "text" or not own for word in words(inner)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [word for inner in value for word in words(inner)]
    return []


def links(blocks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What can be clicked on: label and address."""
    rows = [block for block in blocks if block["type"] == "rich_text"]
    parts = [part for row in rows for part in row["elements"][0]["elements"]]
    return {part["text"]: part["url"] for part in parts if part["type"] == "link"}


def skeleton(blocks: Sequence[Mapping[str, Any]]) -> list[str]:
    """What Slack interprets in some blocks: their kinds, and the markup of ``mrkdwn`` without what is in code spans.

    Two messages with the same skeleton differ in nothing but words: no value has become a link, a mention, formatting
    or a block.
    """
    drawn = []
    for block in blocks:
        drawn.append(str(block["type"]))
        drawn += [
            _CODE.sub("`value`", one["text"]) if one["type"] == "mrkdwn" else "plain" for one in text_objects(block)
        ]
    return drawn


def control_sequences(text: str) -> list[str]:
    """What is left of Slack's ``<...>`` in a text once times are taken out; also a stray half of one."""
    return re.findall(r"<[^>]*>?|>", _OUR_MARKUP.sub("", text))


def _problems_of(block: Mapping[str, Any]) -> list[str]:
    problems = []
    kind = block.get("type")
    most = {"header": 150}.get(str(kind), 2000 if "fields" in block else 3000)
    for one in text_objects(block):
        if not 1 <= len(one["text"]) <= most:
            problems.append(f"{kind}: a text of {len(one['text'])} characters")
        if (one["type"] == "plain_text" and "verbatim" in one) or (one["type"] == "mrkdwn" and "emoji" in one):
            problems.append(f"{kind}: an option of the other kind of text")
    if len(block.get("fields", ())) > 10 or len(block.get("elements", ())) > 25:
        problems.append(f"{kind}: too many parts")
    for url in _urls(block):
        usable = len(url) <= MAX_URL_CHARS and url.startswith(("http://", "https://")) and url.isprintable()
        problems += [] if usable else [f"{kind}: an address that is none"]
    return problems


def _urls(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        own = [value["url"]] if isinstance(value.get("url"), str) else []
        return own + [url for inner in value.values() for url in _urls(inner)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [url for inner in value for url in _urls(inner)]
    return []
