"""A page as a browser reads it, for tests of reports."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """Words, tags, what it would have to fetch, and where its links lead."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.feed(html)
        self.close()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if tag == "a" and name == "href":
                self.links.append(value or "")
            elif name in ("src", "href", "srcset", "data", "action"):
                self.fetched.append(value or "")

    def handle_data(self, data: str) -> None:
        self.words.append(data)
