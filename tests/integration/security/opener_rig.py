"""An opener of root's for tests, and code that runs as another user beside it."""

from __future__ import annotations

import ctypes
import encodings.idna  # noqa: F401 - as tidegauge.agent.nvml
import errno
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import grpc  # noqa: F401 - as tidegauge.agent.nvml

import tidegauge.agent.nvml  # noqa: F401 - not later: the interpreter may lie where the agent's user cannot look
from tidegauge.agent.opening.remote import OpenerAwayError, OpenerConnection, RemoteFolder, RemoteOpener
from tidegauge.agent.opening.safe_files import DIRECTORY, UnsafeFileError
from tidegauge.agent.opening.wire import Kind, OpenerRequest

ROOT = Path(__file__).parents[3]
SERVICE = 4300
"""The agent's user, who has no right over anybody's files."""
WITHIN_S = 120.0
PR_SET_DUMPABLE = 4

FUSE = Path(__file__).parents[1] / "silent_fuse.py"
REFUSED = "refused"
"""By the opener's rules: EINVAL."""
UUID = "00000000-1111-2222-3333-444444444444"
KUBELET = f"""
import sys
from pathlib import Path
from kube_standins.devices import Holding
from kube_standins.pod_resources import serve_pod_resources
serve_pod_resources(Path(sys.argv[1]), lambda: [Holding("team-a", "llm-0", "train", ("GPU-{UUID}",))])
print("serves", flush=True)
sys.stdin.read()
"""
Result = TypeVar("Result")


class RunningOpener:
    """The process, and where it listens."""

    def __init__(
        self, run_dirs: Sequence[Path], *, user: int = SERVICE, before: Sequence[str] = (), folder: str = ""
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tg-opener-", dir="/dev/shm"))
        self.folder.chmod(0o755)
        self.socket = self.folder / folder / "socket"
        self.kubelet = self.folder / "kubelet/kubelet.sock"
        self.kubelet.parent.mkdir(mode=0o700)
        self._command = [
            *before, sys.executable, "-m", "tidegauge.opener", "--user", str(user), "--socket", str(self.socket),
            "--kubelet", str(self.kubelet), *(word for path in run_dirs for word in ("--run-dir", str(path))),
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT / 'collector'}:{ROOT / 'tests'}"}
        self.process = subprocess.Popen(self._command, env=environ, cwd="/", stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said = self.process.stderr.readline()
        assert "opens files in" in said, said + self.process.stderr.read()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextmanager
def running_opener(
    *run_dirs: Path, user: int = SERVICE, before: Sequence[str] = (), folder: str = ""
) -> Iterator[RunningOpener]:
    """``folder``: below the opener's, for it to make."""
    one = RunningOpener(run_dirs, user=user, before=before, folder=folder)
    try:
        yield one
    finally:
        one.close()


def run_as(uid: int, work: Callable[[], Result]) -> Result:
    """The result of ``work`` in a child that is ``uid`` and no member of any other group. Fails as ``work`` does."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _work_in_child(uid, work, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said, "the child ended without a word"
    failed, result = pickle.loads(said)
    assert failed is None, failed
    return result  # type: ignore[no-any-return]  # SAFETY: made by ``work``


def until(seen: Callable[[], Result], what: str) -> Result:
    """The first true result. Fails where there is none in time."""
    end_s = time.monotonic() + WITHIN_S
    while not (found := seen()):
        assert time.monotonic() < end_s, f"{what}: not within {WITHIN_S:g} s"
        time.sleep(0.05)
    return found


def _work_in_child(uid: int, work: Callable[[], object], write: int) -> NoReturn:
    said: tuple[str | None, object]
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        assert libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0
        said = None, work()
    except BaseException:
        said = traceback.format_exc(), None
    with os.fdopen(write, "wb") as pipe:
        pickle.dump(said, pipe)
    os._exit(0)


def held(opener: RemoteOpener, folder: Path) -> RemoteFolder:
    run_dir = os.open(folder.parent, DIRECTORY)
    try:
        return opener.host_folder(run_dir, folder.parent, int(folder.name))
    finally:
        os.close(run_dir)


def outcome(opener: RunningOpener, request: OpenerRequest, *, after: OpenerRequest | None = None) -> str:
    """What a request gets on a connection of its own: ``got`` a descriptor, ``done``, or why not."""
    with closing(OpenerConnection(opener.socket)) as connection:
        if after is not None:
            connection.ask(after)
        try:
            _, descriptor = connection.ask(request)
        except UnsafeFileError as error:
            return error.reason
        except OSError as error:
            return REFUSED if error.errno == errno.EINVAL else type(error).__name__
        return "got" if descriptor is not None else "done"


def gets_an_answer(opener: RunningOpener) -> bool:
    try:
        OpenerConnection(opener.socket).ask(OpenerRequest(Kind.RUN_DIRS))
    except OpenerAwayError:
        return False
    return True


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[Callable[[], object]]:
    """``work`` beside the block; at its end, what gives its result."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield future.result
