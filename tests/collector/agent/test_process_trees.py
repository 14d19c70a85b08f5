"""Process trees that are kept while nothing in them changes, against trees that are found anew at each scan."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tidegauge.agent.processes.trees import ProcessTrees
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat


class MadeUpProcesses:
    """Processes that begin and end at random, on few pids, so that these are soon taken again."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._now_ticks = 0
        self.living: dict[int, ProcStat] = {}

    def pids(self) -> Sequence[int]:
        return list(self.living)

    def stat(self, pid: int) -> ProcStat | None:
        return self.living.get(pid)

    def begin(self, parent_pid: int, *, state: str = "S") -> ProcessId:
        self._now_ticks += 1
        pid = next(pid for pid in iter(lambda: self._random.randrange(2, 60), None) if pid not in self.living)
        process = ProcessId(pid, self._now_ticks)
        self.living[pid] = ProcStat(process, f"p{self._now_ticks}", state, parent_pid, 1, 1, 1)
        return process

    def end(self, pid: int) -> None:
        """Its children come below the first process, as in the kernel."""
        del self.living[pid]
        for stat in self.living.values():
            if stat.parent_pid == pid:
                self.living[stat.process.pid] = stat._replace(parent_pid=1)

    def change(self) -> None:
        if len(self.living) > 3 and self._random.random() < 0.45:
            self.end(self._random.choice(list(self.living)))
        else:
            self.begin(self._random.choice([1, *self.living]), state=self._random.choice("SSSZ"))

    def some(self) -> frozenset[ProcessId]:
        living = [stat.process for stat in self.living.values()]
        return frozenset(self._random.sample(living, min(len(living), 3)))


@pytest.mark.parametrize("seed", range(20))
def test_trees_that_were_kept_are_those_that_a_new_search_finds(seed: int) -> None:
    processes = MadeUpProcesses(seed)
    kept, anew = ProcessTrees(processes), ProcessTrees(processes)
    ranks = frozenset[ProcessId]()
    for turn in range(300):
        if turn % 3 == 0:
            processes.change()
        if turn % 20 == 0:
            ranks = processes.some()
        anew.scan(frozenset())  # the ranks are others: it keeps nothing
        assert kept.scan(ranks) == anew.scan(ranks)


def test_a_rank_that_is_seen_only_after_it_was_asked_for_gets_its_tree() -> None:
    processes = MadeUpProcesses(0)
    trees = ProcessTrees(processes)
    rank = processes.begin(1)
    hidden = processes.living.pop(rank.pid)
    assert trees.scan(frozenset({rank})) == {rank: ()}
    processes.living[rank.pid] = hidden
    assert trees.scan(frozenset({rank})) == {rank: (hidden,)}


def test_a_process_that_a_rank_adopts_comes_into_its_tree() -> None:
    processes = MadeUpProcesses(0)
    trees = ProcessTrees(processes)
    rank, orphan = processes.begin(1), processes.begin(1)
    assert trees.scan(frozenset({rank})) == {rank: (processes.living[rank.pid],)}
    processes.living[orphan.pid] = processes.living[orphan.pid]._replace(parent_pid=rank.pid)
    assert trees.scan(frozenset({rank})) == {rank: (processes.living[rank.pid], processes.living[orphan.pid])}
