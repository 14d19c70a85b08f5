"""What users do in a run directory: one who trains as everybody does, and others who wish them ill.

Each says ``ready`` and goes on until its standard input ends. They are real processes of real uids, and have only what
any user of a node has.
"""

from __future__ import annotations

import itertools
import os
import random
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, ProcessId, RankIdentity
from tidegauge.core.jobs.launches import LaunchRecord, LaunchState, encode_launch_record
from tidegauge.core.ring_layout import HEADER_BYTES, MAGIC, RECORD_BYTES
from tidegauge.core.run_dirs import launch_name, socket_name
from tidegauge.core.samples import RecordKind
from tidegauge.probe.process_facts import read_process_facts
from tidegauge.probe.run_files.command_socket import CommandSocket
from tidegauge.probe.run_files.own_user import allowed_peers
from tidegauge.probe.run_files.ring_writer import RingWriter, open_ring
from tidegauge.probe.run_files.run_folder import RunFolder

MIB = 1 << 20
HISTORY = 3000
"""Steps that a rank says it has done when it begins."""
PAUSE_S = float(os.environ.get("ACTOR_PAUSE_S", "0"))
"""Between two acts of those that act as fast as they can: 0 takes a core."""
NAME_BYTES = 31 * MIB


class Rank:
    """The calling process as a rank, by the probe's own code; a hostile one chooses every word."""

    def __init__(self, job_id: str, rank: int, *, leak_bytes: int = 0, world_size: int = 2, **claims: object) -> None:
        self.process = read_process_facts().process
        self._now_ns = time.monotonic_ns() - HISTORY * 10_000_000
        folder, ring, refused = open_ring(os.environ, self.process, device_count=1)
        assert folder is not None, refused
        assert ring is not None, refused
        self.folder: RunFolder = folder
        self.ring: RingWriter = ring
        who = RankIdentity(JobId(job_id), 0, GlobalRank(rank), LocalRank(rank), world_size, socket.gethostname())
        ring.publish(who._replace(**claims))  # type: ignore[arg-type]  # SAFETY: callers name real fields
        ring.reserve(0)
        self._leak_bytes = leak_bytes
        self.steps = 0

    @property
    def name(self) -> str:
        return self.ring.name

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.steps += 1
            allocated = 4096 * MIB + self.steps * self._leak_bytes
            reserved = allocated + 64 * MIB
            figures = (allocated, reserved, allocated, 0, allocated)
            self.ring.append(
                0, (*figures, *figures, *[0] * 6), kind=RecordKind.STEP, steps=self.steps, raw_steps=self.steps
            )


def trains(job_id: str, rank: str, leak_bytes: str = "0") -> None:
    """A job that does what it ought to: a step every 10 ms, and answers on its socket."""
    one = Rank(job_id, int(rank), leak_bytes=int(leak_bytes))
    one.train(5)
    serve(one, step_s=0.01)


def swaps(stolen_ring: str, victims_folder: str) -> None:
    """Lets the names of its ring, its evidence and its whole folder mean something else, as fast as it can."""
    one = Rank("mallory-job", 0)
    one.train(5)
    uid = os.getuid()
    run_dir = os.path.dirname(one.folder.path)
    os.chdir(one.folder.path)
    mine = f"{one.name}.mine"
    os.rename(one.name, mine)
    evidence = one.name.replace(".ring", ".evidence.json")
    with suppress(OSError):
        os.mkfifo("fifo")
    ready(one.process.pid)
    traps: list[Callable[[], None]] = [
        lambda: os.link(mine, one.name),
        lambda: os.symlink(stolen_ring, one.name),
        lambda: os.symlink(victims_folder, one.name),
        lambda: os.link("fifo", one.name),
        lambda: os.mkdir(one.name),
        lambda: os.symlink("/dev/zero", one.name),
        lambda: os.symlink("/proc/self/mem", one.name),
        lambda: os.link(mine, evidence),
        lambda: os.symlink(stolen_ring, evidence),
        lambda: os.symlink("/etc/shadow", evidence),
        lambda: os.link("fifo", evidence),
        lambda: os.link("fifo", one.name.replace(".ring", ".sock")),
        lambda: os.symlink("/dev/log", one.name.replace(".ring", ".sock")),
        lambda: away_and_back(run_dir, str(uid), victims_folder),
    ]
    pick = random.Random(0)
    while not over():
        for name in (one.name, evidence, one.name.replace(".ring", ".sock")):
            with suppress(OSError):
                os.rmdir(name) if os.path.isdir(name) and not os.path.islink(name) else os.unlink(name)
        with suppress(OSError):
            pick.choice(traps)()


