"""Starts the probe in a running Python, by PEP 768: ``sys.remote_exec``, Python 3.14 and later.

Nothing is stopped and no code is injected: the interpreter receives the name of a script, and runs it when
it next reaches one of its own safe points. A rank that waits inside a collective reaches one when that returns.

An interpreter of the same release must make the call. That is the process's own, run as its user: whoever runs
a job chooses its interpreter, and root must not run what a user chose.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Optional

from tidegauge.core.ids import ProcessId
from tidegauge.core.text import one_line
from tidegauge.files import replace_file
from tidegauge.launch import remote_script
from tidegauge.osproc.processes import PROC, identity_of, is_alive

# A folder that one other process shares with us for some seconds: a script to it, a word back.
# It is that process's user's, and we may be root: so after it was made, everything in it is done relative to the open
# folder, and nothing is followed.

SCRIPT, OUTCOME = "script.py", "outcome"
DRAFT = ".new"
"""Follows the name of a file that is being written."""
MAX_OUTCOME_BYTES = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class SharedFolder:
    """A folder of mode 0700, its files 0600, owned by ``uid``. A ``with`` removes it, unless after ``leave()``."""

    def __init__(self, uid: int, gid: int) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="tidegauge-attach-", dir="/tmp"))  # where every process can look
        self._owner = None if uid == os.geteuid() else (uid, gid)
        self._uid = uid
        self._left = False
        self._fd = os.open(self.path, _FOLDER)
        if self._owner is not None:
            os.fchown(self._fd, *self._owner)

    def write(self, text: str) -> Path:
        """Write ``text`` as the script, replacing an earlier one; returns its path."""
        replace_file(SCRIPT, text.encode(), dir_fd=self._fd, owner=self._owner)
        return self.path / SCRIPT

    def outcome(self) -> Optional[str]:
        """The outcome that the other process wrote; ``None`` without one."""
        try:
            fd = os.open(OUTCOME, _READ, dir_fd=self._fd)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != self._uid:
                return None
            return os.read(fd, MAX_OUTCOME_BYTES).decode(errors="replace")
        finally:
            os.close(fd)

    def leave(self) -> None:
        """Keep the folder: the other process still knows the name of the script, and removes both when it runs it."""
        self._left = True

    def __enter__(self) -> SharedFolder:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # what its user has put there besides is theirs to remove
            if not self._left:
                for name in (SCRIPT, OUTCOME, OUTCOME + DRAFT):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=self._fd)
                os.rmdir(self.path)
        os.close(self._fd)


FIRST_PYTHON = (3, 14)
MAX_SAID_BYTES = 4096
"""Of what the helper prints: the interpreter is the user's."""
HELPER_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.02
_HELPER = """
import json, sys
try:
    sys.remote_exec(int(sys.argv[1]), sys.argv[2])
    said = None
except BaseException as error:
    said = [type(error).__name__, str(error)[:1000]]
print(json.dumps(said))
"""
_WITHDRAWN = "import os\nos.unlink({script!r})\nos.rmdir({folder!r})\n"
"""In place of a script that nobody waits for any more, for the interpreter still has its name."""


class RemoteTarget(NamedTuple):
    """A process of this machine that sees the same files under the same names as this one."""

    process: ProcessId
    uid: int
    gid: int
    groups: tuple[int, ...]
    python: tuple[int, int]
    environ: Mapping[str, str]
    """What it was started with: its interpreter may need LD_LIBRARY_PATH."""


class NotExecutedError(Exception):
    """The probe was not started. The message is for people."""


def begin_probe(target: RemoteTarget, level: str, *, timeout_s: float, asked: Callable[[], None]) -> str:
    """Start the probe in ``target``; returns its finding (``remote_script.FINDINGS``), perhaps followed by an error.

    ``asked`` is called once the process has the request, before the wait. Raises ``NotExecutedError``.
    """
    package = str(Path(inspect.getfile(remote_script)).resolve().parents[1])
    with SharedFolder(target.uid, target.gid) as folder:
        call = f"begin({package!r}, {level!r}, {str(folder.path / OUTCOME)!r})"
        script = folder.write(f"{inspect.getsource(remote_script)}\n\n{call}\n")
        _tell(target, script)
        asked()
        finding = _wait_for(folder, target.process, timeout_s)
        if finding is not None:
            return one_line(finding)
        if not is_alive(target.process):
            raise NotExecutedError("it has ended")
        folder.write(_WITHDRAWN.format(script=str(script), folder=str(folder.path)))
        folder.leave()
        raise NotExecutedError(
            f"it did not reach a safe point within {timeout_s:g} s, and the request was withdrawn: its main thread is "
            "in a call that does not return (a collective, a long kernel, a file server)"
        )


