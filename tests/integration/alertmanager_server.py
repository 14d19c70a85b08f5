"""A real Alertmanager for tests: a child process on a free loopback port, its data in a temporary folder."""

from __future__ import annotations

import json
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from integration.server_process import free_port, running_server


@dataclass(frozen=True)
class AlertmanagerServer:
    """An Alertmanager that is ready to be told."""

    url: str
    pid: int

    def post_alert(
        self, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None, *, lasts_s: float = 600.0
    ) -> None:
        """As our notifier posts an incident."""
        ends = datetime.now(timezone.utc) + timedelta(seconds=lasts_s)
        alert = {"labels": dict(labels), "annotations": dict(annotations or {}), "endsAt": ends.isoformat()}
        self._api("alerts", [alert])

    def silence(self, matchers: Mapping[str, str], *, lasts_s: float = 600.0) -> str:
        """Mute everything with these labels; returns the silence's id."""
        now = datetime.now(timezone.utc)
        made = self._api(
            "silences",
            {
                "matchers": [
                    {"name": name, "value": value, "isRegex": False, "isEqual": True}
                    for name, value in matchers.items()
                ],
                "startsAt": now.isoformat(),
                "endsAt": (now + timedelta(seconds=lasts_s)).isoformat(),
                "createdBy": "a test",
                "comment": "a test",
            },
        )
        return str(made["silenceID"])

    def alerts(self, **labels: str) -> list[dict[str, Any]]:
        """The alerts with these labels, muted ones included: ``labels``, ``annotations``, ``status`` (``state``,
        ``inhibitedBy``, ``silencedBy``)."""
        filters = [("filter", f'{name}="{value}"') for name, value in labels.items()]
        found: list[dict[str, Any]] = self._api(f"alerts?{urllib.parse.urlencode(filters)}")
        return found

    def wait_for(
        self, accept: Callable[[list[dict[str, Any]]], bool], *, within_s: float = 90.0, **labels: str
    ) -> list[dict[str, Any]]:
        """Looks at ``alerts`` until ``accept`` likes them; ``AssertionError`` with the last ones after ``within_s``."""
        deadline_s = time.monotonic() + within_s
        while not accept(found := self.alerts(**labels)):
            assert time.monotonic() < deadline_s, f"after {within_s} s Alertmanager has {found}"
            time.sleep(0.05)  # between two looks; nothing is decided by it
        return found

    def _api(self, path: str, body: Sequence[object] | Mapping[str, object] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/api/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def alertmanager_binary() -> str | None:
    """Where Alertmanager is installed: by Debian's name, then by its own; ``None``: it is not."""
    return shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")


@contextmanager
def running_alertmanager(folder: Path, config: Path, *flags: str) -> Iterator[AlertmanagerServer]:
    """An Alertmanager with this configuration file, from ready until the block ends.

    ``folder`` is an existing one for its data and log. Raises ``AssertionError`` with the end of its log if it does
    not become ready.
    """
    binary = alertmanager_binary()
    assert binary is not None, "alertmanager is not installed"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        binary,
        f"--config.file={config}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=warn",
        *flags,
    ]
    with running_server(command, url, folder / "alertmanager.log") as pid:
        yield AlertmanagerServer(url, pid)
