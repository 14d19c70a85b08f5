"""The notifier as a part of the service: builds it, and reports its status to the coordinator.

It has a process of its own on the head: neither a Slack that hangs nor the drawing of a plot must delay anything else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidegauge.cluster.api.act_client import ApiActs
from tidegauge.cluster.api.story_feed import ApiFeed
from tidegauge.cluster.incident_loops.notifying import (
    GRAFANA_TOKEN,
    MAIL_PASSWORD,
    NOTIFY_TOKEN,
    SLACK_APP_TOKEN,
    SLACK_TOKEN,
    OwnerNotified,
)
from tidegauge.cluster.pseudonym_key import pseudonyms_of
from tidegauge.cluster.service_record import StateFiles, local_api
from tidegauge.core.incidents.actions import Decision
from tidegauge.http.door_start import open_door
from tidegauge.secrets import SecretError, read_secret
from tidegauge.settings import Settings
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.delivery_journal import DeliveryJournalError
from tidegauge_exporter.notify.owner import tell_owner
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError
from tidegauge_exporter.open_notifier import ACTIONS, NotifyConfig, NotifyService, open_notifier

log = logging.getLogger(__name__)

SAY_EVERY_S = 10.0
"""Also how often tokens are read, and it is tried to begin while one cannot be read."""
NOT_TRIED = "not tried yet"
TELL_OWNERS = ("slack", "mail")


@dataclass(frozen=True)
class NotifySecrets:
    """The tokens and passwords of the notifier, none of which is printed."""

    notify_token: str | None = field(default=None, repr=False)
    slack_token: str | None = field(default=None, repr=False)
    slack_app_token: str | None = field(default=None, repr=False)
    mail_password: str | None = field(default=None, repr=False)
    grafana_token: str | None = field(default=None, repr=False)
    unusable: Mapping[str, str] = field(default_factory=dict)
    """Why a receiver has none, although one is configured."""
    outdated: tuple[str, ...] = field(default=(), compare=False)
    """Why others are those of before."""


def read_secrets(
    settings: Settings, environ: Mapping[str, str], before: NotifySecrets = NotifySecrets()
) -> NotifySecrets:
    """One that cannot be used is that of ``before``, else its receiver has none. Raises ``SecretError`` if it is the
    password of the webhook, which would be open without one."""
    read: dict[str, str | None] = {}
    unusable, outdated = {}, []
    for name, sink, file, variable in (
        ("notify_token", None, settings.notify_token_file, NOTIFY_TOKEN),
        ("slack_token", "slack", settings.slack_token_file, SLACK_TOKEN),
        ("slack_app_token", ACTIONS, settings.slack_app_token_file, SLACK_APP_TOKEN),
        ("mail_password", "mail", settings.mail_password_file, MAIL_PASSWORD),
        ("grafana_token", "grafana", settings.grafana_token_file, GRAFANA_TOKEN),
    ):
        try:
            read[name] = read_secret(file, environ, variable)
        except SecretError as error:  # noqa: PERF203 - the others go on
            read[name] = getattr(before, name)
            if read[name] is not None:
                outdated.append(f"{error}; the one read before stays in force")
            elif sink is None:
                raise
            else:
                unusable[sink] = str(error)
    return NotifySecrets(**read, unusable=unusable, outdated=tuple(outdated))


def notify_config(settings: Settings, files: StateFiles, secrets: NotifySecrets) -> NotifyConfig:
    return NotifyConfig(
        cluster=settings.cluster,
        state_dir=files.root,
        links=Links(
            grafana_url=settings.grafana_url,
            service_url=settings.pages_url,
            alertmanager_url=settings.alertmanager_url,
        ),
        alertmanager_url=settings.alertmanager_url,
        listen_host=settings.listen_host,
        notify_port=settings.notify_port,
        notify_token=secrets.notify_token,
        slack_token=secrets.slack_token,
        slack_app_token=secrets.slack_app_token,
        slack_channel=settings.slack_channel,
        slack_users_file=settings.slack_users_file,
        slack_email_domain=settings.slack_email_domain,
        slack_api_url=settings.slack_api_url,
        mail_server=settings.mail_server,
        mail_from=settings.mail_from,
        mail_domain=settings.mail_domain,
        mail_user=settings.mail_user,
        mail_password=secrets.mail_password,
        grafana_url=settings.grafana_url,
        grafana_token=secrets.grafana_token,
        unusable=secrets.unusable,
        door=open_door(settings, what="/alerts", asks_names=False),
        pseudonyms=pseudonyms_of(settings, files),
    )


class NotifierService:
    """Call ``start`` once; ``tell`` is thread-safe. ``say`` gets the status of all receivers every few seconds."""

    def __init__(
        self,
        settings: Settings,
        files: StateFiles,
        environ: Mapping[str, str],
        *,
        say: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._settings = settings
        self._files = files
        self._environ = environ
        self._say = say
        self._feed = ApiFeed(lambda: local_api(files))
        self._service: NotifyService | None = None
        self._secrets = NotifySecrets()
        """Those of the running service."""
        self._problem: str | None = "starting"
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="tidegauge-notifier", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._service is not None:
            self._service.stop()

    def tell(self, decision: Decision) -> OwnerNotified:
        if self._service is None:
            return OwnerNotified(problem=f"the notifier is not working: {self._problem}", retry_after_s=SAY_EVERY_S)
        unusable = [why for sink, why in self._secrets.unusable.items() if sink in TELL_OWNERS]
        if not self._service.owners and unusable:
            return OwnerNotified(problem="; ".join(unusable), retry_after_s=SAY_EVERY_S)
        if not self._service.owners:
            return OwnerNotified(problem="neither Slack nor mail is set up; see `tidegauge status`")
        try:
            return OwnerNotified(where=tell_owner(self._service.owners, decision, self._story(decision)))
        except RetryLaterError as error:
            return OwnerNotified(problem=str(error), retry_after_s=error.after_s)
        except RefusedError as error:
            return OwnerNotified(problem=str(error))

    def standing(self) -> Mapping[str, str]:
        """The status by receiver: "ok", "not tried yet", or the problem."""
        own = {} if self._problem is None else {"notifier": self._problem}
        if self._service is None:
            return own
        status = self._service.status()
        parts = (*status.sinks, *([status.service] if status.service.problem is not None else []))
        return {**{part.name: part.problem or ("ok" if part.is_tried else NOT_TRIED) for part in parts}, **own}

    def _story(self, decision: Decision) -> Story:
        """The story of the incident; without an answer of the service, only the incident of the decision."""
        try:
            return self._feed.story(decision.incident.number)
        except RetryLaterError as error:
            log.info("owner notified without a chart: %s", error)
            return Story(decision.incident)

    def turn(self) -> None:
        """Start the notifier if that failed before, or anew if a file with a token has changed, and report its status;
        never raises."""
        try:
            self._keep_up()
            self._say(self.standing())
        except Exception:
            # Nobody would begin, or be heard of, ever again.
            log.exception("a notifier pass failed; continuing")

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.turn()
            self._stopped.wait(SAY_EVERY_S)

    def _keep_up(self) -> None:
        try:
            secrets = read_secrets(self._settings, self._environ, self._secrets)
        except SecretError as error:
            self._note(str(error))
            return
        if self._service is not None and secrets != self._secrets:
            # All that the next one has to know is in the journal.
            if not self._service.stop():
                self._note("a token was changed, and is used as soon as a receiver that hangs has answered")
                return
            log.info("a token was changed: the notifier starts anew with it")
            self._service = None
        if self._service is None:
            self._begin(secrets)
        else:
            self._note("; ".join(secrets.outdated) or None)

    def _begin(self, secrets: NotifySecrets) -> None:
        try:
            config = notify_config(self._settings, self._files, secrets)
            service = open_notifier(config, self._feed, ApiActs(lambda: local_api(self._files)))
        except DeliveryJournalError as error:
            self._note(str(error))
            return
        service.start()
        self._service, self._secrets = service, secrets
        self._note(None)

    def _note(self, problem: str | None) -> None:
        if problem is not None and problem != self._problem:
            log.error("%s%s", "no notifications are sent: " if self._service is None else "", problem)
        self._problem = problem
