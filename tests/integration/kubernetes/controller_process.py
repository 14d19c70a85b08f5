"""The controller as a real process, and what it says of itself."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from integration.server_process import free_port

MODULE = "tidegauge_scheduler_hooks.kubernetes.controller"
READY_WITHIN_S = 100.0
"""Two cores import the client and list some kinds; other tests run beside it."""


class ControllerProcess:
    """One replica."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log_path: Path) -> None:
        self.process = process
        self._port = port
        self._log_path = log_path

    def page(self, name: str) -> tuple[int, str]:
        """Status and text; raises ``OSError`` while nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{name}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float | None:
        """``tidegauge_controller_NAME`` with these labels; ``None`` where there is no such sample."""
        families = text_string_to_metric_families(self.page("metrics")[1])
        samples = [sample for family in families for sample in family.samples]
        wanted = (f"tidegauge_controller_{name}", labels)
        return next((sample.value for sample in samples if (sample.name, sample.labels) == wanted), None)

    @property
    def leads(self) -> bool:
        return self.metric("leader") == 1

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        """Raises ``AssertionError`` with its log if it is not, in time."""
        deadline_s = time.monotonic() + READY_WITHIN_S
        while not self.is_ready():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.log[-2000:]}"
            assert time.monotonic() < deadline_s, f"not ready in time: {self.log[-2000:]}"
            time.sleep(0.05)  # between two looks

    def is_ready(self) -> bool:
        try:
            return self.page("readyz")[0] == 200
        except OSError:
            return False


@contextmanager
def running_controller(folder: Path, arguments: Sequence[str]) -> Iterator[ControllerProcess]:
    """A replica, ready, until the block ends; killed if it has not ended by itself then."""
    port = free_port()
    log_path = folder / f"controller-{port}.log"
    command = [sys.executable, "-m", MODULE, "--health-host=127.0.0.1", f"--health-port={port}", *arguments]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    controller = ControllerProcess(process, port, log_path)
    try:
        controller.wait_until_ready()
        yield controller
    finally:
        process.kill()
        process.wait(timeout=30)


def run_to_its_end(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Of a process that is not to start."""
    return subprocess.run(
        [sys.executable, "-m", MODULE, *arguments], capture_output=True, text=True, timeout=100, check=False
    )
