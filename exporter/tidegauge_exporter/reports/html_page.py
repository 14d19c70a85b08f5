"""Markup that all pages share: a document that needs no other file, its head, its figures, its tables.

``html`` and the cells of tables are markup already; every other text is escaped here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from html import escape
from importlib.resources import files
from typing import Final, NamedTuple

NOTHING: Final = "\N{EN DASH}"
"""The text of a cell without a figure."""
_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
_CODE: Final = re.compile("`([^`]+)`")
_TABLE: Final = re.compile("<table(?! aria-label)")


def asset(*name: str) -> str:
    """A file of this package."""
    return files("tidegauge_exporter.reports").joinpath(*name).read_text(encoding="utf-8")


def style_sheet() -> str:
    return asset("report.css")


def page(title: str, html: Iterable[str], *, head: str = "", style: str | None = None, end: str = "") -> str:
    """A document with its style sheet. ``head`` and ``end`` are further markup of the head and the body."""
    body = "\n".join(part for part in html if part)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{head}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style_sheet() if style is None else style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n{end}</body>\n</html>\n"
    )


class Site(NamedTuple):
    """What the web UI puts around a page, and what it knows of the viewer."""

    cluster: str
    viewer: str | None
    """``None``: nobody is asked for a name."""
    sees_all: bool = True
    by_session: bool = False
    """The viewer can log out."""
    pages: Sequence[tuple[str, str]] = ()
    """Labels and addresses of all pages, relative to the page itself."""
    current: str = ""
    """The label of the page."""
    refresh_s: int = 0
    """How often the script of the site asks for the page again; 0: never."""
    root: str = ""
    """The way to the other pages for one that is in a folder, such as ``../``."""
    left_out: int = 0
    """Namespaces of which it is not known yet whether the viewer may see them."""


def site_page(site: Site, title: str, html: Iterable[str], *, data: str = "", version: str = "") -> str:
    """A page of the web UI: its style sheet and script are files of their own (``version`` makes a browser fetch a new
    one), so that no policy has to allow either inline. ``data`` is markup that the script reads."""
    body = "\n".join(part for part in html if part)
    links = "".join(
        f'<a href="{escape(site.root + address)}"{" aria-current=page" if label == site.current else ""}>'
        f"{escape(label)}</a>"
        for label, address in site.pages
    )
    who = "" if site.viewer is None else f'<span class="viewer">{escape(site.viewer)}</span>'
    who += f' <a class="viewer" href="{site.root}logout">Log out</a>' if site.by_session else ""
    left_out = f"; {site.left_out} namespaces not checked yet" if site.left_out else ""
    scope = "" if site.sees_all else f'<span class="viewer">your jobs only{left_out}</span>'
    # Without the script the page still is asked for again, a little later.
    again = f'<noscript><meta http-equiv="refresh" content="{max(site.refresh_s, 10)}"></noscript>\n'
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} \N{MIDDLE DOT} Tidegauge</title>\n"
        f'<link rel="icon" href="data:,">\n<link rel="stylesheet" href="{site.root}ui/site.css?v={version}">\n'
        f'<script src="{site.root}ui/site.js?v={version}" defer></script>\n{again if site.refresh_s else ""}</head>\n'
        f'<body data-refresh="{site.refresh_s}">\n<a class="skip" href="#content">Skip to the content</a>\n'
        f'<div class="site"><span class="brand">Tidegauge</span> <span class="cluster">{escape(site.cluster)}</span>'
        f'<nav aria-label="Pages">{links}</nav>{scope}{who}</div>\n'
        '<p id="news" class="news" role="status" hidden></p>\n'
        f'<main id="content" tabindex="-1">\n{body}\n</main>\n{data}</body>\n</html>\n'
    )


def policy(style: str, script: str | None = None) -> str:
    """What a page may do: nothing but use this style sheet and run this script, which are allowed by their hashes."""
    allowed = "" if script is None else f"script-src '{_hash(script)}'; "
    rules = f"default-src 'none'; {allowed}style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    return (
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n<meta name="referrer" content="no-referrer">\n'
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def script_json(value: object) -> str:
    """JSON for a ``script`` element: ASCII, without ``<``, ``>`` and ``&``."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def meta(facts: Iterable[tuple[str, str | None]], *, made_unix_s: float | None = None) -> str:
    """The line on top: the subject, as far as it is known, and the time."""
    known = [(label, value) for label, value in facts if value]
    known += [] if made_unix_s is None else [("As of", moment(made_unix_s))]
    cells = "".join(f"<span>{label} <b>{escape(value)}</b></span>" for label, value in known)
    return f'<header><p class="meta">{cells}</p></header>'


