"""Every part of Tidegauge that is watched, its readings over the run, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from footprint import name_of

from soak.gauges import look_at_file, look_at_folder, look_at_process, rows_of
from soak.judgement import BoundWatch, CountWatch, MemoryWatch, Verdict
from tidegauge.cluster.service_record import StateFiles
from tidegauge.osproc.processes import descendants

MIB = 1 << 20
MAX_LOGS_BYTES = 16 * MIB
"""docs/service.md promises "a few megabytes at most": four logs of a few files each."""
MAX_ENGINE_BYTES = 64 * MIB
"""Ray's logs, which are rotated at 10 MB with two old ones, of a dozen processes that say next to nothing."""
MAX_GCS_BYTES = 96 * MIB
"""RocksDB: preallocated logs; 27 MB on disk when idle (docs/service.md)."""
MAX_SNAPSHOTS_BYTES = 12 * MIB
"""``keep_snapshots_gib`` of the soak is 0.01, and one piece may be on its way."""
BYTES_OF_INCIDENT = 64 * 1024
"""Of the database, with its history, decisions, outcomes and evidence: kept for ``keep_incidents_days``."""
NO_BOUND = float(1 << 40)


class ProcessRow(NamedTuple):
    """What the table says of one process."""

    name: str
    start_bytes: int
    warm_bytes: int | None
    end_bytes: int
    growth_bytes_per_hour: float | None
    verdicts: Mapping[str, Verdict]
    """By what was watched: memory, descriptors, sockets, threads, alive."""
    counts: Mapping[str, tuple[int, int]]
    """First and last floor, where there are any."""
    readings: int

    @property
    def grows(self) -> bool:
        return any(verdict.grows for verdict in self.verdicts.values())


class ThingRow(NamedTuple):
    """What the table says of files, bytes or rows."""

    name: str
    start: int
    end: int
    unit: str
    verdict: Verdict


@dataclass
class ProcessWatch:
    """One process for as long as it lives."""

    pid: int
    memory: MemoryWatch
    descriptors: CountWatch
    sockets: CountWatch
    threads: CountWatch
    ended_at_s: float | None = None

    @classmethod
    def of(cls, pid: int, run_s: float) -> ProcessWatch:
        return cls(pid, MemoryWatch(run_s), CountWatch(run_s), CountWatch(run_s), CountWatch(run_s))

    def look(self, at_s: float) -> None:
        if self.ended_at_s is not None:
            return
        held = look_at_process(self.pid)
        if held is None:
            self.ended_at_s = at_s
            return
        self.memory.take(at_s, held.private_bytes)
        self.descriptors.take(at_s, held.descriptors)
        self.sockets.take(at_s, held.sockets)
        self.threads.take(at_s, held.threads)

    def row(self, name: str) -> ProcessRow:
        counted = {"descriptors": self.descriptors, "sockets": self.sockets, "threads": self.threads}
        verdicts = {"memory": self.memory.verdict(), **{what: watch.verdict() for what, watch in counted.items()}}
        if self.ended_at_s is not None:
            verdicts["alive"] = Verdict(True, f"ended after {self.ended_at_s:.0f} s")
        floors = {what: watch.floors() for what, watch in counted.items()}
        readings = self.memory.readings
        return ProcessRow(
            name,
            start_bytes=readings[0][1] if readings else 0,
            warm_bytes=self.memory.between(0.25, 0.4375),
            end_bytes=readings[-1][1] if readings else 0,
            growth_bytes_per_hour=self.memory.growth_bytes_per_hour(),
            verdicts=verdicts,
            counts={what: (found[0], found[-1]) for what, found in floors.items() if found},
            readings=len(readings),
        )


class Parts:
    """All processes of a service and of its ranks, its folders and its database. ``look`` takes one reading of each."""

    def __init__(self, files: StateFiles, run_dir: Path, supervisor_pid: int, run_s: float) -> None:
        self._files = files
        self._run_dir = run_dir
        self._supervisor_pid = supervisor_pid
        self._run_s = run_s
        self.processes: dict[str, ProcessWatch] = {}
        self._counts: dict[str, CountWatch] = {}
        self._bounds = {
            "logs": BoundWatch(MAX_LOGS_BYTES, MAX_LOGS_BYTES),
            "engine": BoundWatch(MAX_ENGINE_BYTES, MAX_ENGINE_BYTES),
            "gcs": BoundWatch(MAX_GCS_BYTES, MAX_GCS_BYTES),
            "snapshots": BoundWatch(MAX_SNAPSHOTS_BYTES, MAX_SNAPSHOTS_BYTES),
        }
        self._database = BoundWatch(BYTES_OF_INCIDENT, NO_BOUND)
        self.rows: dict[str, int] = {}

    def watch(self, named: Mapping[str, int]) -> None:
        """These processes beside the service's own: ranks, planted leaks."""
        for name, pid in named.items():
            self.processes[name] = ProcessWatch.of(pid, self._run_s)

    def watch_service(self) -> None:
        """Whatever runs below the supervisor now; call it once the service has settled."""
        named: dict[str, int] = {}
        for pid in (self._supervisor_pid, *(stat.process.pid for stat in descendants(self._supervisor_pid))):
            name = name_of(pid)
            named[name if name not in named else f"{name} {pid}"] = pid
        self.watch(named)

    def look(self, at_s: float) -> None:
        for process in self.processes.values():
            process.look(at_s)
        ours = [stat for stat in descendants(self._supervisor_pid) if not stat.ended]
        self._count("processes of the service", at_s, len(ours))
        self._count("files in the run directory", at_s, look_at_folder(self._run_dir).files)

    def look_at_disk(self, at_s: float) -> None:
        """Dearer, so less often."""
        root = self._files.root
        for name, bound in self._bounds.items():
            kept = look_at_folder(root / name)
            if name != "snapshots":  # they pile up until the oldest are 14 minutes old
                self._count(f"files in {name}/", at_s, kept.files)
            bound.take(1, kept.bytes)
        self._count("files in evidence/", at_s, look_at_folder(root / "evidence").files)
        self.rows = rows_of(root / "tidegauge.db") or self.rows
        # SQLite's log and its index come and go with the connections.
        sizes = [look_at_file(root / f"tidegauge.db{suffix}") for suffix in ("", "-wal", "-shm")]
        self._database.take(self.rows.get("incidents", 0), sum(sizes))

    def process_rows(self) -> list[ProcessRow]:
        return [watch.row(name) for name, watch in self.processes.items()]

    def thing_rows(self) -> Iterable[ThingRow]:
        for name, watch in self._counts.items():
            values = [value for _, value in watch.readings]
            yield ThingRow(name, values[0], values[-1], "", watch.verdict())
        for name, bound in {**self._bounds, "database": self._database}.items():
            first = bound.first or (0, 0)
            yield ThingRow(f"bytes of {name}", first[1], bound.last_bytes, "bytes", bound.verdict())
        yield from self._row_rows()

    def _row_rows(self) -> Iterator[ThingRow]:
        for table, count in self.rows.items():
            yield ThingRow(f"rows of {table}", 0, count, "", Verdict(False, "kept by design"))

    def _count(self, name: str, at_s: float, count: int) -> None:
        self._counts.setdefault(name, CountWatch(self._run_s)).take(at_s, count)
