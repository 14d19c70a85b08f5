"""What one hostile user costs a node's polls, and whether another's training is followed all the same.

Each attack of docs/security.md is made for real: valid rings, living processes of another uid. Between polls the victim
writes a step; after each poll the agent must show it. Prints a table: processor time of the agent in half a second, for
a poll and for the search beside it (median, worst), its ratio to that with the victim alone, how long the longest poll
took, and how many polls showed the victim's newest step.

    sudo python bench/hostile_polls.py [--polls 60] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from fleet.ring_files import Memory, Ring, identity_of, user_folder

from tidegauge.agent.container_run_dirs.discovery import WALK_EVERY_S
from tidegauge.agent.node_agent import NodeAgent, open_node_agent
from tidegauge.core.ids import ProcessId
from tidegauge.core.ring_layout import MAX_CAPACITY, MAX_DEVICES
from tidegauge.probe.process_facts import process_id
from tidegauge.settings import Settings

VICTIM, ATTACKER = 5001, 6666
GIB = 1 << 30
MEMORY = Memory(20 * GIB, 30 * GIB, 28 * GIB)
DEVICES = [f"GPU-{device:08x}-0000-0000-0000-000000000000" for device in range(MAX_DEVICES)]
SLOTS = 4096
LINGER_S = 5.0
WARM_POLLS = 4
CONTAINER = Path(__file__).with_name("hostile_container.py")

NAMESPACES = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        libc.prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
        libc.unshare(0x20000)  # CLONE_NEWNS
        time.sleep(3600)
print("ready", flush=True)
sys.stdin.read()
"""

BeforePoll = Callable[[], None]


class Figures(NamedTuple):
    """Of one attack."""

    attack: str
    cpu_ms_median: float
    cpu_ms_worst: float
    times_alone: float
    longest_poll_ms: float
    """By the clock."""
    followed: int
    polls: int
    put_off: int
    """``tidegauge_poll_deferred_total`` at the end."""


@contextmanager
def sleepers(uid: int, count: int) -> Iterator[list[ProcessId]]:
    """So many living processes of a user."""
    started = [subprocess.Popen(["sleep", "3600"], user=uid) for _ in range(count)]
    try:
        found = [process_id(one.pid) for one in started]
        yield [process for process in found if process is not None]
    finally:
        for one in started:
            one.kill()
            one.wait()


def rings(folder: Path, processes: Sequence[ProcessId], *, devices: int = 1, capacity: int = SLOTS) -> list[Ring]:
    return [
        Ring(
            folder, process, identity_of("attack", rank, world_size=1 << 12, devices=DEVICES[:devices]),
            capacity=capacity,
        )
        for rank, process in enumerate(processes)
    ]  # fmt: skip


def of_the_dead(run_dir: Path, _: ExitStack) -> BeforePoll:
    folder = user_folder(run_dir, ATTACKER)
    for ring in rings(folder, [ProcessId(4_100_000 + n, 1) for n in range(300)], devices=MAX_DEVICES):
        ring.step(MEMORY)
        ring.close()
    return lambda: None


def of_the_living(run_dir: Path, stack: ExitStack) -> BeforePoll:
    processes = stack.enter_context(sleepers(ATTACKER, 300))
    for ring in rings(user_folder(run_dir, ATTACKER), processes, devices=MAX_DEVICES):
        ring.step(MEMORY)
        ring.close()
    return lambda: None


def rewritten(run_dir: Path, stack: ExitStack) -> BeforePoll:
    written = rings(user_folder(run_dir, ATTACKER), stack.enter_context(sleepers(ATTACKER, 60)))

    def rewrite() -> None:
        for ring in written:
            for _ in range(SLOTS):
                ring.step(MEMORY)

    return rewrite


def of_65536_slots(run_dir: Path, stack: ExitStack) -> BeforePoll:
    written = rings(user_folder(run_dir, ATTACKER), stack.enter_context(sleepers(ATTACKER, 8)), capacity=MAX_CAPACITY)
    for ring in written:
        for _ in range(MAX_CAPACITY):
            ring.step(MEMORY)

    def step() -> None:
        for ring in written:
            ring.step(MEMORY)

    return step


