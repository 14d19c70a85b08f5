"""Divides a job's ranks into groups, one for each launch that runs beside others and has a rank 0 of its own.

Two ``srun`` in one allocation, two ``torchrun`` in one script, a trainer beside an evaluator, eight trainings packed
into a node: each is a *group of ranks*, compared, judged and saved by itself. What a launcher tells its ranks (world
size, run id, address of the store) separates groups; where that says nothing, two living processes with one rank number
do, by their Slurm step, their container, their parent, and at last the order in which they started. A job whose groups
never ran side by side has one: a program that is started again in a loop stays the same, and so does one whose ranks
its launcher starts again (torchelastic), which makes another attempt of them. Replicas of a server are groups from the
start, by the API server's word, and each is divided by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Optional, TypeVar

from tidegauge.core.ids import ProcessId, scheduler_restarts

Place = tuple[str, ProcessId]
"""A host and a process on it: the engine names a node anew each time that it starts there."""


class GroupMember(NamedTuple):
    """One process of a job, with the facts that decide which of its groups it belongs to."""

    place: Place
    rank: int
    world_size: int
    lives: bool
    """It runs, as a node says that has reported lately."""
    run_id: Optional[str] = None
    """``TORCHELASTIC_RUN_ID``."""
    store: Optional[str] = None
    """``MASTER_ADDR:MASTER_PORT``."""
    step: Optional[str] = None
    """Slurm's, by slurmd's word."""
    parent: Optional[ProcessId] = None
    """The rank that it descends from, else its parent process, by the kernel's word."""
    pod: Optional[str] = None
    """Name and container as the API server and kubelet say."""
    container: Optional[str] = None
    attempt: int = 0
    attempts_each: int = 1
    """``RankIdentity.attempts_each``."""
    replica: str = ""
    """``PodPlace.replica``."""

    @property
    def launcher(self) -> Optional[Place]:
        """Its parent, and on which node."""
        return None if self.parent is None else (self.place[0], self.parent)

    @property
    def restarts(self) -> int:
        """The scheduler's restarts of the job."""
        return scheduler_restarts(self.attempt, self.attempts_each)


class NameOfGroup(NamedTuple):
    """The name of a process's group; empty where its job has one group."""

    process: ProcessId
    name: str


class RankGroup(NamedTuple):
    """One group of ranks of a job."""

    key: str
    """Its name for as long as the job is known; empty for the first group of a job without replicas."""
    name: str
    """Its name for people; empty while the job has had no other group at the same time, and no replicas."""
    places: frozenset[Place]
    restarts: int = 0
    """How often the job's scheduler had restarted it (``scheduler_restarts``)."""
    replica: str = ""
    """The replica that it is, or a part of."""

    def members(self) -> Iterator[tuple[int, Place]]:
        """Its processes, each with the start of the job that it was seen in: one may be known in two."""
        return ((self.restarts, place) for place in self.places)


class RankGroups:
    """The groups of a job across all of its attempts, updated at every look. Not thread-safe."""

    def __init__(self) -> None:
        self._starts: dict[_Start, _GroupsOfStart] = {}
        """With each start of the job by its scheduler, and in each replica, the names begin anew."""
        self._remembered: list[tuple[int, RankGroup]] = []

    def remember(self, attempt: int, group: RankGroup) -> None:
        """Take up where another ended: these processes are in this group of a job that has several."""
        self._remembered.append((attempt, group))

    def key_of(self, place: Place) -> Optional[str]:
        """The key of the group that a process was in at the last look; ``None``: it was not there."""
        keys = ((which.replica, start.keys.get(place)) for which, start in self._starts.items())
        return next((_of_replica(replica, key) for replica, key in keys if key is not None), None)

    def look(self, members: Iterable[GroupMember]) -> tuple[RankGroup, ...]:
        """The groups of these processes, by start of the job, the first group of each first. Every process is in one of
        them."""
        before, self._starts = self._starts, {}
        groups: list[RankGroup] = []
        for which, started in _by_start_of_job(list(members)):
            start = self._starts[which] = before.get(which) or _GroupsOfStart()
            if self._remembered and not which.replica:  # those of replicas are named by them
                self._hand_on(start, which.restarts, {one.attempts_each for one in started})
            for group in start.look(started):
                key, name = (_of_replica(which.replica, one) for one in (group.key, group.name))
                groups.append(RankGroup(key, name, group.places, *which))
        return tuple(groups)

    def _hand_on(self, start: _GroupsOfStart, restarts: int, each: AbstractSet[int]) -> None:
        of_others = []
        for attempt, group in self._remembered:
            if any(scheduler_restarts(attempt, one) == restarts for one in each):
                start.remember(group)
            else:
                of_others.append((attempt, group))
        self._remembered = of_others


