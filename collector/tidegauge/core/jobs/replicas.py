"""How many replicas of an inference server run, and in how many of them memory grows."""

from __future__ import annotations

from typing import NamedTuple


class Replicas(NamedTuple):
    """Of one server, at one look."""

    kind: str
    """``Deployment``, ``StatefulSet`` or ``LeaderWorkerSet``."""
    running: int
    """Replicas with a living rank."""
    growing: int
    """Running replicas in which memory grows without bound (state ``leak``)."""

    @property
    def words(self) -> str:
        """ "3 of 8 replicas grow", "8 replicas"."""
        many = f"{self.running} replica{'' if self.running == 1 else 's'}"
        return f"{self.growing} of {many} grow{'s' if self.running == 1 else ''}" if self.growing else many

    @property
    def told(self) -> str:
        """ "Deployment: 3 of 8 replicas grow"."""
        return f"{self.kind}: {self.words}"
