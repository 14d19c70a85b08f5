"""A file of rules as YAML that people can read, without a YAML library: only what these files need.

Texts are literal blocks, in which nothing has to be escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_:./-]*(?<!:)|[0-9]+[smhd]")
"""Words that mean themselves in YAML, given that none of our values is a word such as ``yes`` or ``null``."""
_NO_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})

Node = str | Mapping[str, "Node"] | Sequence["Node"]


def yaml_text(node: Mapping[str, Node], *, heading: str) -> str:
    """``node`` as a document, after ``heading`` as a comment. Lists hold mappings; values are printable texts, perhaps
    of several lines, without white space around them."""
    comment = "".join(f"# {line}".rstrip() + "\n" for line in heading.splitlines())
    return comment + "\n".join(_mapping(node, "")) + "\n"


def duration(seconds: int) -> str:
    """As Prometheus writes it: ``90s``, ``5m``, ``1h``."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _mapping(node: Mapping[str, Node], indent: str) -> Iterator[str]:
    for key, value in node.items():
        yield from _entry(key, value, indent)


def _entry(key: str, value: Node, indent: str) -> Iterable[str]:
    if isinstance(value, str):
        return _scalar(key, value, indent)
    if isinstance(value, Mapping):
        return [f"{indent}{key}:", *_mapping(value, indent + "  ")]
    return [f"{indent}{key}:", *(line for item in value for line in _item(item, indent + "  "))]


def _item(item: Node, indent: str) -> Iterator[str]:
    assert isinstance(item, Mapping), "lists of rule files hold mappings"
    first, *others = _mapping(item, indent + "  ")
    yield f"{indent}- {first.strip()}"
    yield from others


def _scalar(key: str, text: str, indent: str) -> list[str]:
    if _PLAIN.fullmatch(text) and text.lower() not in _NO_WORDS:
        return [f"{indent}{key}: {text}"]
    lines = text.split("\n")
    assert text == text.strip(), f"not fit for a block: {text!r}"
    assert all(line.isprintable() for line in lines), f"not fit for a block: {text!r}"
    return [f"{indent}{key}: |-", *(f"{indent}  {line}" for line in lines)]
