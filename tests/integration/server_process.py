"""What tests do with any server that they start: a free port, waiting until it is ready, ending it."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

READY_WITHIN_S = 100.0
FIRST_PORT = 20_000
"""Ray's workers listen below it."""
_GIVEN_AWAY = Path("/proc/sys/net/ipv4/ip_local_port_range")
_choice = random.SystemRandom()


def free_port() -> int:
    """A loopback port that nobody listens on at this moment, and that the kernel gives to nobody who asks for just any:
    until a server of ours listens there, Ray and whoever connects ask for dozens.
    """
    first_given_away = int(_GIVEN_AWAY.read_text().split()[0])
    tried = _choice.sample(range(FIRST_PORT, first_given_away), 50) if first_given_away > FIRST_PORT + 1000 else []
    for port in [*tried, 0]:
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return int(listener.getsockname()[1])
    raise AssertionError("no port is free")


@contextmanager
def running_server(command: Sequence[str | Path], url: str, log_path: Path) -> Iterator[int]:
    """The pid of a server, from ready until the block ends; what it says goes into ``log_path``."""
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        wait_until_ready(process, url, log_path)
        yield process.pid
    finally:
        end(process)


def wait_until_ready(process: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
    """Asks ``url/-/ready`` until it answers. Raises ``AssertionError`` with the end of its log if it ends, or takes
    longer than ``READY_WITHIN_S``.
    """
    deadline_s = time.monotonic() + READY_WITHIN_S
    while True:
        log_end = log_path.read_text(errors="replace")[-2000:]
        assert process.poll() is None, f"{log_path.stem} ended with {process.returncode}: {log_end}"
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                return
        except OSError:
            assert time.monotonic() < deadline_s, f"{log_path.stem} was not ready within {READY_WITHIN_S} s: {log_end}"
            time.sleep(0.02)


def end(process: subprocess.Popen[bytes]) -> None:
    """Asks it to end, and does not ask again after 20 s."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=60)
