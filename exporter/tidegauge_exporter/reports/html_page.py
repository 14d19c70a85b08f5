"""The parts that reports have in common: a page that needs nothing beside itself, its head, its figures.

What is called ``html`` is markup already; every other text is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from html import escape
from importlib.resources import files


def page(title: str, html: Iterable[str]) -> str:
    """A whole document, with the style sheet in it."""
    style = files("tidegauge_exporter.reports").joinpath("report.css").read_text(encoding="utf-8")
    body = "\n".join(part for part in html if part)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def meta(facts: Iterable[tuple[str, str | None]], *, made_unix_s: float) -> str:
    """The line on top: what it is about, as far as that is known, and as of when."""
    told = [f"<span>{label} <b>{escape(value)}</b></span>" for label, value in facts if value]
    return f'<header><p class="meta">{"".join(told)}<span>Report of {moment(made_unix_s)}</span></p></header>'


def lead(sentence: str, *, tone: str, remarks: Iterable[str | None], figures: Iterable[tuple[str | None, str]]) -> str:
    """What a person reads first: one sentence, what there is to say to it, and figures (value, what it is); unknown
    ones are left out."""
    cells = "".join(f"<div><dt>{what}</dt><dd>{escape(value)}</dd></div>" for value, what in figures if value)
    parts = [f'<section class="lead tone-{tone}">', f"<h1>{escape(sentence)}</h1>"]
    parts += [f"<p>{escape(remark)}</p>" for remark in remarks if remark]
    parts += [f'<dl class="figures">{cells}</dl>'] * bool(cells)
    return "\n".join([*parts, "</section>"])


def section(heading: str, html: str) -> str:
    return f"<section>\n<h2>{escape(heading)}</h2>\n{html}\n</section>"


def legend(looks: Iterable[tuple[str, str]]) -> str:
    """What the curves of a plot are: their css classes, and words of ours."""
    keys = (
        f'<span><svg viewBox="0 0 34 8"><path class="{css}" d="M0 4H34"/></svg>{words}</span>' for css, words in looks
    )
    return f'<p class="legend">{"".join(keys)}</p>'


def moment(unix_s: float) -> str:
    """ "2027-01-15 08:00 UTC"."""
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