def lead(
    sentence: str,
    *,
    tone: str,
    remarks: Iterable[str | None] = (),
    figures: Iterable[tuple[str | None, str]] = (),
    story: Iterable[tuple[str, str]] = (),
) -> str:
    """The first section: one sentence, remarks, figures (value, label), and a story (label, sentence); unknown ones are
    left out."""
    cells = "".join(f"<div><dt>{label}</dt><dd>{escape(value)}</dd></div>" for value, label in figures if value)
    parts = [f'<section class="lead tone-{tone}">', f"<h1>{escape(sentence)}</h1>"]
    parts += [f"<p>{inline(remark)}</p>" for remark in remarks if remark]
    parts += [f'<dl class="figures">{cells}</dl>'] * bool(cells)
    parts += [f"<p><b>{escape(label)}.</b> {inline(told)}</p>" for label, told in story]
    return "\n".join([*parts, "</section>"])


def section(heading: str, *html: str) -> str:
    """A section; nothing if ``html`` is empty. Its tables are called as it is, for screen readers, which list them."""
    named = f'<table aria-label="{escape(heading)}"'
    body = _TABLE.sub(lambda _: named, "\n".join(part for part in html if part))
    return f"<section>\n<h2>{escape(heading)}</h2>\n{body}\n</section>" if body else ""


def inline(text: str) -> str:
    """Markup of a text with code between backticks."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def bullets(sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{inline(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def muted(text: str) -> str:
    return f'<p class="muted">{inline(text)}</p>'


def with_note(html: str, note: str | None) -> str:
    """A cell with small print below."""
    return f"{html}<small>{escape(note)}</small>" if note else html


def held_by(path: str) -> str:
    """A cell with the path of a holder: long, in a column that would else be as narrow as its longest word."""
    return f'<span class="path">{escape(path)}</span>'


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = (), most: int | None = None,
    what: str = "rows",
) -> str:  # fmt: skip
    """A table. ``heads`` and cells are markup; the columns ``numbers`` are aligned right. After ``most`` rows, a line
    has the number of further ``what``."""
    every = list(rows)
    css = [' class="number"' if column in numbers else "" for column in range(len(heads))]
    head = "".join(f'<th{look} scope="col">{name}</th>' for look, name in zip(css, heads, strict=True))
    body = "\n".join(
        f"<tr>{''.join(f'<td{look}>{cell}</td>' for look, cell in zip(css, row, strict=True))}</tr>"
        for row in every[:most]
    )
    rest = 0 if most is None else len(every) - most
    more = f"\n{muted(f'{rest:,} more {what} not shown.')}" if rest > 0 else ""
    inner = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>"
    return f'<div class="scroll" tabindex="0"><table>\n{inner}\n</table></div>{more}'


def listing(rows: Iterable[tuple[str, str]]) -> str:
    """A table without a head: a label or a time, and markup beside it."""
    body = "\n".join(f"<tr><td>{escape(label)}</td><td>{cell}</td></tr>" for label, cell in rows)
    return f'<div class="scroll" tabindex="0"><table class="timed">\n{body}\n</table></div>'


def legend(looks: Iterable[tuple[str, str]]) -> str:
    """The legend of a chart: css classes of curves, and markup."""
    keys = (
        f'<span><svg viewBox="0 0 34 8"><path class="{css}" d="M0 4H34"/></svg>{words}</span>' for css, words in looks
    )
    return f'<p class="legend">{"".join(keys)}</p>'


def moment(unix_s: float, form: str = "%Y-%m-%d %H:%M UTC") -> str:
    """ "2027-01-15 08:00 UTC"."""
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime(form)
