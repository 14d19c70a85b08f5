"""Values between coordinator and notifier: whether one is configured, its status, and outcomes of notifications. No
I/O."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidegauge.core.incidents.actions import Decision
from tidegauge.core.units import format_duration
from tidegauge.settings import Settings

SLACK_APP_TOKEN = "TIDEGAUGE_SLACK_APP_TOKEN"
SLACK_TOKEN, GRAFANA_TOKEN, NOTIFY_TOKEN = (f"TIDEGAUGE_{name}_TOKEN" for name in ("SLACK", "GRAFANA", "NOTIFY"))
MAIL_PASSWORD = "TIDEGAUGE_MAIL_PASSWORD"
"""Variables of the environment that may hold what the files of the same names hold."""
SILENT_AFTER_S = 60.0
"""The notifier speaks every ten seconds; a restart takes two."""


@dataclass(frozen=True)
class OwnerNotified:
    """The outcome of notifying an owner."""

    where: str | None = None
    """For people: "as a direct message on Slack and by mail"; ``None``: the owner was not told."""
    problem: str = ""
    retry_after_s: float | None = None
    """It may work later; ``None`` with a problem: it will not."""


Tell = Callable[[Decision], OwnerNotified]


class TellingBoard:
    """The notifier's latest status report. Thread-safe."""

    def __init__(self, *, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._said: Mapping[str, str] = {}
        self._said_s: float | None = None

    def expect(self) -> None:
        """A notifier is configured, and will report."""
        with self._lock:
            self._said_s = self._monotonic_s()
            self._said = {"notifier": "starting"}

    def say(self, standing: Mapping[str, str]) -> None:
        """Take a status report: "ok" or the problem, by receiver."""
        with self._lock:
            self._said, self._said_s = dict(standing), self._monotonic_s()

    def read(self) -> Mapping[str, str]:
        """The latest report; empty where no notifier is configured."""
        with self._lock:
            if self._said_s is None:
                return {}
            silent_s = self._monotonic_s() - self._said_s
            if silent_s > SILENT_AFTER_S:
                return {"notifier": f"no report for {format_duration(silent_s)}; see notifier.log on the head"}
            return self._said


def is_notifier_wanted(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Whether the settings name any receiver of notifications."""
    has_grafana = settings.grafana_token_file is not None or bool(environ.get(GRAFANA_TOKEN))
    annotates = settings.grafana_url is not None and has_grafana
    return tells_owners(settings, environ) or settings.alertmanager_url is not None or annotates


def tells_owners(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Whether the notifier can reach owners, by Slack or mail."""
    has_slack = settings.slack_token_file is not None or bool(environ.get(SLACK_TOKEN))
    return has_slack or settings.mail_server is not None
