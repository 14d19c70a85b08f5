"""The soak's answer as a table for people and as JSON."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from soak.parts import ProcessRow, ThingRow

MIB = 1 << 20


def print_tables(processes: Sequence[ProcessRow], things: Sequence[ThingRow]) -> None:
    header = ("process", "start MiB", "warm", "end", "MiB/h", "fds", "sockets", "threads", "verdict")
    _print([header, *map(_process_cells, processes)])
    print()
    _print([("files, bytes, rows", "start", "end", "verdict"), *map(_thing_cells, things)])


def _process_cells(row: ProcessRow) -> tuple[str, ...]:
    rate = row.growth_bytes_per_hour
    counts = [f"{row.counts[what][0]}-{row.counts[what][1]}" if what in row.counts else "-" for what in _COUNTED]
    words = [f"{what}: {verdict.word}" for what, verdict in row.verdicts.items() if verdict.grows]
    verdict = "; ".join(words) or row.verdicts["memory"].word
    return (
        row.name, _mib(row.start_bytes), _mib(row.warm_bytes), _mib(row.end_bytes),
        "-" if rate is None else f"{rate / MIB:+.2f}", *counts, verdict,
    )  # fmt: skip


_COUNTED = ("descriptors", "sockets", "threads")


def _thing_cells(row: ThingRow) -> tuple[str, ...]:
    start, end = (f"{n / MIB:.2f} MiB" if row.unit == "bytes" else str(n) for n in (row.start, row.end))
    return row.name, start, end, row.verdict.word


def _mib(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / MIB:.1f}"


def _print(rows: Iterable[Sequence[str]]) -> None:
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def as_json(
    processes: Sequence[ProcessRow], things: Sequence[ThingRow], work: Mapping[str, Any], *, run_s: float
) -> dict[str, Any]:
    """Everything that the tables say, and the machine."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "minutes": round(run_s / 60, 2),
        "machine": {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "kernel": platform.release(),
                    "python": platform.python_version()},
        "work": dict(work),
        "processes": [_process_json(row) for row in processes],
        "things": [{**row._asdict(), "verdict": row.verdict.word, "grows": row.verdict.grows} for row in things],
    }  # fmt: skip


def _process_json(row: ProcessRow) -> dict[str, Any]:
    verdicts = {what: {"grows": verdict.grows, "word": verdict.word} for what, verdict in row.verdicts.items()}
    return {**row._asdict(), "verdicts": verdicts, "counts": dict(row.counts)}
