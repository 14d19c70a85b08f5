"""Pages of Prometheus series, as a scraper that outlives its servers asks for them."""

from __future__ import annotations

import urllib.request
from http.client import HTTPException


def read_page(url: str, *, timeout_s: float) -> str | None:
    """The text of the page. ``None`` where nobody answers, and where the server ends in the middle of its answer."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return str(answer.read().decode()) or None
    except (OSError, HTTPException):
        return None