def _wait_for(folder: SharedFolder, process: ProcessId, timeout_s: float) -> Optional[str]:
    until_s = time.monotonic() + timeout_s
    while (finding := folder.outcome()) is None and time.monotonic() < until_s and is_alive(process):
        time.sleep(LOOK_EVERY_S)
    return finding


def _tell(target: RemoteTarget, script: Path) -> None:
    """Raises ``NotExecutedError`` if the interpreter refuses or cannot be reached."""
    said = _call(target, script, own=False)
    if (
        said is not None
        and said[0] == "PermissionError"
        and os.geteuid() == 0
        and sys.version_info[:2] == target.python
    ):
        said = _call(target, script, own=True)  # Yama may let root do what it forbids the process's own user
    if said is not None:
        raise NotExecutedError(_refusal(*said))


def _call(target: RemoteTarget, script: Path, *, own: bool) -> Optional[tuple[str, str]]:
    """Call ``sys.remote_exec`` in our ``own`` interpreter, or in the process's as its user; returns what it raised."""
    try:
        # Held open before the look at whose it is: whoever has this pid later, this is the interpreter that was meant.
        interpreter = os.open(sys.executable if own else PROC / str(target.process.pid) / "exe", os.O_RDONLY)
    except PermissionError as error:
        return "PermissionError", str(error)
    except OSError as error:
        raise NotExecutedError(f"its interpreter cannot be opened: {error.strerror}") from error
    drop = not own and target.uid != os.geteuid()
    needed = {} if own else {name: value for name, value in target.environ.items() if name == "LD_LIBRARY_PATH"}
    try:
        if identity_of(target.process.pid) != target.process:
            raise NotExecutedError("it has ended")
        path = f"/proc/self/fd/{interpreter}"
        with subprocess.Popen(
            [os.readlink(path), "-I", "-S", "-c", _HELPER, str(target.process.pid), str(script)],
            executable=path, pass_fds=(interpreter,), env=needed, cwd="/", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            user=target.uid if drop else None, group=target.gid if drop else None,
            extra_groups=target.groups if drop else None,
        ) as helper:  # fmt: skip
            return _said_by(helper)
    except OSError as error:
        raise NotExecutedError(f"its interpreter cannot be run: {error.strerror}") from error
    finally:
        os.close(interpreter)


def _said_by(helper: subprocess.Popen[bytes]) -> Optional[tuple[str, str]]:
    assert helper.stdout is not None
    timer = threading.Timer(HELPER_TIMEOUT_S, helper.kill)
    timer.start()
    try:
        data = helper.stdout.read(MAX_SAID_BYTES)
        helper.kill()  # it has said all that is listened to
    finally:
        timer.cancel()
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        raise NotExecutedError("its interpreter does not answer as a Python does") from None
    if said is None:
        return None
    if not isinstance(said, list) or len(said) != 2:
        raise NotExecutedError("its interpreter does not answer as a Python does")
    return one_line(str(said[0])), one_line(str(said[1]))


def _refusal(kind: str, message: str) -> str:
    """The exception of ``sys.remote_exec`` as a message with a next step."""
    if kind == "PermissionError":
        return f"the kernel lets nobody reach into it: {_who_may()}"
    if kind == "ProcessLookupError":
        return "it has ended"
    if kind == "AttributeError":
        return "its Python was built without remote debugging (sys.remote_exec, PEP 768)"
    if "not enabled" in message:
        return (
            "remote debugging is disabled in its Python: PYTHON_DISABLE_REMOTE_DEBUG, -X disable-remote-debug, or a "
            "build without it"
        )
    return f"its Python refuses: {message or kind}"


def _who_may() -> str:
    """The needed permission (ptrace(2): "Ptrace access mode checking"), and the one that is missing here."""
    try:
        scope = (PROC / "sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = "0"
    if scope == "3":
        return "kernel.yama.ptrace_scope is 3, until the next boot"
    if os.geteuid() != 0:
        because = f" (kernel.yama.ptrace_scope is {scope})" if scope != "0" else ""
        return f"it takes root{because}, with an interpreter of the same release"
    return "root needs CAP_SYS_PTRACE for that, which containers usually do not have"
