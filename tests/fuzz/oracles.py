"""What has to hold whatever the input is: bounded processor time and memory, no file, no socket, no code.

``Finding`` is no ``Exception``, so that no ``except Exception`` of a reader hides it.
"""

from __future__ import annotations

import codecs
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fuzz.target import Target

FORBIDDEN = (
    "open", "socket.", "subprocess.", "os.", "exec", "import", "pickle.find_class", "marshal.", "ctypes.", "shutil.",
    "tempfile.", "urllib.", "code.", "builtins.input", "webbrowser.", "ftplib.", "smtplib.", "sqlite3.", "mmap.",
)  # fmt: skip
"""Beginnings of audit events (docs.python.org/3/library/audit_events.html) that no reader of bytes needs."""
_CODECS = (
    "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "latin-1", "ascii",
    "unicode-escape", "raw-unicode-escape", "idna", "punycode",
)  # fmt: skip
"""Those that ``json.loads`` of bytes and the unpickler choose by what they meet; Python imports them on the way."""
_PAGE_BYTES = resource.getpagesize()


class Finding(BaseException):
    """Something that must hold did not."""


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Finding(otherwise)


class Guard:
    """Arms the interpreter around one input. One of it at a time: audit hooks cannot be taken back."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._armed = False
        self._seen: list[str] = []
        if target.sandboxed:
            sys.addaudithook(self._audit)

    def __call__(self, data: bytes) -> None:
        """Give ``data`` to the target. Raises what it raises, and ``Finding`` where a bound was missed."""
        self._seen.clear()
        began_s = time.process_time()
        with _time_limit(self._target.most_s):
            self._armed = True
            try:
                self._target.one(data)
            finally:
                self._armed = False
        # Once more: the reader may have caught what the hook raised.
        require(not self._seen, f"while it was read: {', '.join(self._seen[:3])}")
        took_s = time.process_time() - began_s
        require(took_s <= self._target.most_s, f"{took_s:.1f} s of processor time for {len(data):,} bytes")

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._armed and event.startswith(FORBIDDEN) and event not in self._target.allowed | _of_typing(event):
            said = f"{event}{tuple(str(one)[:80] for one in arguments[:2])}"
            self._seen.append(said)
            raise Finding(f"while it was read: {said}")


def _of_typing(event: str) -> frozenset[str]:
    """``typing.get_type_hints`` runs our own annotations the first time that ``core.wire`` meets a class."""
    caller = sys._getframe(2) if event == "exec" else None
    return frozenset({"exec"} if caller is not None and caller.f_globals.get("__name__") == "typing" else ())


@contextmanager
def _time_limit(most_s: float) -> Iterator[None]:
    """Ends what takes longer, by the processor's clock: a busy machine makes no finding."""

    def too_long(_signal: int, frame: FrameType | None) -> None:
        where = "" if frame is None else f", at {frame.f_code.co_filename}:{frame.f_lineno}"
        raise Finding(f"not done after {most_s:g} s of processor time{where}")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, most_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def limit_memory(most_new_bytes: int) -> None:
    """From here on the process gets so much more address space, and then ``MemoryError``, which is a finding."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        now = int(statm.read().split()[0]) * _PAGE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (now + most_new_bytes, resource.RLIM_INFINITY))


def prepared(target: Target) -> Callable[[bytes], None]:
    """``target`` under guard, once everything that it imports late is imported and memory is bounded."""
    for name in _CODECS:
        codecs.lookup(name)
    for seed in target.seeds():
        target.one(seed)
    guard = Guard(target)
    limit_memory(target.most_new_bytes)
    return guard
