"""Builds the notifier from plain values, once in its own process on the head.

A part that cannot be built (a missing extra, an invalid address, an unusable token) is left out, with its reason in the
log and in ``NotifyService.status``; the others work.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidegauge.core.persons.pseudonyms import Pseudonyms
from tidegauge.http.access import OPEN_DOOR, Door
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import AlertGroup
from tidegauge_exporter.metrics.notifications import ClickFigures, NotifierFigures, notifier_metrics
from tidegauge_exporter.notify.alertmanager import AlertmanagerSink
from tidegauge_exporter.notify.deliveries import Deliveries
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal, DeliveryJournalError
from tidegauge_exporter.notify.notifier import Notifier, NotifierStatus, PartStatus, Sink, SinkFigures
from tidegauge_exporter.notify.owner import OwnerNotifier, OwnerWay
from tidegauge_exporter.notify.ports import ActDesk, Chat, MessageFormat, PlotDrawer, StoryFeed
from tidegauge_exporter.notify.pseudonyms import PseudonymSink
from tidegauge_exporter.notify.receiver import Receiver
from tidegauge_exporter.notify.threads import SLACK
from tidegauge_exporter.slack import messages
from tidegauge_exporter.slack.sink import SlackSink

if TYPE_CHECKING:
    from tidegauge_exporter.slack.actions import SlackActions
    from tidegauge_exporter.slack.client import SlackChat

log = logging.getLogger(__name__)

Part = TypeVar("Part")
PLOTS = "plots"
ACTIONS = "slack actions"


@dataclass(frozen=True)
class NotifyConfig:
    """The settings of the same names, with tokens in place of their files."""

    cluster: str
    state_dir: Path
    """The existing folder with the journal, ``notified.jsonl``."""
    links: Links
    alertmanager_url: str | None = None
    listen_host: str = "127.0.0.1"
    notify_port: int = 0
    notify_token: str | None = field(default=None, repr=False)
    slack_token: str | None = field(default=None, repr=False)
    slack_app_token: str | None = field(default=None, repr=False)
    """Of Socket Mode: messages have buttons with it."""
    slack_channel: str | None = None
    slack_users_file: Path | None = None
    slack_email_domain: str | None = None
    slack_api_url: str = "https://slack.com/api/"
    mail_server: str | None = None
    mail_from: str | None = None
    mail_domain: str | None = None
    mail_user: str | None = None
    mail_password: str | None = field(default=None, repr=False)
    grafana_url: str | None = None
    grafana_token: str | None = field(default=None, repr=False)
    unusable: Mapping[str, str] = field(default_factory=dict)
    """Why the token of a receiver that is configured cannot be used, by its name."""
    door: Door = OPEN_DOOR
    """TLS and headers of ``/alerts``."""
    pseudonyms: Pseudonyms | None = field(default=None, repr=False)
    """Stand for users' names where everybody reads; owners' own messages have names."""


class NotifyService:
    """The notifier with its parts. ``start`` once, ``stop`` at the end; ``status`` from any thread."""

    def __init__(
        self,
        notifier: Notifier,
        journal: DeliveryJournal,
        *,
        owners: tuple[OwnerNotifier, ...],
        receiver: Receiver,
        missing: tuple[PartStatus, ...],
        wall_s: Callable[[], float],
        actions: SlackActions | None = None,
    ) -> None:
        self._actions = actions
        self.owners = owners
        self._notifier = notifier
        self._journal = journal
        self._receiver = receiver
        self._missing = missing
        self._wall_s = wall_s

    @property
    def port(self) -> int | None:
        """The port of Alertmanager's webhook and of ``/metrics``; ``None`` before ``start``, or if it is taken."""
        return self._receiver.port if self._receiver.listens else None

    def start(self) -> None:
        """Start all parts. If the port for Alertmanager is taken, ``status`` says so; Slack gets incidents directly."""
        try:
            self._receiver.start()
        except OSError as error:
            self._missing += (
                _problem("alerts", f"the port for Alertmanager and /metrics cannot be had: {error}", self._wall_s),
            )
        self._notifier.start()
        if self._actions is not None:
            self._actions.start()

    def stop(self) -> bool:
        """End all parts. False: a receiver hangs, and the journal stays in use; call again later."""
        self._receiver.stop()
        clicks_are_over = self._actions is None or self._actions.stop()
        if not self._notifier.stop() or not clicks_are_over:
            return False
        self._journal.close()
        return True

    def status(self) -> NotifierStatus:
        """The states of the parts, with those that could not be built, and the journal if it cannot be written."""
        status, trouble = self._notifier.status(), self._journal.problem
        journal = () if trouble is None else (PartStatus("notebook", trouble, self._wall_s()),)
        clicks = () if self._actions is None else (self._actions.status(),)
        return status._replace(sinks=(*status.sinks, *clicks, *self._missing, *journal))


