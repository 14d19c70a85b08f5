"""Reads YAML with its lines, so that findings in a policy name their line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

MAX_FILE_CHARS = 1 << 18
"""Of a file: the default policy has 4,000."""
MAX_VALUES = 50_000
"""Keys, texts, lists and mappings, those behind each alias counted each time."""


_WRONG_TAG = (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError)
"""Errors of PyYAML's constructors for a value that does not fit its tag or looks: ``!!bool x``, ``2026-13-45``."""


class YamlError(Exception):
    """Not YAML, or not allowed in a policy. ``line`` counts from 1."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


class _Loader(yaml.SafeLoader):
    """YAML without the surprises of 1.1 in durations and modes: ``1:30`` is a text (and not 90), ``off`` too."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, regexp)
        for tag, regexp in resolvers
        if tag not in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:bool")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"), list("-+.0123456789")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"([Tt]rue|[Ff]alse|TRUE|FALSE)$"), list("tTfF"))


@dataclass(frozen=True)
class Document:
    """The content of the file, with its lines."""

    value: Any
    root: yaml.Node | None

    def line(self, path: Sequence[str | int]) -> int | None:
        """The line, from 1, of the value at ``path``, or of the last part of it that exists.

        Parts that are neither a key nor an index there are skipped (pydantic names the kind of a rung, for instance).
        """
        node, line = self.root, None if self.root is None else _line(self.root)
        for part in path:
            if isinstance(node, yaml.MappingNode):
                found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
                if found is not None:
                    line, node = _line(found[0]), found[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = _line(node)
        return line


def read(text: str) -> Document:
    """The one document in ``text``. Raises ``YamlError``, also for a duplicate key."""
    if len(text) > MAX_FILE_CHARS:
        raise YamlError(f"it has {len(text):,} characters; the limit is {MAX_FILE_CHARS:,}", None)
    loader = None
    try:
        loader = _Loader(text)  # which reads the first characters already
        root = loader.get_single_node()
        if root is not None:
            _refuse_many(root)
            _refuse_duplicates(root)
        return Document(None if root is None else loader.construct_document(root), root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(f"not valid YAML: {error.problem}", None if mark is None else mark.line + 1) from error
    except RecursionError as error:
        raise YamlError("not a policy: something in it contains itself or is nested too deeply", None) from error
    except (yaml.YAMLError, *_WRONG_TAG) as error:
        raise YamlError(f"not valid YAML: {error}", None) from error
    finally:
        if loader is not None:
            loader.dispose()


def _refuse_many(root: yaml.Node) -> None:
    """Aliases of aliases are a few lines that stand for a million values, each of which would be read."""
    sizes: dict[int, int] = {}
    begun: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        if id(node) in begun:
            raise RecursionError
        begun.add(id(node))
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        inner = (one for part in parts for one in (part if isinstance(part, tuple) else (part,)))
        sizes[id(node)] = 1 + sum(map(size, inner))
        if sizes[id(node)] > MAX_VALUES:
            raise YamlError(f"it expands to more than {MAX_VALUES:,} values with its aliases", _line(node))
        return sizes[id(node)]

    size(root)


def _refuse_duplicates(node: yaml.Node) -> None:
    """YAML parsers keep the last of two equal keys, so half of the text would silently not hold."""
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                raise YamlError(f"duplicate key {name}, first on line {seen[name]}", _line(key))
            seen[name] = _line(key)
            _refuse_duplicates(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_duplicates(item)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