class _Start(NamedTuple):
    """One start of a job by its scheduler; of a server, one of its replicas."""

    restarts: int
    replica: str


def _of_replica(replica: str, name: str) -> str:
    """The key or name of a group within a replica: "replica 3", and "replica 3, container draft" where it has two."""
    return ", ".join(filter(None, (replica, name)))


def launch_in_replica(name: str) -> str:
    """Of a replica's group by its name: which launch within the replica it is, "container draft"; empty for the only
    one."""
    return name.partition(", ")[2]


class _GroupsOfStart:
    """The groups of one ``_Start``."""

    def __init__(self) -> None:
        self.keys: dict[Place, str] = {}
        self._remembered: dict[Place, str] = {}
        """Keys of processes that were in a group before this began, and have not been seen yet."""
        self._names: dict[str, str] = {}
        """By key, once several groups were seen at the same time."""
        self._origins: dict[str, tuple[Hashable, ...]] = {}
        """By key: what started the group's living processes."""

    def remember(self, group: RankGroup) -> None:
        self._names[group.key] = group.name
        self._remembered.update(dict.fromkeys(group.places, group.key))

    def look(self, members: list[GroupMember]) -> tuple[RankGroup, ...]:
        """The groups of these processes, the first group first. Every process is in one of them."""
        if not self._names and _is_one_launch(members):  # most looks of most jobs
            self.keys = dict.fromkeys([one.place for one in members], "")
            return (RankGroup("", "", frozenset(self.keys)),)
        members = _each_once(members)
        for one in members:
            if one.place in self._remembered:
                self.keys[one.place] = self._remembered.pop(one.place)
        groups = sorted(self._launches(members), key=lambda group: _by_start(group.members[0]))
        if len(groups) == 1 and len({self.keys.get(one.place) for one in groups[0].members} - {None}) > 1:
            # They have learnt their ranks since: torch.distributed was set up.
            self.keys, self._names, self._origins = {}, {}, {}
        keys: dict[Place, str] = {}
        if len(groups) > 1 or self._names:
            self._name(groups, keys)
        living = [group.members for group in groups]
        for one in members:
            keys.setdefault(one.place, self.keys.get(one.place, "") if one.lives else self._key_of_ended(one, living))
        self.keys = keys
        places: dict[str, list[Place]] = defaultdict(list)
        for one in members:
            places[keys[one.place]].append(one.place)
        return tuple(RankGroup(key, self._names.get(key, ""), frozenset(places[key])) for key in sorted(places))

    def _launches(self, members: Sequence[GroupMember]) -> list[_Launch]:
        """The living processes by launch. Launches of one attempt are told apart; those of several are one where the
        later goes on with the earlier."""
        former: dict[str, list[GroupMember]] = defaultdict(list)
        for one in members:
            if one.place in self.keys:
                former[self.keys[one.place]].append(one)
        launches: list[_Launch] = []
        living = _by(lambda one: one.attempt, [one for one in members if one.lives])
        for attempt in sorted(living):
            earlier = list(launches)
            groups = [self._known(group) for group in _side_by_side(living[attempt])]
            for known, group in sorted(groups, key=lambda one: one.key is None):
                if known is None:
                    known = _only([key for key, ones in former.items() if _goes_on(group, ones)])
                before = _only([
                    one for one in earlier
                    if (one.key == known if None not in (one.key, known) else _goes_on(group, one.members))
                ])  # fmt: skip
                if before is not None:
                    earlier.remove(before)  # of two that go on with it, the other is new
                    launches.remove(before)
                    known, group = before.key or known, [*before.members, *group]
                launches.append(_Launch(None if known in {one.key for one in launches} else known, group))
        return launches

    def _known(self, group: list[GroupMember]) -> _Launch:
        """The processes, under the key that one of them had at the last look."""
        return _Launch(next((self.keys[one.place] for one in group if one.place in self.keys), None), group)

    def _name(self, groups: Sequence[_Launch], keys: dict[Place, str]) -> None:
        """Each group keeps the key that its earliest member has; a program that is started again takes up that of its
        last run; one that has none gets a name."""
        taken: set[str] = set()
        known = [group.key for group in groups]
        living = [group.members for group in groups]
        over = {origin: key for key, origin in self._origins.items() if key not in known}
        for group, before in zip(living, known):
            origin = _origin(group[0])
            key = over.pop(origin, None) if before is None else before
            if key is None or key in taken:
                used = {*self._names, *taken, *filter(None, known)}
                first = "" not in taken and "" not in known and "" not in self._names
                key = "" if first else _unused(_name_of(group, living), {*used, *self._names.values()})
            if key not in self._names:
                self._names[key] = key or _unused(_name_of(group, living), {*self._names.values()})
            taken.add(key)
            self._origins[key] = origin
            keys.update((one.place, key) for one in group)

    def _key_of_ended(self, one: GroupMember, groups: Sequence[Sequence[GroupMember]]) -> str:
        known = self.keys.get(one.place)
        if known is not None or not self._names:
            return known or ""
        alike = next((group for group in groups if _claims(group[0]) == _claims(one) and group[0].step == one.step), ())
        return next((self.keys[member.place] for member in alike if member.place in self.keys), "")


