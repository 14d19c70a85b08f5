"""Limits how many rank names a process may claim: each name adds series, a row in tables, perhaps an incident."""

from __future__ import annotations

from tidegauge.core.ids import ProcessId, RankIdentity

MAX_NAMES = 4
"""In the life of a process. The probe publishes its identity again after many events, but the name in it changes once:
when the launcher's variables or torch.distributed give a rank to a process that was rank 0 of a job of its own
(``probe.session.probe.tick``). An elastic restart is a new process. The other two are for jobs that set up
torch.distributed anew in the same process, with the ranks that are left."""
MAX_LABELS = 16
"""Combinations of other labels of its series and its group of ranks, in the life of a process: with each, series begin
anew. A level switched by command, allocator settings changed in the program, a changed number of ranks are some."""
MAX_REMEMBERED = 4096
"""Processes, four times as many as are watched at once; then the one used longest ago is forgotten."""

_NAME = ("job_id", "attempt", "rank", "local_rank", "attempts_each")
"""``attempts_each`` belongs to it: the attempt that is shown is made of it (``attribution``)."""
_LABELS = (
    "device_uuids", "torch_version", "alloc_conf", "profile", "job_name", "scheduler", "world_size", "run_id", "store",
)  # fmt: skip


class RankNames:
    """The names and labels that one process has claimed."""

    def __init__(self) -> None:
        self._names: set[tuple[object, ...]] = set()
        self._labels: set[tuple[object, ...]] = set()
        self._believed: RankIdentity | None = None

    def believe(self, claimed: RankIdentity) -> tuple[RankIdentity, frozenset[str]]:
        """``claimed``, with the last believed name or labels where it would be one too many; and which of the two
        (``rank``, ``labels``) were replaced."""
        before, overruled = self._believed, set()
        if not _has_room(self._names, _values(claimed, _NAME), MAX_NAMES) and before is not None:
            claimed = _with_those_of(before, claimed, _NAME)
            overruled.add("rank")
        if not _has_room(self._labels, _values(claimed, _LABELS), MAX_LABELS) and before is not None:
            claimed = _with_those_of(before, claimed, _LABELS)
            overruled.add("labels")
        if claimed.world_size <= claimed.rank:  # the name of one claim, the size of another
            claimed = claimed._replace(world_size=claimed.rank + 1)
        self._believed = claimed
        return claimed, frozenset(overruled)


def _values(identity: RankIdentity, fields: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(getattr(identity, field) for field in fields)


def _has_room(had: set[tuple[object, ...]], values: tuple[object, ...], most: int) -> bool:
    """Whether these may be believed; if so, they are added to ``had``."""
    if values not in had and len(had) >= most:
        return False
    had.add(values)
    return True


def _with_those_of(before: RankIdentity, claimed: RankIdentity, fields: tuple[str, ...]) -> RankIdentity:
    return claimed._replace(**{field: getattr(before, field) for field in fields})


class NamesOfProcesses:
    """``RankNames`` of all the node's processes: one that replaces its ring keeps its own. Not thread-safe."""

    def __init__(self) -> None:
        self._names: dict[ProcessId, RankNames] = {}

    def of(self, process: ProcessId) -> RankNames:
        names = self._names[process] = self._names.pop(process, RankNames())
        if len(self._names) > MAX_REMEMBERED:
            del self._names[next(iter(self._names))]
        return names
