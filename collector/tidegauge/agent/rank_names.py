"""How many ranks one process may be: each that it names becomes series, a row in tables, perhaps an incident."""

from __future__ import annotations

from tidegauge.core.ids import LocalRank, ProcessId, RankIdentity, RankKey

MOST_NAMES = 4
"""In the life of a process. The probe writes its identity again after many events, but the name in it changes once:
when the launcher's variables or torch.distributed give a rank to what was rank 0 of a job of its own
(``probe.guest.tick``). An elastic restart is a new process. The other two are for jobs that set up torch.distributed
anew in the same process, with the ranks that are left."""
MOST_REMEMBERED = 4096
"""Processes, four times as many as are watched at once; then the one that was asked about longest ago is forgotten."""

_Name = tuple[RankKey, LocalRank, int]


class RankNames:
    """Those that one process had."""

    def __init__(self) -> None:
        self._had: set[_Name] = set()
        self._believed: RankIdentity | None = None

    def believe(self, claimed: RankIdentity) -> RankIdentity:
        """``claimed``, or who the process was believed to be last if that would be one name too many.

        ``attempts_each`` belongs to the name: the attempt that is shown is made of it (``attribution``).
        """
        name = claimed.key, claimed.local_rank, claimed.attempts_each
        if self._believed is not None and name not in self._had and len(self._had) >= MOST_NAMES:
            return self._believed
        self._had.add(name)
        self._believed = claimed
        return claimed


class NamesOfProcesses:
    """Of all processes of the node: one that replaces its ring is not somebody new. Not thread-safe."""

    def __init__(self) -> None:
        self._names: dict[ProcessId, RankNames] = {}

    def of(self, process: ProcessId) -> RankNames:
        names = self._names[process] = self._names.pop(process, RankNames())
        if len(self._names) > MOST_REMEMBERED:
            del self._names[next(iter(self._names))]
        return names
