"""What agents report about a rank until the coordinator confirms it: evidence, and memory profiles."""

from __future__ import annotations

from typing import Protocol

from tidegauge.core.evidence import SnapshotRef
from tidegauge.core.ids import JobKey, ProcessId


class Piece(Protocol):
    """``Evidence`` or ``RankProfile``."""

    @property
    def piece_id(self) -> str:
        """The job's own word, so not unique."""

    @property
    def job(self) -> JobKey: ...

    @property
    def process(self) -> ProcessId: ...

    @property
    def snapshots(self) -> tuple[SnapshotRef, ...]: ...
