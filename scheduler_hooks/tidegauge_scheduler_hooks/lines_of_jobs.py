"""Reads the files of ``tidegauge efficiency --for-submission`` and ``--for-admission``: a line for each job, with its
user (on Kubernetes its namespace), its name and what is said of it, separated by tabs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MAX_FILE_BYTES = 1 << 20
"""As Slurm's job_submit.lua has it, and as a ConfigMap holds: some 5,000 jobs."""


def read_lines(file: Path, parse: Callable[[str], T | None]) -> dict[tuple[str, str], T]:
    """What is said of each job, by user and name; its first line counts, as job_submit.lua takes it.

    ``parse``: the value of what follows the name; ``None``: the line is left out. So is one that the bound cuts. Empty
    if there is no file; raises ``OSError`` for one that cannot be read."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return {}
    if len(raw) == MAX_FILE_BYTES:
        raw = raw[: raw.rfind(b"\n") + 1]
    found: dict[tuple[str, str], T] = {}
    for line in raw.decode(errors="replace").splitlines():
        user, _, rest = line.partition("\t")
        name, tab, said = rest.partition("\t")
        value = parse(said) if user and name and tab else None
        if value is not None:
            found.setdefault((user, name), value)
    return found
