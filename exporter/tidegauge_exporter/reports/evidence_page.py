"""A report as one file: what the page's script is given, and the document that runs this script and nothing else.

The document fetches nothing: its policy (a ``Content-Security-Policy``) allows the one script and the one style sheet
that are in it, by their hashes. What a job chose goes to the script as JSON in which no character means anything to
HTML, and the script puts it on the page as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import Any, Final

SCRIPT: Final = ("report_page", "built", "report.js")
STYLES: Final = (("report.css",), ("report_page", "built", "report.css"))
DATA_ID: Final = "report-data"
_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def document(title: str, html: Iterable[str], data: Mapping[str, Any]) -> str:
    """The whole file. ``html`` are parts of markup, ``data`` is for the script."""
    script = _asset(*SCRIPT)
    style = "\n".join(_asset(*name) for name in STYLES)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    body = "\n".join(part for part in html if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n"
        f'<script type="application/json" id="{DATA_ID}">{script_json(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def script_json(value: object) -> str:
    """JSON that may stand in a ``script`` element: ASCII, without ``<``, ``>`` and ``&``."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def _asset(*name: str) -> str:
    return files("tidegauge_exporter.reports").joinpath(*name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As a ``Content-Security-Policy`` names what it allows."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
