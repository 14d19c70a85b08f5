"""Host memory of process trees: real forks against the kernel's own account, made-up ones for what takes hours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from fake_node import GIB, MIB, FakeClock
from tidegauge.agent.ports import ProcessUsage
from tidegauge.agent.processes.host_limits import CgroupRooms
from tidegauge.agent.processes.host_memory import (
    CPU_BURST_S,
    CPU_SHARE,
    MAX_ENDING_S,
    READ_EVERY_S,
    SCAN_EVERY_S,
    SETTLED_S,
    SETTLING_LOOKS,
    HostMemoryMeter,
)
from tidegauge.agent.processes.procfs import ProcFs
from tidegauge.core.host_memory import HostMemory, HostProcess, NodeMemory, grown_most, kib_field
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat

RANK = ProcessId(100, 10)

# --- real processes

FAMILY = r"""
import ctypes, mmap, os, sys

MIB = 1 << 20

def touched(mib):
    memory = mmap.mmap(-1, mib * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(memory), 4096):
        memory[at] = 1
    return memory

def say(word):
    os.write(1, f"{word}\n".encode())

def work(number, orders, batch):
    ctypes.CDLL(None).prctl(15, b"pt_data_worker")  # PR_SET_NAME, as torch does
    for at in range(0, len(batch), 4096):
        batch[at] = 2
    own = [touched(8)]
    say(f"{os.getpid()}")
    while order := os.read(orders, 1):
        if order == b"g":
            own.append(touched(64))
        elif order == b"w":  # copy on write
            for at in range(0, len(dataset), 4096):
                dataset[at] = 3
        elif order == b"e":
            os._exit(0)
        say("done")

dataset = touched(128)
batch = mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
writers = []
for number in range(3):
    read, write = os.pipe()
    if os.fork() == 0:
        for each in writers:
            os.close(each)
        os.close(write)
        work(number, read, batch)
        os._exit(0)
    os.close(read)
    writers.append(write)
say("all")
for line in sys.stdin:
    number, order = line.split()
    os.write(writers[int(number)], order.encode())
