"""Owners by mail: a mail a decision, with the plot in it, and what was done as mails of the same thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from tidegauge.core.incidents.actions import Decision, DecisionRecord
from tidegauge_exporter.links import Links
from tidegauge_exporter.mail.addresses import address_of
from tidegauge_exporter.mail.mail_text import MailText, evidence_letter, followup_letter, owner_letter
from tidegauge_exporter.mail.mime import Envelope, as_mail
from tidegauge_exporter.mail.smtp import UnknownRecipientError
from tidegauge_exporter.messages.chat import Posted
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.message_format import PlotDrawer
from tidegauge_exporter.notify.plots import drawn_plot
from tidegauge_exporter.notify.ports import RefusedError
from tidegauge_exporter.notify.story_lines import decision_digest, digest, incident_key, known

log = logging.getLogger(__name__)

STRANGER_FOR_S: Final = 3600.0
"""Whom the server has no mailbox for is not written to again for so long: every round asks for every owner."""


class MailServer(Protocol):
    """``smtp.SmtpServer``."""

    def send(self, mail: bytes, *, sender: str, recipient: str) -> None:
        """Raises ``RetryLaterError``, ``RefusedError`` and ``UnknownRecipientError``."""


class MailWay:
    """``notify.owner.OwnerWay``. ``sender`` and ``domain`` were checked (``addresses``); ``draw=None``: no plots. In a
    ``Posted``, ``channel`` is the address and ``ts`` the Message-ID."""

    def __init__(
        self,
        server: MailServer,
        *,
        sender: str,
        domain: str | None,
        cluster: str,
        links: Links,
        draw: PlotDrawer | None,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._sender = sender
        self._domain = domain
        self._cluster = cluster
        self._links = links
        self._draw = draw
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._strangers: dict[str, float] = {}
        """Until when an address counts as nobody's."""

    name = "mail"
    told = "email"

    def reaches(self, user_name: str) -> bool:
        address = address_of(user_name, self._domain)
        return address is not None and self._monotonic_s() >= self._strangers.get(address, 0.0)

    def tell(self, decision: Decision, story: Story, *, before: Posted | None, now_unix_s: float) -> Posted:
        address = address_of(story.incident.user_name, self._domain)
        if address is None:
            raise RefusedError(f"no email address known for user {story.incident.user_name!r} (docs/mail.md)")
        drawn = None if self._draw is None or not story.memory else self._draw
        png = None if drawn is None else drawn_plot(drawn, story, now_unix_s=now_unix_s)
        letter = owner_letter(
            decision, story, cluster=self._cluster, links=self._links, now_unix_s=now_unix_s, has_plot=png is not None
        )
        return self._send(letter, address, f"told {decision_digest(decision)}", story, before=before, png=png)

    def complete(self, story: Story, posted: Posted, *, now_unix_s: float) -> None:
        """Nothing: the plot is in the mail."""

    def follow(self, record: DecisionRecord, story: Story, *, posted: Posted) -> None:
        letter = followup_letter(record, story, cluster=self._cluster)
        self._send(letter, posted.channel, f"done {decision_digest(record.decision)}", story, before=posted)

    def explain(self, story: Story, *, posted: Posted) -> None:
        letter = evidence_letter(story, cluster=self._cluster, links=self._links)
        self._send(
            letter,
            posted.channel,
            f"found {known(story.incident)} {incident_key(story.incident)}",
            story,
            before=posted,
        )

    def _send(
        self,
        letter: MailText,
        address: str,
        what: str,
        story: Story,
        *,
        before: Posted | None,
        png: bytes | None = None,
    ) -> Posted:
        """``what`` makes the Message-ID: the same again, after a crash, is the same mail."""
        root = self._message_id(incident_key(story.incident))
        references = (root,) if before is None or before.ts == root else (root, before.ts)
        envelope = Envelope(self._sender, address, self._message_id(what), references)
        mail = as_mail(letter, envelope, at_unix_s=self._wall_s(), png=png)
        try:
            self._server.send(mail, sender=self._sender, recipient=address)
        except UnknownRecipientError as error:
            self._strangers[address] = self._monotonic_s() + STRANGER_FOR_S
            log.warning("no mail to %s for %.0f s: %s", address, STRANGER_FOR_S, error)
            raise
        return Posted(address, envelope.message_id)

    def _message_id(self, what: str) -> str:
        """Also for an incident, whose own id no mail has: what all mails of a thread refer to."""
        return f"<{digest(self._cluster, what)}.tidegauge@{self._sender.rpartition('@')[2]}>"
