"""The small part of the Common Expression Language that rules on plain fields need: fields, ``has()``, ``size()``,
literals, comparisons, ``in``, ``!``, ``&&``, ``||``, parentheses. Everything else is refused, not guessed."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any


class NotEvaluatedError(Exception):
    """The expression uses more of the language than is known here."""


_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<text>'[^'\\]*'|"[^"\\]*")|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!().,\[\]]))"""
)


def evaluate(expression: str, variables: Mapping[str, Any]) -> Any:
    """Raises ``NotEvaluatedError``, also for what CEL itself would call an error (a missing field)."""
    parser = _Parser(_tokens(expression), variables)
    result = parser.either()
    if parser.left:
        raise NotEvaluatedError(expression)
    return result


def _tokens(expression: str) -> list[tuple[str, str]]:
    tokens, position, text = [], 0, expression.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup is None:
            raise NotEvaluatedError(expression)
        tokens.append((found.lastgroup, found[found.lastgroup]))
        position = found.end()
    return tokens


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda one, other: one in other,
}


class _Missing:
    """A field that is not there: an error in CEL unless the other side of ``&&`` or ``||`` decides alone."""


_MISSING = _Missing()


class _Parser:
    """Recursive descent that computes while it reads."""

    def __init__(self, tokens: list[tuple[str, str]], variables: Mapping[str, Any]) -> None:
        self.left = tokens
        self._variables = variables

    def _take(self, *wanted: str) -> str | None:
        if self.left and self.left[0][0] in ("sign", "name") and self.left[0][1] in wanted:
            return self.left.pop(0)[1]
        return None

    def _expect(self, wanted: str) -> None:
        if self._take(wanted) is None:
            raise NotEvaluatedError(wanted)

    def either(self) -> Any:
        result = self._both()
        while self._take("||"):
            other = self._both()
            result = True if True in (result, other) else _joined(result, other)
        return result

    def _both(self) -> Any:
        result = self._comparison()
        while self._take("&&"):
            other = self._comparison()
            result = False if False in (result, other) else _joined(result, other)
        return result

    def _comparison(self) -> Any:
        one = self._negation()
        sign = self._take(*_COMPARISONS)
        if sign is None:
            return one
        other = self._negation()
        if _MISSING in (one, other):
            return _MISSING
        try:
            return _COMPARISONS[sign](one, other)
        except TypeError as error:
            raise NotEvaluatedError(sign) from error

    def _negation(self) -> Any:
        if self._take("!"):
            value = self._negation()
            return value if value is _MISSING else not value
        return self._value()

    def _value(self) -> Any:
        if self._take("("):
            result = self.either()
            self._expect(")")
            return result
        if self._take("["):
            entries: list[Any] = []
            while not self._take("]"):
                entries.append(self.either())
                self._take(",")
            return entries
        if not self.left:
            raise NotEvaluatedError
        kind, text = self.left.pop(0)
        if kind == "number":
            return json.loads(text)
        if kind == "text":
            return text[1:-1]
        if kind != "name":
            raise NotEvaluatedError(text)
        if text in ("true", "false"):
            return text == "true"
        if text in ("has", "size") and self._take("("):
            inner = self.either()
            self._expect(")")
            if text == "has":
                return inner is not _MISSING
            return inner if inner is _MISSING else len(inner)
        return self._fields(text)

    def _fields(self, variable: str) -> Any:
        if variable not in self._variables:
            raise NotEvaluatedError(variable)
        value = self._variables[variable]
        while self._take("."):
            kind, name = self.left.pop(0) if self.left else ("", "")
            if kind != "name" or (self.left and self.left[0][1] == "("):
                raise NotEvaluatedError(name)
            value = value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING
        return value


def _joined(one: Any, other: Any) -> Any:
    """Of ``&&`` without a false and of ``||`` without a true side."""
    return _MISSING if _MISSING in (one, other) else other