"""
"""A rank with 128 MiB that its three workers share by their fork, 32 MiB of shared memory, and 8 MiB in each worker."""


class Family:
    """A real rank with three real workers, and a meter of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        lines = [self._line() for _ in range(4)]
        self.workers = sorted(int(line) for line in lines if line != "all")
        self.clock = FakeClock()
        self.procs = ProcFs()
        self.meter = HostMemoryMeter(self.procs, monotonic_s=self.clock.monotonic_s)
        rank = self.procs.process_at(process.pid)
        assert rank is not None
        self.rank = rank
        self.meter.watch([rank])
        self.meter.look()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def order(self, worker: int, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{worker} {order}\n".encode())
        self._process.stdin.flush()

    def order_and_wait(self, worker: int, order: str) -> None:
        self.order(worker, order)
        assert self._line() == "done"

    def look_again(self, after_s: float = READ_EVERY_S) -> None:
        self.clock.pass_s(after_s)
        self.meter.look()

    def look_twice(self) -> None:
        """As where processes have changed."""
        self.look_again(SCAN_EVERY_S)
        self.look_again(SCAN_EVERY_S)

    def of(self, rank: ProcessId) -> HostMemory | None:
        usage = self.procs.usage(rank)
        return self.meter.of(rank, None if usage is None else usage.anonymous_bytes)

    def memory(self) -> HostMemory:
        memory = self.of(self.rank)
        assert memory is not None
        return memory

    def kernels_account(self) -> int:
        """The sum of what the kernel says of each process, read here and now."""
        total = 0
        for pid in (self.rank.pid, *self.workers):
            with open(f"/proc/{pid}/smaps_rollup") as file:
                text = file.read()
            for part in ("Pss_Anon", "Pss_Shmem"):
                total += kib_field(text, part) or 0
        return total


@pytest.fixture
def family() -> Iterator[Family]:
    command = [sys.executable, "-c", FAMILY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Family(process)
        finally:
            process.kill()


def test_host_memory_counts_pages_shared_by_forks_once(family: Family) -> None:
    held = family.memory().held_bytes
    assert held == pytest.approx(family.kernels_account(), abs=64 * 4096)
    assert 184 * MIB < held < 184 * MIB + 40 * MIB, "128 + 32 + 3 * 8 MiB, and four interpreters that share most"


def test_the_worker_that_grows_is_named_before_the_tree_is_read_again(family: Family) -> None:
    before = family.memory().held_bytes
    family.order_and_wait(1, "g")
    after = family.memory()
    largest_growth = max(after.processes, key=lambda process: process.grown_bytes)
    assert after.held_bytes - before == pytest.approx(64 * MIB, abs=MIB)
    assert (largest_growth.process.pid, largest_growth.name) == (family.workers[1], "DataLoader worker")
    assert largest_growth.grown_bytes == pytest.approx(64 * MIB, abs=MIB)


def test_host_memory_includes_copy_on_write_pages_at_the_next_reading(family: Family) -> None:
    before = family.memory().held_bytes
    family.order_and_wait(0, "w")
    family.look_again()
    assert family.memory().held_bytes - before == pytest.approx(128 * MIB, abs=MIB)
    assert family.memory().held_bytes == pytest.approx(family.kernels_account(), abs=64 * 4096)


def test_a_worker_that_ends_takes_its_own_memory_with_it_and_no_more(family: Family) -> None:
    before = family.memory().held_bytes
    family.order(2, "e")
    while family.procs.process_at(family.workers[2]) is not None:
        pass
    assert family.memory().held_bytes == pytest.approx(before, abs=MIB), "what it shared has gone nowhere"
    family.look_twice()
    assert before - family.memory().held_bytes == pytest.approx(8 * MIB, abs=2 * MIB)


def test_a_rank_below_a_rank_counts_by_itself(family: Family) -> None:
    below = family.procs.process_at(family.workers[0])
    assert below is not None
    family.meter.watch([family.rank, below])
    family.look_twice()
    pids = {process.process.pid for process in family.memory().processes}
    assert pids == {family.rank.pid, *family.workers[1:]}
    own = family.of(below)
    assert own is not None
    assert [process.process for process in own.processes] == [below]


# --- made-up processes


@dataclass
class MadeUp:
    """One process as the meter asks for it."""

    stat: ProcStat
    anonymous_bytes: int
    proportional_bytes: int | None
    readings: int = 0


@dataclass
class MadeUpNode:
    clock: FakeClock = field(default_factory=FakeClock)
    processes: dict[int, MadeUp] = field(default_factory=dict)
    cpu_s: float = 0.0
    cost_s: float = 0.001
    """Of reading one process."""
    scan_cost_s: float = 0.0
    memory: NodeMemory = field(default_factory=lambda: NodeMemory(available_bytes=100 * GIB))

    def __post_init__(self) -> None:
        self.meter = HostMemoryMeter(
            self,
            rooms=CgroupRooms(),
            read_node=lambda: self.memory,
            monotonic_s=self.clock.monotonic_s,
            cpu_s=lambda: self.cpu_s,
        )

    def add(
        self, process: ProcessId, *, parent: int = 1, name: str = "python", held: int | None = GIB, forked: bool = True
    ) -> MadeUp:
        stat = ProcStat(process, name, "S", parent, 1, 1, 1, forked)
        made = self.processes[process.pid] = MadeUp(stat, GIB, held)
        return made

    def pids(self) -> Sequence[int]:
        self.cpu_s += self.scan_cost_s
        return list(self.processes)

    def stat(self, pid: int) -> ProcStat | None:
        return self.processes[pid].stat if pid in self.processes else None

    def _living(self, process: ProcessId) -> MadeUp | None:
        made = self.processes.get(process.pid)
        return made if made is not None and made.stat.process == process else None

    def usage(self, process: ProcessId) -> ProcessUsage | None:
        made = self._living(process)
        return None if made is None else ProcessUsage(made.anonymous_bytes)

    def proportional_bytes(self, process: ProcessId) -> int | None:
        made = self._living(process)
        if made is None:
            return None
        made.readings += 1
        self.cpu_s += self.cost_s
        return made.proportional_bytes

    def cgroup(self, process: ProcessId) -> str:
        return ""

    def of(self, rank: ProcessId) -> HostMemory | None:
        usage = self.usage(rank)
        return self.meter.of(rank, None if usage is None else usage.anonymous_bytes)

    def look(self, after_s: float = SCAN_EVERY_S) -> HostMemory | None:
        self.clock.pass_s(after_s)
        self.meter.look()
        return self.of(RANK)

    def look_twice(self) -> HostMemory | None:
        """As where processes have changed."""
        self.look()
        return self.look()


@pytest.fixture
def node() -> MadeUpNode:
    made = MadeUpNode()
    made.add(RANK, forked=False)
    made.meter.watch([RANK])
    return made


def test_host_memory_is_unknown_before_the_first_reading(node: MadeUpNode) -> None:
    assert node.of(RANK) is None
    assert node.look() == HostMemory(GIB, 100 * GIB, (HostProcess(RANK, "python", GIB, 0),))


def test_growth_of_a_process_leaves_out_its_start(node: MadeUpNode) -> None:
    """A worker that is spawned imports torch, 200 MiB, while the rank that leaks has long done so."""
    worker = node.add(ProcessId(101, 20), parent=100, name="pt_data_worker", held=50 * MIB)
    assert grown_most((node.look() or HostMemory(0)).processes) is None
    rank = node.processes[RANK.pid]
    worker.proportional_bytes = 250 * MIB
    told = grown_most((node.look(after_s=60.0) or HostMemory(0)).processes)
    assert told is not None
    assert told.name == "DataLoader worker", "so far nothing else is known of it"
    node.look(after_s=SETTLED_S)
    rank.proportional_bytes = GIB + 150 * MIB
    told = grown_most((node.look(after_s=READ_EVERY_S) or HostMemory(0)).processes)
    assert told is not None
    assert (told.process, told.grown_bytes) == (RANK, 150 * MIB)


def test_a_pid_that_another_process_took_does_not_count(node: MadeUpNode) -> None:
    node.add(ProcessId(101, 20), parent=100)
    node.look()
    node.add(ProcessId(101, 99), parent=1)
    memory = node.look_twice()
    assert memory is not None
    assert memory.held_bytes == GIB


def test_host_memory_keeps_a_descendant_after_its_parent_process_ended(node: MadeUpNode) -> None:
    node.add(ProcessId(101, 20), parent=100)
    node.add(ProcessId(102, 30), parent=101)
    node.look()
    del node.processes[101]
    node.processes[102].stat = node.processes[102].stat._replace(parent_pid=1)
    memory = node.look_twice()
    assert memory is not None
    assert [process.process.pid for process in memory.processes] == [100, 102]


def test_a_younger_process_is_nobodys_parent(node: MadeUpNode) -> None:
    """The parent ended, and its pid is the rank's now."""
    node.add(ProcessId(90, 5), parent=100)
    memory = node.look()
    assert memory is not None
    assert memory.held_bytes == GIB


def test_readings_take_their_share_of_a_core_and_no_more(node: MadeUpNode) -> None:
    node.cost_s = 0.1
    for pid in range(101, 120):
        node.add(ProcessId(pid, 20), parent=100)
    for _ in range(500):
        node.look()
    assert node.cpu_s <= CPU_BURST_S + 1000 * CPU_SHARE + 20 * node.cost_s
    assert node.cpu_s > 500 * CPU_SHARE


def test_looking_for_children_takes_its_share_of_a_core_too(node: MadeUpNode) -> None:
    node.look()
    assert node.meter.pause_s == SCAN_EVERY_S
    node.scan_cost_s = 0.07
    node.look()
    assert node.meter.pause_s == pytest.approx(0.07 / CPU_SHARE)


def test_a_tree_with_a_new_process_is_read_once_two_looks_found_the_same(node: MadeUpNode) -> None:
    node.look()
    rank = node.processes[RANK.pid]
    node.add(ProcessId(101, 20), parent=100)
    node.look()
    node.add(ProcessId(102, 20), parent=100)
    node.look()
    assert rank.readings == 1, "a DataLoader is starting its workers"
    node.look()
    assert rank.readings == 2


def test_a_tree_that_never_stands_still_is_read_all_the_same(node: MadeUpNode) -> None:
    node.look()
    for number in range(SETTLING_LOOKS + 1):
        node.add(ProcessId(101 + number, 20), parent=100)
        node.look()
    assert node.processes[RANK.pid].readings == 2


def test_a_worker_that_gives_its_memory_back_while_it_ends_is_no_fall_of_what_the_tree_holds(node: MadeUpNode) -> None:
    """For a while it has no memory and is no zombie yet. What it shared is its parent's by then."""
    worker = node.add(ProcessId(101, 20), parent=100, held=GIB // 2)
    node.processes[RANK.pid].proportional_bytes = GIB // 2
    node.look()
    worker.anonymous_bytes, worker.proportional_bytes = 0, None
    memory = node.of(RANK)
    assert memory is not None
    assert memory.held_bytes == GIB
    node.processes[RANK.pid].proportional_bytes = GIB
    memory = node.look(READ_EVERY_S)
    assert memory is not None
    assert memory.held_bytes == GIB


def test_a_reading_during_which_a_worker_ends_does_not_count(node: MadeUpNode) -> None:
    """Its share is gone already, and not yet its parent's."""
    worker = node.add(ProcessId(101, 20), parent=100, held=GIB // 2)
    node.processes[RANK.pid].proportional_bytes = GIB // 2
    node.look()
    worker.anonymous_bytes, worker.proportional_bytes = 0, None
    memory = node.look(READ_EVERY_S)
    assert memory is not None
    assert memory.held_bytes == GIB
    del node.processes[101]
    node.processes[RANK.pid].proportional_bytes = GIB + MIB
    memory = node.look_twice()
    assert memory is not None
    assert memory.held_bytes == GIB + MIB


def test_a_process_that_lives_on_without_memory_does_not_stop_readings(node: MadeUpNode) -> None:
    """Its first thread has ended, others have not."""
    worker = node.add(ProcessId(101, 20), parent=100, held=MIB)
    node.look()
    worker.anonymous_bytes, worker.proportional_bytes = 0, None
    node.processes[RANK.pid].proportional_bytes = 2 * GIB
    for _ in range(2):
        memory = node.look(MAX_ENDING_S)
    assert memory is not None
    assert memory.held_bytes == 2 * GIB


def test_host_memory_of_a_fork_counts_as_its_parents_if_pss_is_unreadable(node: MadeUpNode) -> None:
    node.processes[RANK.pid].proportional_bytes = None
    fork = node.add(ProcessId(101, 20), parent=100, held=None)
    node.add(ProcessId(102, 20), parent=100, held=None, forked=False)
    memory = node.look()
    assert memory is not None
    assert memory.held_bytes == 2 * GIB
    fork.anonymous_bytes += MIB
    memory = node.look(READ_EVERY_S)
    assert memory is not None
    assert memory.held_bytes == 2 * GIB + MIB


def test_names_are_safe_to_print(node: MadeUpNode) -> None:
    node.processes[RANK.pid].stat = node.processes[RANK.pid].stat._replace(name="a\x1b[2Jb")
    memory = node.look()
    assert memory is not None
    assert memory.processes[0].name == "a?[2Jb"


def test_a_rank_that_is_not_watched_any_more_is_forgotten(node: MadeUpNode) -> None:
    node.look()
    node.meter.watch([])
    assert node.look() is None
