"""Who is notified of what, when and by whom, while a part of the service or of its surroundings is dead for minutes.

A real head with one node (`tidegauge up`), Prometheus and Alertmanager as `deploy/observability/*.sh` start them, with
the shipped rules and times, a receiver of the site's own for alerts about the service, and a dead man's switch that
expects a ping a minute and waits for five. Stand-ins: Slack, the mail server, Grafana, whoever is on call, the GPUs.
With each part that dies a job starts to leak, so that people have to be notified. Prints a table in Markdown
(the one in docs/alerts.md). Needs Prometheus, Alertmanager and the rig (`make rig`).

    python bench/killed_for_ten_minutes.py [--minutes 10] [--only head notifier slack alertmanager grafana]

Ten minutes of each, and up to seven of recovery, take an hour and a half.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

from fakegpu.rig import Rig  # noqa: E402
from fakes.fake_grafana import TOKEN, FakeGrafana, Reply, grafana_server  # noqa: E402
from fakes.fake_slack import FakeSlack, Fault  # noqa: E402
from fakes.smtp_server import FakeSmtp  # noqa: E402
from integration.alert_receiver import AlertReceiver, alert_receiver  # noqa: E402
from integration.closed_loop_site import Site  # noqa: E402
from integration.observability_scripts import brought_up  # noqa: E402
from integration.prometheus_server import PrometheusServer  # noqa: E402
from integration.server_process import free_port  # noqa: E402
from integration.service import Service, eventually  # noqa: E402

T = TypeVar("T")

CHANNEL, OWNER = "#gpu-memory", "ada@example.org"
POLICY = """
version: 1
mode: act
rules:
  - {name: everything, ladder: [{action: notify}]}
"""
GRACE_S = 300.0
"""For which the dead man's switch waits for a ping."""
QUIET_S, RECOVERY_S = 60.0, 420.0
"""After the part is back: it is over once nothing has happened for so long and no alert is left, at the latest then."""
LOOK_S = 1.0
ALL_SCRAPED = 'count(count by (component) (up{job="tidegauge"} == 1)) == 3'
"""Prometheus knows the coordinator, the node's agent and the notifier: it cannot miss a part that it never saw."""


class SlackThatDies(FakeSlack):
    """Answers 503 while it is dead."""

    is_dead = False

    def next_fault(self, method: str) -> Fault | None:
        return Fault(503) if self.is_dead else super().next_fault(method)


@dataclass
class Event:
    """Somebody was notified."""

    after_s: float
    """Since the kill."""
    who: str
    what: str


@dataclass
class Outage:
    """What happened around one kill."""

    name: str
    minutes: float
    during: list[Event] = field(default_factory=list)
    afterwards: list[Event] = field(default_factory=list)
    """``after_s`` counts from the moment at which the part was back."""


class Town:
    """The stack, and everybody who is notified."""

    def __init__(
        self, folder: Path, site: Site, slack: SlackThatDies, smtp: FakeSmtp, grafana: FakeGrafana,
        on_call: AlertReceiver, switch: AlertReceiver,
    ) -> None:  # fmt: skip
        self.site, self.slack, self.grafana = site, slack, grafana
        self._folder, self._smtp, self._on_call, self._switch = folder, smtp, on_call, switch
        self._seen: dict[str, int] = {}
        self._firing: set[tuple[str, str]] = set()
        self._switch_has_told = False
        self.alertmanager: contextlib.AbstractContextManager[str] | None = None
        self.start_alertmanager: Callable[[], contextlib.AbstractContextManager[str]]

    def news(self) -> Iterator[tuple[str, str]]:
        """Who was notified of what since the last look."""
        for one in self._new("on-call", self._on_call.notified):
            key = (one.name, one.annotations["summary"])
            if one.status == "firing" and key not in self._firing:
                self._firing.add(key)
                yield "on-call receiver", key[1]
            elif one.status == "resolved" and key in self._firing:
                self._firing.discard(key)
                yield "on-call receiver", f"resolved: {key[1]}"
        for message in self._new("slack", self.slack.messages):
            who = "operators' channel" if message.channel == self.slack.channels[CHANNEL] else "owner, Slack"
            if message.thread_ts is None:
                yield who, message.words.strip().splitlines()[0]
        for mail in self._new("mail", self._smtp.delivered):
            yield "owner, mail", str(mail.mail["Subject"])
        for number in self._new("grafana", sorted(self.grafana.annotations)):
            first, _, _ = self.grafana.annotations[number]["text"].partition("<br>")
            yield "dashboards", f"annotation: {re.sub('<[^>]*>', '', first)}"
        pings = self._switch.notified
        is_silent = bool(pings) and time.monotonic() - pings[-1].at_s > GRACE_S
        if is_silent != self._switch_has_told:
            self._switch_has_told = is_silent
            yield "dead man's switch", "no ping for 5 minutes" if is_silent else "pings again"

    def is_calm(self) -> bool:
        return not self._firing and not self._switch_has_told

    def _new(self, name: str, things: list[T]) -> list[T]:
        seen = self._seen.get(name, 0)
        self._seen[name] = len(things)
        return things[seen:]


