"""A real Prometheus for tests: a child process on a free loopback port, its data in a temporary folder."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.server_process import free_port, running_server


@dataclass(frozen=True)
class PrometheusServer:
    """A Prometheus that is ready to be asked."""

    url: str
    pid: int

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The result of an instant query: a list of ``{"metric": {label: value}, "value": [unix_s, text]}``.

        Raises ``AssertionError`` with Prometheus' own words if it does not understand the query.
        """
        answer = self._api("query", query=promql)
        assert answer["status"] == "success", f"{promql}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def targets(self) -> list[dict[str, Any]]:
        """Active targets as ``/api/v1/targets`` tells them: ``scrapeUrl``, ``health``, ``lastError``, ``labels`` ..."""
        active: list[dict[str, Any]] = self._api("targets", state="active")["data"]["activeTargets"]
        return active

    def wait_for(
        self, promql: str, accept: Callable[[list[dict[str, Any]]], bool] = bool, *, within_s: float = 90.0
    ) -> list[dict[str, Any]]:
        """Asks until ``accept`` likes the result (by default: until there is one) and returns it.

        Raises ``AssertionError`` with the last result and the state of all targets after ``within_s`` seconds.
        """
        deadline_s = time.monotonic() + within_s
        while True:
            result = self.query(promql)
            if accept(result):
                return result
            if time.monotonic() > deadline_s:
                told = [(target["scrapeUrl"], target["health"], target["lastError"]) for target in self.targets()]
                raise AssertionError(f"{promql} gave {result} for {within_s} s; targets: {told}")
            time.sleep(0.05)  # between two looks; nothing is decided by it

    def _api(self, name: str, **parameters: str) -> dict[str, Any]:
        address = f"{self.url}/api/v1/{name}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                told: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                told = json.load(error)
        return told


def prometheus_binary() -> str | None:
    """Where Prometheus is installed (Debian's package puts it on the path), or ``None``."""
    return shutil.which("prometheus")


@contextmanager
def running_prometheus(folder: Path, config: str, *flags: str) -> Iterator[PrometheusServer]:
    """A Prometheus with this configuration text, from ready until the block ends.

    ``folder`` is an existing empty one for its data, configuration and log. Prometheus takes up to 6 s before
    the first scrape of a new target, whatever the intervals say: start one per module, not per test. Raises
    ``AssertionError`` with the end of its log if it does not become ready.
    """
    binary = prometheus_binary()
    assert binary is not None, "prometheus is not installed"
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
        *flags,
    ]
    with running_server(command, url, folder / "prometheus.log") as pid:
        yield PrometheusServer(url, pid)