class _Launch(NamedTuple):
    """Living processes that were launched together."""

    key: Optional[str]
    """Of the group that one of them was in at the last look, or that its ranks of an earlier attempt were in."""
    members: list[GroupMember]


def _goes_on(later: Sequence[GroupMember], earlier: Sequence[GroupMember]) -> bool:
    """Whether a launcher has started its ranks again: it is the same process on one of the nodes. Of a launch over
    several nodes torchelastic's launchers count their restarts each by itself."""
    before = [one for one in earlier if one.attempt < later[0].attempt]
    launchers = {one.launcher for one in before} - {None}
    if any(one.launcher in launchers for one in later):
        return True
    living = [one for one in before if one.lives]
    if not living or (living[0].world_size, living[0].run_id) != (later[0].world_size, later[0].run_id):
        return False
    return not _collide([*living, *later])


def _origin(one: GroupMember) -> tuple[Hashable, ...]:
    """The facts that a program that is started again in a loop shares with its last run."""
    return one.world_size, one.run_id, one.step, one.pod, one.container, one.place[0], one.parent


def _each_once(members: Iterable[GroupMember]) -> list[GroupMember]:
    """The processes in the order of their start, each once. A process is known twice until the engine's former node is
    forgotten, and after it has changed its rank, which is 0 until torch.distributed is set up."""
    last_alive = {one.place: one for one in sorted(members, key=lambda one: (one.lives, one.attempt, one.rank))}
    return sorted(last_alive.values(), key=_by_start)


def _by_start_of_job(members: list[GroupMember]) -> list[tuple[_Start, list[GroupMember]]]:
    if len({(one.attempt, one.attempts_each, one.replica) for one in members}) == 1:  # mostly
        return [(_Start(members[0].restarts, members[0].replica), members)]
    return sorted(_by(lambda one: _Start(one.restarts, one.replica), members).items())


def _by_start(one: GroupMember) -> tuple[object, ...]:
    """Steps begin in the order of their numbers, processes of one node in that of their start."""
    step = int(one.step) if one.step is not None and one.step.isdecimal() else -1
    return step, one.place[1].start_ticks, one.rank, one.place


def _is_one_launch(members: Sequence[GroupMember]) -> bool:
    launches = {(one.world_size, one.run_id, one.attempt) for one in members}
    return len(launches) == 1 and len({one.rank for one in members}) == len(members)


def _side_by_side(living: Sequence[GroupMember]) -> list[list[GroupMember]]:
    buckets: list[list[GroupMember]] = []
    for launch in _by(lambda one: (one.world_size, one.run_id), _with_launchers(living)).values():
        # Ranks of one launch may name its store at different times, and under two names.
        buckets += [launch] if not _collide(launch) else list(_by(_claims, launch).values())
    return [group for bucket in _folded(buckets) for group in _split(bucket, (_step, _container, _parent))]


def _with_launchers(living: Sequence[GroupMember]) -> list[GroupMember]:
    """A program that starts its own ranks (``mp.spawn``), and has used a GPU itself, is of their launch."""
    there = {one.place: one for one in living}
    claims: dict[Place, GroupMember] = {}
    for one in living:
        head = _head(one, there)
        if head is not one and one.world_size > 1 and _names_nothing(head):
            claims.setdefault(head.place, one)
    return [
        one
        if (rank := claims.get(one.place)) is None
        else one._replace(world_size=rank.world_size, run_id=rank.run_id, store=rank.store)
        for one in living
    ]