def kill_head(town: Town) -> None:
    town.site.service.kill()


def start_head(town: Town) -> None:
    """On a machine under load Ray may not start in time; a service manager would try again, too."""

    def is_up() -> bool:
        try:
            return town.site.service.call("up").code == 0
        except subprocess.TimeoutExpired:
            return False

    eventually(is_up, "the head is up", within_s=900)


def hold_notifier(town: Town) -> None:
    """A killed one is back within two seconds: it is held, and so is one that replaces it."""
    for pid in town.site.service.actors("NotifierActor"):
        os.kill(pid, signal.SIGSTOP)


def let_notifier_go(town: Town) -> None:
    for pid in town.site.service.actors("NotifierActor"):
        os.kill(pid, signal.SIGCONT)


def kill_alertmanager(town: Town) -> None:
    assert town.alertmanager is not None
    town.alertmanager.__exit__(None, None, None)


def start_alertmanager(town: Town) -> None:
    town.alertmanager = town.start_alertmanager()
    town.alertmanager.__enter__()


def set_slack(is_dead: bool) -> Callable[[Town], None]:
    return lambda town: setattr(town.slack, "is_dead", is_dead)


def set_grafana(is_dead: bool) -> Callable[[Town], None]:
    reply = Reply(503, "no upstream") if is_dead else None
    return lambda town: setattr(town.grafana, "instead", lambda _: reply)


KILLS: Mapping[str, tuple[Callable[[Town], None], Callable[[Town], None]]] = {
    "head": (kill_head, start_head),
    "notifier": (hold_notifier, let_notifier_go),
    "Slack": (set_slack(True), set_slack(False)),
    "Alertmanager": (kill_alertmanager, start_alertmanager),
    "Grafana": (set_grafana(True), set_grafana(False)),
}


def killed(town: Town, name: str, minutes: float) -> Outage:
    """One part dies, a job begins to leak, the part comes back."""
    kill, revive = KILLS[name]
    outage = Outage(name, minutes)
    list(town.news())
    until = Path(tempfile.mkdtemp()) / "end"
    began_s = time.monotonic()
    kill(town)
    with town.site.job(
        f"leaky-{name.lower()}", "--leak-rank", "1", "--until", str(until), "--pause-seconds", "0.1", "--no-callback",
        steps=1, run_flags=(),
    ):  # fmt: skip
        while (after_s := time.monotonic() - began_s) < 60 * minutes:
            if name == "notifier":
                hold_notifier(town)
            outage.during += [Event(after_s, who, what) for who, what in town.news()]
            time.sleep(LOOK_S)
        revive(town)
        back_s = last_s = time.monotonic()
        while (after_s := time.monotonic() - back_s) < RECOVERY_S:
            told = [Event(after_s, who, what) for who, what in town.news()]
            outage.afterwards += told
            if told:
                last_s = time.monotonic()
            if town.is_calm() and time.monotonic() - last_s > QUIET_S:
                break
            time.sleep(LOOK_S)
        until.touch()
    return outage


