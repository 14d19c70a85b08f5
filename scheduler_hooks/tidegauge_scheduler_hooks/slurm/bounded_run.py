"""Run one command to its end with limits on time and output, so that nothing of it is left behind."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_CHUNK_BYTES = 1 << 16


class Finished(NamedTuple):
    """How a command ended."""

    returncode: int
    """Negative: the signal that ended it."""
    stdout: bytes
    stderr: bytes


class OverrunError(Exception):
    """It took too long or said too much, and was killed with all that it had started. The message says which."""


def run_bounded(argv: Sequence[bytes], *, environ: Mapping[str, str], timeout_s: float, most_bytes: int) -> Finished:
    """Run ``argv`` without a shell and without input, in a session of its own; ``most_bytes`` holds for each output.

    Raises ``OverrunError``, and ``OSError`` if it cannot be started.
    """
    deadline_s = time.monotonic() + timeout_s
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(environ),
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            stdout, stderr = _read(process, deadline_s, most_bytes)
            return Finished(process.wait(max(0.0, deadline_s - time.monotonic())), stdout, stderr)
        except subprocess.TimeoutExpired as error:
            raise OverrunError(f"no answer within {timeout_s:g} s") from error
        finally:
            # A leader that was not waited for keeps its number, so that the group is its own.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


def _read(process: subprocess.Popen[bytes], deadline_s: float, most_bytes: int) -> tuple[bytes, bytes]:
    """Both outputs, until everybody who holds them has closed them. Raises ``TimeoutExpired``, ``OverrunError``."""
    assert process.stdout is not None
    assert process.stderr is not None
    outputs = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for descriptor in outputs:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(process.args, 0)
            for key, _ in selector.select(left_s):
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fd)
                outputs[key.fd] += chunk
                if len(outputs[key.fd]) > most_bytes:
                    raise OverrunError(f"the answer is longer than {most_bytes} bytes")
    stdout, stderr = outputs.values()
    return bytes(stdout), bytes(stderr)
