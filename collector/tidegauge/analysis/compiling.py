"""Compiles the allocator's model in the background, so that no answer waits for it, or first where that is quicker.

As a program (``python -m tidegauge.analysis.compiling``) it compiles, once at a time, and leaves the code to others.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tidegauge.core.allocator import readiness

EVENTS_WORTH_COMPILING = 1_500_000
"""Replayed in all: plain Python then takes as long as compiling does, half a minute."""
_MODEL = "tidegauge.core.allocator.compiled"


def prepare_model(events: int, say: Callable[[str], object] = str) -> None:
    """Called before the model is imported, with how many events will be replayed in all.

    Compiles the model now where that is quicker than plain Python, which ``say`` is told; else in the background, for
    later commands, and this process runs it as plain Python.
    """
    if readiness.is_ready():
        return
    if events < EVENTS_WORTH_COMPILING or _MODEL in sys.modules:
        _compile_in_background()
        return
    say("compiling the allocator model, once for this installation: half a minute")
    compile_model()


def compile_model() -> None:
    """Compile all of the model in this process, for later ones."""
    readiness.wait_for_compiling()
    from tidegauge.core.allocator.replay import replay  # after the line above, which decides how it is imported
    from tidegauge.core.allocator.trace import Trace

    one = Trace(
        action=array("B", [0]), address=array("Q", [1]), size_bytes=array("Q", [512]), stream=array("H", [0]),
        time_us=array("q"), pool=array("H"), stack=array("i"),
    )  # fmt: skip
    replay(one)
    readiness.mark_ready()


def _compile_in_background() -> None:
    if not _is_writable(readiness.folder()):
        return
    with suppress(OSError):
        subprocess.Popen(  # it outlives this command, and says nothing
            [sys.executable, "-m", __name__],
            cwd="/",  # `-m` would import what lies in the user's directory
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _main() -> None:
    os.nice(19)
    with (readiness.folder() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another command's is at it
        if not readiness.is_ready():
            compile_model()


if __name__ == "__main__":
    _main()
