"""A runbook as values. Texts are plain, with code between backquotes and links to sections as in Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

CONTACT: Final = "your cluster's admins"
"""Whom a runbook says to call where the site has not said (setting ``contact``). The copy that Prometheus serves has
this text, which ``prometheus.sh --contact`` replaces."""


class Step(NamedTuple):
    """A command for a shell on the head, with names in capitals to fill in."""

    command: str
    shows: str = ""
    """What it prints while the alert fires, as an example. Empty: nothing, or too much to show."""


class Logs(Enum):
    """Whose logs tell more. The value is a heading's end."""

    HEAD = "of the head"
    NODE = "of the node's agent"
    JOB = "of the job and of its node's kernel"
    PROMETHEUS = "of Prometheus and Alertmanager"


SYSTEMD: Final = "systemd"
KUBERNETES: Final = "Kubernetes"
BY_HAND: Final = "tidegauge up, by hand"

LOG_COMMANDS: Final[dict[Logs, tuple[tuple[str, tuple[str, ...]], ...]]] = {
    Logs.HEAD: (
        (SYSTEMD, ("journalctl -u tidegauge-head --since -1h", "tail -n 50 /var/lib/tidegauge/logs/coordinator.log")),
        (
            KUBERNETES,
            (
                "kubectl -n NAMESPACE logs statefulset/tidegauge-head --tail=50",
                "kubectl -n NAMESPACE exec tidegauge-head-0 -- "
                "tail -n 50 /var/lib/tidegauge/state/logs/coordinator.log",
            ),
        ),
        (BY_HAND, ("tail -n 50 ~/.local/state/tidegauge/logs/coordinator.log",)),
    ),
    Logs.NODE: (
        (
            SYSTEMD,
            (
                "ssh HOST journalctl -u tidegauge-agent --since -1h",
                "ssh HOST tail -n 50 /var/lib/tidegauge-agent/logs/agent.log",
            ),
        ),
        (
            KUBERNETES,
            (
                "kubectl -n NAMESPACE get pods -o wide --field-selector spec.nodeName=HOST",
                "kubectl -n NAMESPACE logs POD --tail=50",
                "kubectl -n NAMESPACE exec POD -- tail -n 50 /var/lib/tidegauge/state/logs/agent.log",
            ),
        ),
        (BY_HAND, ("ssh HOST tail -n 50 '~/.local/state/tidegauge/logs/agent.log'",)),
    ),
    Logs.JOB: (
        ("Slurm", ("scontrol show job JOB | grep StdOut", "ssh HOST 'dmesg -T | grep -iE \"oom|xid\"'")),
        (
            KUBERNETES,
            ("kubectl -n NAMESPACE logs POD --tail=50", "kubectl get events -A --field-selector type=Warning"),
        ),
        ("tidegauge run", ("ssh HOST 'dmesg -T | grep -iE \"oom|xid\"'",)),
    ),
    Logs.PROMETHEUS: (
        (SYSTEMD, ("journalctl -u prometheus -u prometheus-alertmanager --since -1h",)),
        (KUBERNETES, ("kubectl get pods -A -l 'app.kubernetes.io/name in (prometheus, alertmanager)'",)),
        ("prometheus.sh and alertmanager.sh", ("df -h ~/.local/state/tidegauge",)),
    ),
}
"""For each way of installing, what shows the logs or leads to them. A job under ``tidegauge run`` and the two scripts
write where they were started."""


@dataclass(frozen=True)
class RunbookEntry:
    """The meaning of one alert, and the advice for the person who gets it."""

    alert: str
    means: str
    affects: str
    first_look: str
    """What the steps show."""
    steps: tuple[Step, ...]
    what_to_do: str
    logs: Logs
    escalate: str
    when_to_silence: str
    silence_by: tuple[str, ...] | None
    """Labels beside the alert's name that a silence should have; ``None``: it is never silenced."""

    @property
    def silence(self) -> tuple[Step, ...]:
        """The command for two hours of silence, if there may be any."""
        if self.silence_by is None:
            return ()
        matchers = " ".join([f"alertname={self.alert}", *(f"{label}={label.upper()}" for label in self.silence_by)])
        command = (
            f"amtool --alertmanager.url=http://ALERTMANAGER:9093 silence add --duration=2h --comment='WHY' {matchers}"
        )
        return (Step(command),)
