"""The section of docs/alerts.md that ``bench/killed_for_ten_minutes.py`` measured."""

from __future__ import annotations

from typing import Final

KILLED: Final = ""
