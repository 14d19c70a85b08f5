"""Starts actors of these tests as users of this machine, and a real node agent beside them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from tidegauge.agent.node_agent import NodeAgent, open_node_agent
from tidegauge.core.views import RankView
from tidegauge.settings import Settings

ROOT = Path(__file__).parents[3]
AS_USER = Path(__file__).with_name("as_user.py")
ADA, MALLORY = 4100, 4200
"""The one who trains, and the one who wishes ill; neither has a login."""
WITHIN_S = 120.0


class Actor:
    """A process of some user."""

    def __init__(self, uid: int, actor: str, *arguments: object, run_dir: Path) -> None:
        environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT / 'collector'}:{ROOT / 'tests'}",
            "TIDEGAUGE_RUN_DIR": str(run_dir),
        }
        self.popen = subprocess.Popen(
            [sys.executable, AS_USER, str(uid), actor, *map(str, arguments)],
            env=environ, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.popen.stdout is not None
        said = self.popen.stdout.readline().split()
        if said[:1] != ["ready"]:
            self.close()
            raise AssertionError(f"{actor} did not come up")
        self.pid = int(said[1])

    @property
    def lives(self) -> bool:
        return self.popen.poll() is None

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout):
            assert stream is not None
            stream.close()


class Machine:
    """A node with a run directory that everybody may write to, users on it, and an agent of root's."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        root = Path(tempfile.mkdtemp(prefix="tg-sec-", dir="/dev/shm"))
        cleanup.callback(shutil.rmtree, root, ignore_errors=True)
        root.chmod(0o755)
        self.run_dir = root / "run"
        self.run_dir.mkdir()
        self.run_dir.chmod(0o1777)
        self.state = root / "state"
        self.settings = Settings(run_dir=self.run_dir, state_dir=self.state, linger_s=0.0, slurm="off")
        self.agent = self.new_agent()

    def new_agent(self) -> NodeAgent:
        return self._cleanup.enter_context(closing(open_node_agent(self.settings)))

    def act(self, uid: int, actor: str, *arguments: object) -> Actor:
        return self._cleanup.enter_context(closing(Actor(uid, actor, *arguments, run_dir=self.run_dir)))

    def poll(self) -> Mapping[int, RankView]:
        """One poll, and the ranks that it shows, by pid. Fails where the poll does not end."""
        thread = threading.Thread(target=self.agent.poll, daemon=True)
        thread.start()
        thread.join(WITHIN_S)
        assert not thread.is_alive(), "the agent hangs"
        return {view.process.pid: view for view in self.agent.view().ranks}

    def poll_until(self, seen: Callable[[Mapping[int, RankView]], bool], what: str) -> Mapping[int, RankView]:
        until_s = time.monotonic() + WITHIN_S
        while not seen(found := self.poll()):
            assert time.monotonic() < until_s, f"{what}: not within {WITHIN_S:g} s; {self.agent.view()}"
            time.sleep(0.05)
        return found

    @property
    def skipped(self) -> dict[str, int]:
        return {reason: count for reason, count in self.agent.view().rings_skipped.items() if count}


@contextmanager
def machine() -> Iterator[Machine]:
    with ExitStack() as cleanup:
        yield Machine(cleanup)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def private_bytes() -> int:
    """Of this process: what its agent takes."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Private_Dirty")