def away_and_back(run_dir: str, name: str, victims_folder: str) -> None:
    """Its own folder is a link to the victim's for a moment."""
    path, away = os.path.join(run_dir, name), os.path.join(run_dir, f"{name}-away")
    os.rename(path, away)
    try:
        os.symlink(victims_folder, path)
        os.unlink(path)
    finally:
        os.rename(away, path)


def cuts() -> None:
    """Grows, shrinks and scribbles over its own ring while it is read: a reader that maps it dies of SIGBUS."""
    one = Rank("mallory-job", 0)
    one.train(5)
    path = os.path.join(one.folder.path, one.name)
    with open(path, "rb") as file:
        whole = file.read()
    ready(one.process.pid)
    pick = random.Random(0)
    while not over():
        fd = os.open(path, os.O_RDWR)  # never through the map: that would be our own end
        size = pick.choice((0, 1, 7, 100, HEADER_BYTES, HEADER_BYTES + RECORD_BYTES - 1, len(whole) // 2, 1 << 40))
        with suppress(OSError):
            os.ftruncate(fd, size)
        with suppress(OSError):
            os.pwrite(fd, whole[: pick.choice((8, 64, HEADER_BYTES, len(whole)))], 0)
        with suppress(OSError):
            os.pwrite(fd, pick.randbytes(64), pick.randrange(0, len(whole)))
        os.close(fd)


def floods(files: str, folders: str) -> None:
    """Fills its own folder with names of rings, sparse giants among them, and the run directory with names of users."""
    one = Rank("mallory-job", 0)
    run_dir = os.path.dirname(one.folder.path)
    os.chdir(one.folder.path)
    for number in range(int(files)):
        fd = os.open(f"{100_000 + number}-{number}.ring", os.O_CREAT | os.O_RDWR, 0o600)
        if number % 1000 == 0:
            with suppress(OSError):
                os.pwrite(fd, MAGIC, 0)
                os.ftruncate(fd, 1 << 42)
        os.close(fd)
    for number in range(int(folders)):
        os.mkdir(os.path.join(run_dir, str(500_000 + number)))
    ready(one.process.pid)
    for number in itertools.count():
        if over():
            return
        with suppress(OSError):  # names come and go
            os.rename(f"{100_000 + number % int(files)}-{number % int(files)}.ring", f"{200_000 + number}-1.ring")


def claims(job_id: str, victims_pid: str, rank: str, world_size: str, gpu_uuid: str = "") -> None:
    """A leak that is about to run out, under the name of somebody else's job; and a ``tidegauge run`` that is none."""
    uuids = (DeviceUuid(gpu_uuid),) if gpu_uuid else ()
    one = Rank(
        job_id, int(rank), leak_bytes=8 * MIB, world_size=int(world_size), device_uuids=uuids, job_name="healthy"
    )  # fmt: skip
    forge_launch(one.folder, job_id, int(victims_pid), one.process)
    serve(one, step_s=0.04, most_steps=8000, checkpoint="callback")


def forge_launch(folder: RunFolder, job_id: str, victims_pid: int, own: ProcessId) -> None:
    """Records of keepers: one that names the victim's process as its own, one that says that we are the keeper."""
    with open(f"/proc/{victims_pid}/stat") as file:
        start_ticks = int(file.read().rpartition(")")[2].split()[19])
    for process in (ProcessId(victims_pid, start_ticks), own):
        record = LaunchRecord(
            process=process, job_id=job_id, job_name="healthy", restarts=0, state=LaunchState.RUNNING, requeueable=True,
            exempt=False, gpu_share=None, started_unix_s=time.time(),
        )  # fmt: skip
        folder.write(launch_name(process), encode_launch_record(record))


def pesters(path: str) -> None:
    """Opens a rank's command socket as often as it can: silent, endless, nonsense; as its own user may."""
    _crowd(path, socket.AF_UNIX, socket.SOCK_STREAM)


def pesters_opener(path: str) -> None:
    """The same of the opener's socket."""
    _crowd(path, socket.AF_UNIX, socket.SOCK_SEQPACKET)


def pesters_port(host: str, port: str) -> None:
    """The same of a TCP port."""
    _crowd((host, int(port)), socket.AF_INET, socket.SOCK_STREAM)


def _crowd(address: str | tuple[str, int], family: int, kind: int) -> None:
    ready(os.getpid())
    kept: list[socket.socket] = []
    pick = random.Random(0)
    while not over():
        one = socket.socket(family, kind | socket.SOCK_NONBLOCK)
        with suppress(OSError):
            with suppress(BlockingIOError):
                one.connect(address)
            one.send(pick.choice((b"", b"x" * 65536, b"{" * 60000, b"\xff\n" * 8000, b'{"command": "ping"}\n' * 400)))
        kept.append(one)
        if len(kept) > 200:
            kept.pop(0).close()


def answers(how: str) -> None:
    """A rank whose command socket is a trap for whoever asks it something."""
    one = Rank("mallory-job", 0)
    one.train(5)
    os.chdir(one.folder.path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(socket_name(one.process))
    listener.listen(64)
    ready(one.process.pid)
    kept: list[socket.socket] = []
    while not over():
        listener.settimeout(0.2)
        with suppress(OSError):
            connection, _ = listener.accept()
            kept.append(connection)
            connection.setblocking(False)
            if how == "hangs up":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                kept.pop().close()
        for connection in kept:
            with suppress(OSError):
                connection.send({"drips": b"{", "endless": b"x" * 65536, "deep": b"[" * 30_000}.get(how, b""))


def stops() -> None:
    """A rank with a socket that nobody will ever answer on: its process is stopped."""
    one = Rank("mallory-job", 0)
    one.train(5)
    os.chdir(one.folder.path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(socket_name(one.process))
    listener.listen(64)
    ready(one.process.pid)
    os.kill(os.getpid(), signal.SIGSTOP)


def boasts() -> None:
    """Evidence of a rank whose name takes 31 MiB, written again and again."""
    one = Rank("mallory-job", 0)
    one.train(5)
    os.chdir(one.folder.path)
    evidence = one.name.replace(".ring", ".evidence.json")
    ready(one.process.pid)
    while not over():
        with open("new", "wb") as file:
            file.write(b'{"version": 1, "job_name": "' + b"x" * NAME_BYTES + b'"}')
        os.rename("new", evidence)
        time.sleep(1.0)


def fills(folder: str, most_bytes: str) -> None:
    """Takes what is free in a folder that everybody may write to, up to a bound, for as long as it lives."""
    path = os.path.join(folder, "mallory")
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.unlink(path)
    with suppress(OSError):
        for _ in range(int(most_bytes) // MIB):
            os.write(fd, bytes(MIB))
    ready(os.getpid())
    while not over():
        time.sleep(0.1)


def serve(one: Rank, *, step_s: float, most_steps: int = sys.maxsize, **says: object) -> None:
    """Until the test has ended us: answers on the rank's socket what it ``says``, and does a step every ``step_s``."""
    commands = CommandSocket(
        one.folder, socket_name(one.process), lambda _: {"ok": True, "step": one.steps, **says},
        allowed_uids=allowed_peers(),
    )  # fmt: skip
    ready(one.process.pid)
    while True:
        with selectors.DefaultSelector() as waiting:
            for descriptor in [0, *commands.descriptors()]:
                waiting.register(descriptor, selectors.EVENT_READ)
            found = [key.fd for key, _ in waiting.select(step_s)]
        if 0 in found:
            return
        for descriptor in found:
            commands.serve(descriptor, now_s=time.monotonic())
        if one.steps < most_steps:
            one.train()


def ready(*words: object) -> None:
    print("ready", *words, flush=True)


def over() -> bool:
    """Whether the test has ended us."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(0, selectors.EVENT_READ)
        return bool(waiting.select(PAUSE_S))


_ALL = (trains, swaps, cuts, floods, claims, pesters, pesters_opener, pesters_port, stops, boasts, fills, answers)
ACTORS: Mapping[str, Callable[..., None]] = {one.__name__: one for one in _ALL}


if __name__ == "__main__":
    ACTORS[sys.argv[1]](*sys.argv[2:])