def _names_nothing(one: GroupMember) -> bool:
    return one.world_size == 1 and one.run_id is None


T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def _only(ones: Sequence[T]) -> Optional[T]:
    return ones[0] if len(ones) == 1 else None


def _by(what: Callable[[GroupMember], K], members: Iterable[GroupMember]) -> dict[K, list[GroupMember]]:
    parts: dict[K, list[GroupMember]] = defaultdict(list)
    for one in members:
        parts[what(one)].append(one)
    return parts


def _claims(one: GroupMember) -> tuple[Hashable, ...]:
    return one.world_size, one.run_id, one.store


def _folded(buckets: list[list[GroupMember]]) -> list[list[GroupMember]]:
    """A rank that was looked at before its launcher had told it everything joins those that miss it."""
    whole = [bucket for bucket in buckets if bucket[0].run_id is not None or bucket[0].store is not None]
    folded = list(whole)
    for bucket in buckets:
        if bucket in whole:
            continue
        fits = [other for other in whole if other[0].world_size == bucket[0].world_size > 1]
        if len(fits) == 1 and not _collide([*fits[0], *bucket]):
            fits[0].extend(bucket)
            fits[0].sort(key=_by_start)
        else:
            folded.append(bucket)
    return folded


def _split(members: list[GroupMember], by: Sequence[Callable[[GroupMember], Hashable]]) -> list[list[GroupMember]]:
    """The members divided only as finely as it takes until no rank number is there twice."""
    if not _collide(members):
        return [members]
    if not by:
        return _layers(members)
    there = {one.place: one for one in members}
    parts = _by(lambda one: by[0](_head(one, there)), members)
    return [group for part in parts.values() for group in _split(part, by[1:])]


def _step(one: GroupMember) -> Hashable:
    return one.step


def _container(one: GroupMember) -> Hashable:
    return one.pod, one.container


def _parent(one: GroupMember) -> Hashable:
    return one.place[0], one.parent


def _head(one: GroupMember, there: Mapping[Place, GroupMember]) -> GroupMember:
    """The rank that a process descends from, if it descends from one: rank 0 may have started the others."""
    for _ in range(len(there)):
        above = there.get((one.place[0], one.parent)) if one.parent is not None else None
        if above is None:
            break
        one = above
    return one


def _layers(members: Sequence[GroupMember]) -> list[list[GroupMember]]:
    """Processes that nothing else tells apart: the first of each rank, the second of each, and so on."""
    there = {one.place: one for one in members}
    heads = [one for one in members if _head(one, there) is one]
    layer_of: dict[Place, int] = {}
    seen: dict[int, int] = defaultdict(int)
    for one in heads:
        layer_of[one.place] = seen[one.rank]
        seen[one.rank] += 1
    layers: dict[int, list[GroupMember]] = defaultdict(list)
    for one in members:
        layers[layer_of[_head(one, there).place]].append(one)
    return [layers[index] for index in sorted(layers)]


def _collide(members: Sequence[GroupMember]) -> bool:
    """Whether two of them are the same rank. A helper of a rank, which inherits its number, is no other rank."""
    if len({one.rank for one in members}) == len(members):
        return False
    there = {one.place: one for one in members}
    heads: dict[int, Place] = {}
    return any(heads.setdefault(one.rank, _head(one, there).place) != _head(one, there).place for one in members)


def _name_of(group: Sequence[GroupMember], groups: Sequence[Sequence[GroupMember]]) -> str:
    first = min(group, key=lambda one: (one.rank, one.place))
    names: list[tuple[str, Callable[[GroupMember], Optional[str]]]] = [
        ("step", lambda one: one.step),
        ("container", lambda one: one.container),
        ("pod", lambda one: one.pod),
    ]
    if first.world_size > 1 or first.run_id is not None:
        names.append(("pid", lambda one: None if one.parent is None else str(one.parent.pid)))
    for word, of in names:
        # What several groups have in common names none of them: a job's pod; Ray's raylet, which starts all workers.
        name = of(first)
        if name is not None and sum(any(of(one) == name for one in other) for other in groups) == 1:
            return f"{word} {name}"
    return f"pid {first.place[1].pid}"


def _unused(name: str, used: Iterable[str]) -> str:
    used, number, found = frozenset(used), 1, name
    while found in used:
        number += 1
        found = f"{name} ({number})"
    return found