def files(run_dir: Path, _: ExitStack) -> BeforePoll:
    folder = user_folder(run_dir, ATTACKER)
    for number in range(100_000):
        (folder / f"{number}-1.ring").touch()
    for number in range(20_000):
        user_folder(run_dir, 100_000 + number)
    return lambda: None


def folders_that_change(run_dir: Path, _: ExitStack) -> BeforePoll:
    """As one user makes them with a range of uids (``/etc/subuid``)."""
    folders = [user_folder(run_dir, 100_000 + number) for number in range(3000)]

    def change() -> None:
        for folder in folders:
            name = folder / "1-1.ring"
            name.unlink() if name.exists() else name.touch()

    return change


def of_two_uids(run_dir: Path, stack: ExitStack) -> BeforePoll:
    """More than a node's ranks, each of its own process, all of which write."""
    written = [
        ring
        for uid in (ATTACKER, ATTACKER + 1)
        for ring in rings(user_folder(run_dir, uid), stack.enter_context(sleepers(uid, 502)))
    ]

    def step() -> None:
        for ring in written:
            ring.step(MEMORY)

    return step


def replaced(run_dir: Path, stack: ExitStack) -> BeforePoll:
    """By ``rename``, so that each is another file between two polls."""
    folder, spare = user_folder(run_dir, ATTACKER), run_dir / "spare"
    spare.mkdir()
    processes = stack.enter_context(sleepers(ATTACKER, 400))
    for ring in rings(folder, processes, capacity=1024):
        ring.step(MEMORY)
        ring.close()
    names = [path.name for path in folder.iterdir()]
    for name in names:
        shutil.copy2(folder / name, spare / name)
        os.chown(spare / name, ATTACKER, ATTACKER)

    def change() -> None:
        for name in names:
            os.rename(folder / name, spare / "other")
            os.rename(spare / name, folder / name)
            os.rename(spare / "other", spare / name)

    return change


def namespaces(count: int) -> Callable[[Path, ExitStack], BeforePoll]:
    """So many mount namespaces of one user, a process in each."""

    def make(_: Path, stack: ExitStack) -> BeforePoll:
        python = ["python3", "-c", NAMESPACES, str(count)]
        started = stack.enter_context(_talking(["unshare", "--user", "--map-root-user", *python]))
        _hears(started, "ready")
        return lambda: None

    return make


def comes_and_goes(run_dir: Path, _: ExitStack) -> BeforePoll:
    folder = user_folder(run_dir, ATTACKER)
    for ring in rings(folder, [ProcessId(4_100_000 + n, 1) for n in range(300)], devices=MAX_DEVICES):
        ring.step(MEMORY)
        ring.close()
    name = folder / "x"

    def change() -> None:
        name.unlink() if name.exists() else name.touch()

    return change


def containers(count: int, **filled_with: int) -> Callable[[Path, ExitStack], BeforePoll]:
    """So many of one user, each filled as ``hostile_container.py`` is told; all their folders change between polls."""

    def make(run_dir: Path, stack: ExitStack) -> BeforePoll:
        told = [f"--{name}={number}" for name, number in filled_with.items()]
        # The system's Python, and the script's text: the attacker may not read this checkout.
        python = ["python3", "-c", CONTAINER.read_text(), str(run_dir), *told]
        command = ["unshare", "--user", "--map-root-user", "--mount", *python]
        started = [stack.enter_context(_talking(command)) for _ in range(count)]

        def change() -> None:
            for one in started:
                _line(one).write("\n")
            for one in started:
                _hears(one, "changed")

        for one in started:
            _hears(one, "ready")
        return change

    return make


