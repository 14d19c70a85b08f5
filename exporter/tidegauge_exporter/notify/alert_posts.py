"""Alerts about the cluster itself (an agent is down, say): one message for each group of Alertmanager."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import AlertGroup
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from tidegauge_exporter.notify.ports import Chat, MessageFormat, RetryLaterError
from tidegauge_exporter.notify.retries import is_due
from tidegauge_exporter.notify.story_lines import digest
from tidegauge_exporter.notify.threads import SLACK, AlertPost, from_text, to_text

ANEW_AFTER_S = 86400.0
"""Seconds after which a resolved group that fires again gets a new message: nobody would find the old one."""
WAIT_S = 5.0
"""Longest wait for another message about alerts; Alertmanager tries again."""


class AlertPosts:
    """Posts and rewrites messages about groups of alerts. Thread-safe: Alertmanagers may send the same group."""

    def __init__(
        self,
        chat: Chat,
        journal: DeliveryJournal,
        *,
        channel: str,
        links: Links,
        look: MessageFormat,
        wall_s: Callable[[], float],
    ) -> None:
        self._chat = chat
        self._journal = journal
        self._channel = channel
        self._links = links
        self._look = look
        self._wall_s = wall_s
        self._lock = threading.Lock()

    def tell(self, group: AlertGroup) -> None:
        """Post or rewrite the group's message if it is outdated. Raises ``RetryLaterError`` and ``RefusedError``."""
        if not self._lock.acquire(timeout=WAIT_S):
            raise RetryLaterError("Slack is slow: still posting other alerts", after_s=WAIT_S)
        try:
            self._tell(group)
        finally:
            self._lock.release()

    def _tell(self, group: AlertGroup) -> None:
        key, now_s = f"group/{digest(group.group_key)}", self._wall_s()
        alerts = _which(group)
        before = from_text(AlertPost, self._journal.said(SLACK, key))
        if before is None or self._is_old(before, group, now_s):
            if group.firing:  # what was never told to fire need not be told to be over
                posted = self._chat.post(self._channel, self._look.alert_message(group, links=self._links))
                self._say(key, AlertPost(*posted, alerts, group.firing, now_s))
            return
        if (before.alerts, before.firing) == (alerts, group.firing):
            return
        message = self._look.alert_message(group, links=self._links)
        if group.firing and not before.firing:
            # To rewrite a message tells nobody; a reply does. Which alerts it shows is not up to date yet.
            self._chat.post(before.channel, message, thread=before.posted)
            before = replace(before, alerts="", firing=True, at_unix_s=now_s)
            self._say(key, before)
        self._chat.update(before.posted, message)
        self._say(key, replace(before, alerts=alerts, firing=group.firing, at_unix_s=now_s))

    def _is_old(self, before: AlertPost, group: AlertGroup, now_s: float) -> bool:
        return group.firing and not before.firing and is_due(before.at_unix_s, ANEW_AFTER_S, now_unix_s=now_s)

    def _say(self, key: str, post: AlertPost) -> None:
        self._journal.say(SLACK, key, to_text(post), over=not post.firing)


def _which(group: AlertGroup) -> str:
    """A digest of the alerts and their states. Texts do not count: their figures move."""
    each = sorted(f"{alert.fingerprint} {'firing' if alert.firing else 'resolved'}" for alert in group.alerts)
    return digest(*each, str(group.left_out))