def open_notifier(
    config: NotifyConfig, feed: StoryFeed, desk: ActDesk | None = None, *, wall_s: Callable[[], float] = time.time
) -> NotifyService:
    """Build the notifier; without a ``desk`` messages have no buttons. Raises ``DeliveryJournalError`` if another one
    uses the state directory."""
    journal = DeliveryJournal(config.state_dir / "notified.jsonl", wall_s=wall_s)
    builder = _Builder(config, journal, wall_s)
    alertmanager = builder.build("alertmanager", config.alertmanager_url, builder.alertmanager)
    chat = builder.build(SLACK, config.slack_token, builder.chat, extra="slack")
    mail = builder.build("mail", config.mail_server, builder.mail)
    actions = None
    if chat is not None and desk is not None:
        make = functools.partial(builder.actions, chat=chat, desk=desk)
        actions = builder.build(ACTIONS, config.slack_app_token, make, extra="slack")
    draws = PLOTS if chat is not None or mail is not None else None
    draw = builder.build(PLOTS, draws, builder.draw, extra="slack")
    slack = None
    if chat is not None and config.slack_channel:
        slack = builder.slack(chat, draw, config.slack_channel, alertmanager)
    ways: list[OwnerWay] = [] if chat is None else [builder.slack_way(chat, draw)]
    ways += [] if mail is None else [mail(draw)]
    owners = tuple(OwnerNotifier(way, journal, wall_s=wall_s) for way in ways)
    has_grafana = config.grafana_url if config.grafana_token else None
    grafana = builder.build("grafana", has_grafana, builder.grafana, extra="grafana")
    sinks: list[Sink] = [sink for sink in (alertmanager, slack, *owners, grafana) if sink is not None]
    if config.pseudonyms is not None:
        names = config.pseudonyms
        sinks = [sink if isinstance(sink, OwnerNotifier) else PseudonymSink(sink, names) for sink in sinks]
    notifier, missing = Notifier(feed, sinks, wall_s=wall_s), tuple(builder.missing)
    receiver = builder.receiver(None if slack is None else slack.take_group, notifier, missing, actions)
    builder.listens = lambda: receiver.listens
    return NotifyService(
        notifier, journal, owners=owners, receiver=receiver, missing=missing, wall_s=wall_s, actions=actions
    )


