"""What a process and a folder hold right now, from ``/proc`` and the file system. Nothing is remembered here."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple


class Held(NamedTuple):
    """One look at one process."""

    private_bytes: int
    """What it has written and nobody shares (``Private_Dirty`` of ``smaps_rollup``): USS but for clean pages of
    libraries, which become private, 130 MiB of torch's, when another process that maps them ends."""
    descriptors: int
    sockets: int
    """Of the descriptors."""
    threads: int


class Kept(NamedTuple):
    """One look at one folder and all below it."""

    files: int
    """Names that are no folders, sockets among them."""
    bytes: int
    """As allocated on the disk: rings are sparse."""


def look_at_process(pid: int) -> Held | None:
    """``None`` once it has ended."""
    proc = Path("/proc", str(pid))
    try:
        lines = (proc / "smaps_rollup").read_text().splitlines()
        private_bytes = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty:"))
        descriptors = os.listdir(proc / "fd")
        threads = len(os.listdir(proc / "task"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    sockets = sum(_is_socket(proc / "fd" / descriptor) for descriptor in descriptors)
    return Held(private_bytes, len(descriptors), sockets, threads)


def _is_socket(link: Path) -> bool:
    try:
        return os.readlink(link).startswith("socket:")
    except OSError:  # closed meanwhile
        return False


def look_at_folder(folder: Path) -> Kept:
    """What vanishes during the walk is not counted; a folder that is not there holds nothing."""
    files = allocated_bytes = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            files += 1
            allocated_bytes += status.st_blocks * 512
    return Kept(files, allocated_bytes)


def look_at_file(path: Path) -> int:
    """Its bytes; 0 if it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def rows_of(database: Path) -> dict[str, int]:
    """Rows by table of a SQLite file that others write to; empty while it is not there."""
    if not database.exists():
        return {}
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as connection:
        tables = connection.execute("select name from sqlite_master where type = 'table' order by name").fetchall()
        return {name: connection.execute(f'select count(*) from "{name}"').fetchone()[0] for (name,) in tables}
