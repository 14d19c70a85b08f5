"""What earlier versions wrote: the files of tests/data/upgrade, by release."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "upgrade"
RELEASES = tuple(sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and path.name[0].isdigit()))
"""Oldest first."""
WITH_DATABASE = tuple(name for name in RELEASES if (FOLDER / name / "database.sql.gz").exists())
WITH_EVIDENCE = tuple(name for name in RELEASES if (FOLDER / name / "evidence").is_dir())


def ring(release: str) -> bytes:
    """The ring file of a rank that trained for some seconds."""
    return gzip.decompress((FOLDER / release / "rank.ring.gz").read_bytes())


def ring_as_said(release: str) -> dict[str, Any]:
    """``header``, ``identity`` and ``samples`` of that ring as the release's own reader says them."""
    return read_json(release, "ring.json.gz")


def answers(release: str) -> dict[str, Any]:
    """What the release's HTTP API said: ``jobs``, ``incidents``, ``incident`` by number."""
    return read_json(release, "answers.json.gz")


def database(release: str) -> str:
    """The release's database as SQL."""
    return gzip.decompress((FOLDER / release / "database.sql.gz").read_bytes()).decode()


def state_file(release: str, name: str) -> Path:
    """A file of the release's state directory; it may not be there."""
    return FOLDER / release / "state" / name


def read_json(release: str, name: str) -> dict[str, Any]:
    found = json.loads(gzip.decompress((FOLDER / release / name).read_bytes()))
    assert isinstance(found, dict)
    return found