@contextlib.contextmanager
def running_town(folder: Path) -> Iterator[Town]:
    rig = Rig()
    if reason := rig.available():
        sys.exit(f"no rig: {reason}")
    environ = rig.environ(devices=2, total_bytes=80 << 30, state=folder / "gpus")
    service = Service(environ)
    notify_port, api_port, alertmanager_port = free_port(), free_port(), free_port()
    slack = SlackThatDies()
    with (
        slack,
        FakeSmtp() as smtp,
        grafana_server(role="Editor") as grafana,
        alert_receiver() as on_call,
        alert_receiver() as switch,
    ):
        slack.add_user(OWNER)
        (folder / "users.yaml").write_text(f"root: {OWNER}\n")
        for name, text in (("slack-token", slack.token), ("grafana-token", TOKEN)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o600)
        service.environ |= {
            "TIDEGAUGE_API_PORT": str(api_port),
            "TIDEGAUGE_ALERTMANAGER_URL": f"http://127.0.0.1:{alertmanager_port}",
            "TIDEGAUGE_NOTIFY_PORT": str(notify_port),
            "TIDEGAUGE_SLACK_API_URL": slack.api_url,
            "TIDEGAUGE_SLACK_TOKEN_FILE": str(folder / "slack-token"),
            "TIDEGAUGE_SLACK_CHANNEL": CHANNEL,
            "TIDEGAUGE_SLACK_USERS_FILE": str(folder / "users.yaml"),
            "TIDEGAUGE_GRAFANA_URL": grafana.url,
            "TIDEGAUGE_GRAFANA_TOKEN_FILE": str(folder / "grafana-token"),
            "TIDEGAUGE_MAIL_SERVER": f"127.0.0.1:{smtp.port}",
            "TIDEGAUGE_MAIL_FROM": "tidegauge@example.org",
            "TIDEGAUGE_MAIL_DOMAIN": "example.org",
        }
        site = Site(service, str(rig.python), environ, folder)
        (folder / "policy.yaml").write_text(POLICY)
        town = Town(folder, site, slack, smtp, grafana, on_call, switch)
        town.start_alertmanager = lambda: brought_up(
            "alertmanager.sh", folder / "alertmanager", "--receiver", f"127.0.0.1:{notify_port}",
            "--service-receiver", str(on_call.receiver_file(folder / "on-call.yml")),
            "--watchdog-receiver", str(switch.receiver_file(folder / "switch.yml", send_resolved=False)),
            port=alertmanager_port,
        )  # fmt: skip
        (folder / "alertmanager").mkdir()
        (folder / "prometheus").mkdir()
        try:
            start_head(town)
            start_alertmanager(town)
            with brought_up(
                "prometheus.sh", folder / "prometheus", "--coordinator", f"127.0.0.1:{api_port}",
                "--alertmanager", f"127.0.0.1:{alertmanager_port}",
            ) as prometheus_url:  # fmt: skip
                PrometheusServer(prometheus_url, 0).wait_for(ALL_SCRAPED, within_s=300)
                eventually(lambda: switch.notified, "the first ping of the dead man's switch", within_s=300)
                yield town
        finally:
            if town.alertmanager is not None:
                kill_alertmanager(town)
            service.close()


def minutes_and_seconds(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def table(outages: list[Outage]) -> str:
    lines = ["| killed | notified while it is dead, after m:ss | notified once it is back, after m:ss |",
             "| --- | --- | --- |"]  # fmt: skip
    lines += [f"| {one.name} | {_told(one.during)} | {_told(one.afterwards)} |" for one in outages]
    return "\n".join(lines)


def _told(events: list[Event]) -> str:
    said = [f"{minutes_and_seconds(one.after_s)} **{one.who}**: {one.what}" for one in events]
    return "<br>".join(text.replace("|", "\\|") for text in said) or "nobody"


def main() -> None:
    names = {name.lower(): name for name in KILLS}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="for which each part is dead (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", choices=names, default=list(names), help="parts to kill (default: all)")
    parser.add_argument("--json", type=Path, help="file for all events")
    args = parser.parse_args()
    outages: list[Outage] = []
    with tempfile.TemporaryDirectory(prefix="killed-") as folder, running_town(Path(folder)) as town:
        for name in args.only:
            outages.append(killed(town, names[name], args.minutes))
            print(table(outages[-1:]), flush=True)
            if args.json:
                kept = [{**vars(one), "during": [vars(event) for event in one.during],
                         "afterwards": [vars(event) for event in one.afterwards]} for one in outages]  # fmt: skip
                args.json.write_text(json.dumps(kept, indent=1))
    print(table(outages))


if __name__ == "__main__":
    main()