@contextmanager
def _talking(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process of the attacker, ended with the block."""
    one = subprocess.Popen(
        command, user=ATTACKER, env={"PATH": os.defpath}, text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield one
    finally:
        one.kill()
        one.communicate()


def _line(one: subprocess.Popen[str]) -> IO[str]:
    assert one.stdin is not None
    return one.stdin


def _hears(one: subprocess.Popen[str], word: str) -> None:
    assert one.stdout is not None
    if one.stdout.readline().strip() != word:
        raise RuntimeError(f"a hostile container did not come to say {word!r}: may users make namespaces here?")


ALONE = "nobody"
ATTACKS: Mapping[str, Callable[[Path, ExitStack], BeforePoll]] = {
    ALONE: lambda _, __: lambda: None,
    "300 rings of 64 × 4,096 slots, no process": of_the_dead,
    "300 rings of 64 × 4,096 slots, 300 living processes": of_the_living,
    "60 processes, 4,096 new records each between two polls": rewritten,
    "8 processes, rings of 65,536 slots": of_65536_slots,
    "100,000 files, 20,000 folders": files,
    "3,000 folders of as many uids that change": folders_that_change,
    "1,004 rings of two uids, each of a process that writes": of_two_uids,
    "400 rings, each another file between two polls": replaced,
    "a name that comes and goes beside 300 rings": comes_and_goes,
    "2,000 mount namespaces, of containers that do nothing": namespaces(2000),
    "a container of 8,192 mounts and 300 folders": containers(1, mounts=8192, folders=300),
    "40 containers of 300 folders and 60,000 names": containers(40, folders=300, names=200),
    "8 containers of 12,000 mounts": containers(8, mounts=12_000),
}


def measured(attack: str, polls: int, alone_ms: float | None) -> Figures:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place, ExitStack() as stack:
        os.chmod(place, 0o1777)
        run_dir = Path(place)
        [process] = stack.enter_context(sleepers(VICTIM, 1))
        ring = Ring(user_folder(run_dir, VICTIM), process, identity_of("victim", 0, world_size=1))
        agent = open_node_agent(Settings(run_dir=run_dir, linger_s=LINGER_S))
        stack.callback(agent.close)
        agent.start_searching()
        for _ in range(WARM_POLLS):
            ring.step(MEMORY)
            agent.poll()
            agent.search_now()
            time.sleep(0.5)
        before_poll = ATTACKS[attack](run_dir, stack)
        seen_s = time.monotonic() + (1.2 * WALK_EVERY_S if "container" in attack else 2.0)
        while time.monotonic() < seen_s:
            before_poll()
            agent.poll()
            agent.search_now()
            time.sleep(0.5)
        cpu_ms, poll_ms, followed = [], [], 0
        searched_s = _searched_s()
        for _ in range(polls):
            before_poll()
            ring.step(MEMORY)
            before_s, began_s = time.thread_time(), time.monotonic()
            agent.poll()
            poll_ms.append(1e3 * (time.monotonic() - began_s))
            cpu_s = time.thread_time() - before_s
            followed += _step_of(agent, process) == ring.steps
            agent.search_now()
            time.sleep(max(0.0, 0.5 - poll_ms[-1] / 1e3))
            before_s, searched_s = searched_s, _searched_s()
            cpu_ms.append(1e3 * (cpu_s + searched_s - before_s))
        median = statistics.median(cpu_ms)
        put_off = sum(agent.view().poll_deferred.values())
        times_alone = median / (alone_ms or median)
        return Figures(attack, median, max(cpu_ms), times_alone, max(poll_ms), followed, polls, put_off)


def _searched_s() -> float:
    """Processor time of the search so far."""
    [thread] = [one for one in threading.enumerate() if one.name == "tidegauge-search" and one.ident is not None]
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))


def _step_of(agent: NodeAgent, process: ProcessId) -> int | None:
    return next((rank.step for rank in agent.view().ranks if rank.process == process), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--polls", type=int, default=60, help="polls for each attack, at 2 Hz (default: %(default)s)")
    parser.add_argument("--attack", metavar="TEXT", default="", help="only those whose names hold it")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("hostile_polls.py needs root: the attacker is another user")
    alone_ms: float | None = None
    for attack in [name for name in ATTACKS if name == ALONE or args.attack in name]:
        found = measured(attack, args.polls, alone_ms)
        alone_ms = alone_ms or found.cpu_ms_median
        if args.json:
            print(json.dumps(found._asdict()), flush=True)
        else:
            times = f"{found.cpu_ms_median:8.1f} ms {found.cpu_ms_worst:8.1f} ms {found.times_alone:6.1f} x"
            times += f"  longest poll {found.longest_poll_ms:7.1f} ms"
            shown = f"followed {found.followed}/{found.polls}  put off {found.put_off:,}"
            print(f"{found.attack:58} {times}  {shown}", flush=True)


if __name__ == "__main__":
    main()
