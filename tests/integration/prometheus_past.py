"""A real Prometheus that holds hours of a made-up fleet, with the recorded series, asked about the past."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet_history import write_history
from integration.prometheus_server import prometheus_binary, running_prometheus
from tidegauge_exporter.rules.files import rule_files
from tidegauge_exporter.rules.values import Addresses

_CONFIG = "global: {scrape_interval: 15s}\n"


@dataclass(frozen=True)
class Past:
    """The stretch of time that is held, and how to ask about it."""

    url: str
    ends_unix_s: int
    range_s: int
    step_s: int = 30

    @property
    def begins_unix_s(self) -> int:
        return self.ends_unix_s - self.range_s

    def at_the_end(self, promql: str) -> list[dict[str, Any]]:
        """The result of an instant query: a list of ``{"metric": {...}, "value": [unix_s, text]}``.

        This and the others raise ``AssertionError`` with Prometheus' own words if it does not understand the question.
        """
        result: list[dict[str, Any]] = self._asked("query", query=promql, time=str(self.ends_unix_s))["result"]
        return result

    def over_the_range(self, promql: str) -> list[dict[str, Any]]:
        """The result of a range query: a list of ``{"metric": {...}, "values": [[unix_s, text], ...]}``."""
        result: list[dict[str, Any]] = self._asked("query_range", query=promql, step=str(self.step_s), **self._range())[
            "result"
        ]
        return result

    def label_values(self, selector: str, label: str) -> list[str]:
        """Values of the label among the series that the selector matches in the range."""
        values: list[str] = self._asked(f"label/{label}/values", **{"match[]": selector}, **self._range())
        return values

    def _range(self) -> dict[str, str]:
        return {"start": str(self.begins_unix_s), "end": str(self.ends_unix_s)}

    def _asked(self, name: str, **parameters: str) -> Any:
        address = f"{self.url}/api/v1/{name}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=120) as reply:
                told: dict[str, Any] = json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                told = json.load(error)
        assert told["status"] == "success", f"{parameters}: {told}"
        return told["data"]


def cannot_be_had() -> str | None:
    """Why there can be no such Prometheus on this machine, or ``None``."""
    found = prometheus_binary() is not None and shutil.which("promtool") is not None
    return None if found else "prometheus and promtool are not installed"


@contextmanager
def prometheus_with_a_past(
    folder: Path, *, jobs: int, ranks_per_job: int, hours: int, ends_unix_s: int
) -> Iterator[Past]:
    """``folder`` is an existing empty one. The recorded series are computed by promtool from the shipped rules."""
    history, blocks, rules = folder / "history.om", folder / "tsdb", folder / "recording.yml"
    write_history(history, jobs=jobs, ranks_per_job=ranks_per_job, hours=hours, period_s=30, end_unix_s=ends_unix_s)
    _promtool("create-blocks-from", "openmetrics", "-q", str(history), str(blocks))
    rules.write_text(rule_files(Addresses())["tidegauge-recording.yml"], encoding="utf-8")
    begins_unix_s = ends_unix_s - hours * 3600
    with running_prometheus(folder, _CONFIG) as server:
        _promtool(
            "create-blocks-from", "rules", f"--url={server.url}", f"--output-dir={blocks}",
            f"--start={begins_unix_s}", f"--end={ends_unix_s}", str(rules),
        )  # fmt: skip
    # Blocks are looked for when it starts.
    with running_prometheus(folder, _CONFIG) as server:
        yield Past(server.url, ends_unix_s, hours * 3600)


def _promtool(*arguments: str) -> None:
    told = subprocess.run(["promtool", "tsdb", *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