class _Builder:
    def __init__(self, config: NotifyConfig, journal: DeliveryJournal, wall_s: Callable[[], float]) -> None:
        self._config = config
        self._journal = journal
        self._wall_s = wall_s
        self.missing: list[PartStatus] = []
        self.look: MessageFormat = messages
        self.listens: Callable[[], bool] = lambda: False
        """Whether Alertmanager's webhook has a port."""

    def build(
        self, name: str, wanted: str | None, make: Callable[[str], Part], *, extra: str | None = None
    ) -> Part | None:
        """``make(wanted)``; ``None`` if it is not wanted or cannot be built."""
        problem = self._config.unusable.get(name)
        if problem is None:
            if not wanted:
                return None
            try:
                return make(wanted)
            except ImportError as error:
                problem = f"{error.name} is not installed: pip install 'tidegauge[{extra}]'"
            except ValueError as error:
                problem = str(error)
        self.missing.append(_problem(name, problem, self._wall_s))
        return None

    def alertmanager(self, url: str) -> AlertmanagerSink:
        return AlertmanagerSink(url, cluster=self._config.cluster, links=self._config.links, wall_s=self._wall_s)

    def actions(self, app_token: str, chat: SlackChat, desk: ActDesk) -> SlackActions:
        """The buttons and what is done by them; raises ``ValueError`` if the journal of clicks is in use."""
        from tidegauge_exporter.slack.actions import SlackActions
        from tidegauge_exporter.slack.clickable import ClickableMessages
        from tidegauge_exporter.slack.clicks import Buttons, key_of

        try:
            journal = DeliveryJournal(self._config.state_dir / "slack_clicks.jsonl", wall_s=self._wall_s)
        except DeliveryJournalError as error:
            raise ValueError(str(error)) from error
        buttons = Buttons(key_of(app_token))
        self.look = ClickableMessages(buttons)
        return SlackActions(chat, desk, journal, buttons, app_token=app_token, wall_s=self._wall_s)

    def chat(self, token: str) -> SlackChat:
        from tidegauge_exporter.slack.client import SlackChat
        from tidegauge_exporter.slack.people import People

        people = People(self._config.slack_users_file, self._config.slack_email_domain)
        return SlackChat(token, api_url=self._config.slack_api_url, people=people)

    def draw(self, _: str) -> PlotDrawer:
        from tidegauge_exporter.slack.plot import forecast_png

        return forecast_png

    def slack_way(self, chat: Chat, draw: PlotDrawer | None) -> OwnerWay:
        from tidegauge_exporter.slack.owner_channel import SlackWay

        return SlackWay(chat, cluster=self._config.cluster, links=self._config.links, look=self.look, draw=draw)

    def mail(self, _: str) -> Callable[[PlotDrawer | None], OwnerWay]:
        """The way by mail, to be called with the plot drawer."""
        from tidegauge_exporter.mail.outbox import open_outbox
        from tidegauge_exporter.mail.owner_channel import MailWay

        config = self._config
        outbox = open_outbox(config, config.mail_password)
        return lambda draw: MailWay(
            outbox.server, sender=outbox.sender, domain=outbox.domain, cluster=config.cluster, links=config.links,
            draw=draw,
        )  # fmt: skip

    def slack(
        self, chat: Chat, draw: PlotDrawer | None, channel: str, alertmanager: AlertmanagerSink | None
    ) -> SlackSink:
        """The channel. Incidents wait for Alertmanager while it works and its webhook has a port."""

        def release_all() -> bool:
            return alertmanager is None or alertmanager.is_away() or not self.listens()

        return SlackSink(
            chat, self._journal,
            channel=channel, cluster=self._config.cluster, links=self._config.links,
            wait_for_release=alertmanager is not None, release_all=release_all,
            look=self.look, draw=draw, wall_s=self._wall_s,
        )  # fmt: skip

    def receiver(
        self, take_group: Callable[[AlertGroup], None] | None, notifier: Notifier, missing: tuple[PartStatus, ...],
        actions: SlackActions | None,
    ) -> Receiver:  # fmt: skip
        """The HTTP server. Receivers of ``missing`` are on its ``/metrics`` as such that do not work."""
        left_out = tuple(
            SinkFigures(part.name, works=False, deliveries=Deliveries().figures())
            for part in missing
            if part.name not in (PLOTS, ACTIONS)
        )

        def figures() -> NotifierFigures:
            clicks = None if actions is None else ClickFigures(actions.clicks(), actions.connected)
            hears = notifier.status().service.problem is None
            return NotifierFigures((*notifier.figures(), *left_out), hears, clicks)

        return Receiver(
            take_group, host=self._config.listen_host, port=self._config.notify_port, token=self._config.notify_token,
            door=self._config.door, metrics=notifier_metrics(figures, cluster=self._config.cluster),
        )  # fmt: skip

    def grafana(self, url: str) -> Sink:
        from tidegauge_exporter.grafana.client import GrafanaClient
        from tidegauge_exporter.grafana.sink import GrafanaSink

        client = GrafanaClient(url, token=self._config.grafana_token or "")
        return GrafanaSink(client, self._journal, cluster=self._config.cluster, links=self._config.links)


def _problem(name: str, problem: str, wall_s: Callable[[], float]) -> PartStatus:
    log.error("%s is left out of the notifier: %s", name, problem)
    return PartStatus(name, problem, wall_s())
