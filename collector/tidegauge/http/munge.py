"""Runs MUNGE's ``unmunge``, as the only module: a credential in, the user who made it out (unmunge(1), munge(7)).

A command and not libmunge, as for Slurm: nothing of a foreign library in the coordinator. munged keeps a record of what
it decoded, so that a credential counts once.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tidegauge.http.access import Refusal
from tidegauge.http.passwords import TryLimit

PROGRAM = "unmunge"
TIMEOUT_S = 5.0
"""Of a decoding, which takes milliseconds; munged on a machine that swaps takes longer."""
MAX_CREDENTIAL_CHARS = 1024
"""One without a payload has about 150."""
MAX_ANSWER_BYTES = 4096
MAX_AT_ONCE = 8
PEER_BURST, PEER_EVERY_S, ALL_BURST, ALL_EVERY_S = 20, 0.2, 100, 0.02
"""Each decoding is a process of some 3 ms: at most a sixth of a core over all addresses."""
_CREDENTIAL = re.compile(r"MUNGE:[A-Za-z0-9+/]+={0,2}:")
_LINE = re.compile(r"([A-Z_]+):[ \t]+(-?\d+)", re.MULTILINE)
_KEYS = "STATUS,UID,LENGTH"

_REPLAYED, _EXPIRED, _REWOUND, _UNAUTHORIZED = 17, 15, 16, 18
_REFUSED: Mapping[int, str] = {
    _EXPIRED: "this MUNGE credential has expired: make a new one with `munge -n`",
    _REWOUND: "this MUNGE credential was made in the future, as the clock of this service's head has it: the clocks of "
    "your machine and of the head differ",
    _REPLAYED: "this MUNGE credential was used before, and each counts once: make a new one with `munge -n`",
    _UNAUTHORIZED: "this MUNGE credential was made for another user or group (`munge -u` or `-g`): make one with "
    "`munge -n`",
}  # fmt: skip
"""By the exit status, which is that of munge_decode(3) (munge.h)."""
_INVALID = range(8, 15)
"""Bad credential, version, cipher, MAC, compression, realm; invalid."""
INVALID = (
    "this is no MUNGE credential of this cluster (another key, or a part of it is missing): make one with `munge -n` "
    "on a machine of this cluster, and give all of it, from MUNGE: to the last colon"
)
HAS_PAYLOAD = "this MUNGE credential carries data, as those of other programs do: make one with `munge -n`"
UNAVAILABLE = "MUNGE does not answer on this service's head: try again, or log in by another way"
BUSY = "too many MUNGE credentials at once: try again in some seconds"


class MungeUnavailableError(Exception):
    """The credential could not be looked at."""


class MungeRefusedError(Exception):
    """The credential does not count; the message says why and what to do."""


class MungeUser(NamedTuple):
    """Who made a credential."""

    uid: int
    name: str


class Unmunge:
    """``unmunge`` of ``PATH``, asking the munged at ``socket`` (``None``: munge's default). Thread-safe."""

    def __init__(self, socket: Path | None, *, program: str = PROGRAM, timeout_s: float = TIMEOUT_S) -> None:
        self._command = [program, "--numeric", "--output=/dev/null", f"--keys={_KEYS}"]
        self._command += [] if socket is None else [f"--socket={socket}"]
        self._timeout_s = timeout_s

    def uid_of(self, credential: str) -> int:
        """The uid of whoever made it. Raises ``MungeRefusedError`` and ``MungeUnavailableError``."""
        status, answer = self._run(credential)
        found = {key: int(value) for key, value in _LINE.findall(answer)}
        if status in _REFUSED:
            raise MungeRefusedError(_REFUSED[status])
        if status in _INVALID:
            raise MungeRefusedError(INVALID)
        if status != 0 or found.get("STATUS") != 0 or found.get("UID", -1) < 0:
            raise MungeUnavailableError(f"unmunge ended with {status}")
        if found.get("LENGTH") != 0:
            raise MungeRefusedError(HAS_PAYLOAD)
        return found["UID"]

    def _run(self, credential: str) -> tuple[int, str]:
        """Exit status and output. Raises ``MungeUnavailableError``."""
        environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
            )
        except OSError as error:
            raise MungeUnavailableError(f"unmunge cannot be run: {error.strerror}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        watchdog = threading.Timer(self._timeout_s, end)
        watchdog.daemon = True
        watchdog.start()
        answer = b""
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(credential.encode("ascii") + b"\n")
                process.stdin.flush()
            with suppress(BrokenPipeError):
                process.stdin.close()
            answer = process.stdout.read(MAX_ANSWER_BYTES + 1)
        finally:
            process.stdout.close()
            if len(answer) > MAX_ANSWER_BYTES:
                process.kill()
            status = process.wait()
            watchdog.cancel()
        if late.is_set() or len(answer) > MAX_ANSWER_BYTES:
            raise MungeUnavailableError(f"no usable answer of unmunge within {self._timeout_s:g} s")
        return status, answer.decode("ascii", "replace")


class MungeLogin:
    """Who made a credential, within limits on how many are looked at. Thread-safe."""

    def __init__(
        self,
        uid_of: Callable[[str], int],
        *,
        name_of: Callable[[int], str | None] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``uid_of``: as ``Unmunge.uid_of``; ``name_of``: the user database (default: this machine's)."""
        self._uid_of = uid_of
        self.name_of = name_of or _user_name
        self._monotonic_s = monotonic_s
        self._tries = TryLimit(
            peer_burst=PEER_BURST, peer_every_s=PEER_EVERY_S, all_burst=ALL_BURST, all_every_s=ALL_EVERY_S,
            now_s=monotonic_s(),
        )  # fmt: skip
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_AT_ONCE)

    def user(self, credential: str, peer: str) -> MungeUser | Refusal:
        if len(credential) > MAX_CREDENTIAL_CHARS or not _CREDENTIAL.fullmatch(credential):
            return Refusal(401, INVALID)
        with self._lock:
            may_try = self._tries.take(peer, self._monotonic_s())
        if not may_try or not self._slots.acquire(blocking=False):
            return Refusal(429, BUSY, (("Retry-After", "5"),))
        try:
            uid = self._uid_of(credential)
        except MungeRefusedError as error:
            return Refusal(401, str(error))
        except MungeUnavailableError:
            return Refusal(503, UNAVAILABLE)
        finally:
            self._slots.release()
        name = self.name_of(uid)
        if name is None:
            return Refusal(
                403, f"uid {uid} has no name on this service's head: an admin has to make that user known there"
            )
        return MungeUser(uid, name)


def _user_name(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None
