"""Looks for many words in a text at once: a user may have had twenty thousand jobs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

_TOKEN = re.compile(rb"[A-Za-z0-9]+")


class Words:
    """Words, each with no letter or digit beside it where it is found; those without a letter or digit are left out."""

    def __init__(self, words: Iterable[str]) -> None:
        self._by_first: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        """By their first run of letters and digits, with its place in them; the longest first."""
        for word in sorted((one.encode(errors="surrogatepass") for one in words), key=len, reverse=True):
            if (first := _TOKEN.search(word)) is not None:
                self._by_first[first.group()].append((first.start(), word))

    def are_in(self, text: bytes) -> bool:
        """Whether one of them is."""
        return next(self._found(text), None) is not None

    def replaced(self, text: str, by: str) -> str:
        raw, done, at = text.encode(), b"", 0
        for start, end in self._found(raw):
            if start >= at:
                done, at = done + raw[at:start] + by.encode(), end
        return (done + raw[at:]).decode()

    def _found(self, text: bytes) -> Iterator[tuple[int, int]]:
        for token in _TOKEN.finditer(text):
            for before, word in self._by_first.get(token.group(), ()):
                start, end = token.start() - before, token.start() - before + len(word)
                if (
                    start >= 0
                    and text.startswith(word, start)
                    and not (text[end : end + 1].isalnum() and word[-1:].isalnum())
                ):
                    yield start, end
                    break
