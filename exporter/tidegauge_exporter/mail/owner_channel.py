"""Owners by mail: one mail for each decision with the plot in it; what was done follows in the same thread."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from datetime import datetime, timezone
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Final, NamedTuple, Protocol

from tidegauge.core.incidents.actions import Decision, DecisionRecord
from tidegauge_exporter.links import Links
from tidegauge_exporter.mail.html_parts import PLOT, MailText
from tidegauge_exporter.mail.mail_text import evidence_letter, followup_letter, owner_letter, replicas_letter
from tidegauge_exporter.mail.smtp import UnknownRecipientError
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.deliveries import Deliveries
from tidegauge_exporter.notify.plots import drawn_plot
from tidegauge_exporter.notify.ports import PlotDrawer, Posted, RefusedError
from tidegauge_exporter.notify.replicas import affected
from tidegauge_exporter.notify.story_lines import decision_digest, digest, incident_key, known

_WORD: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN: Final = re.compile(rf"{_WORD}(?:\.{_WORD})*")
"""A host name; one word is enough inside a cluster: ``head``."""
_LOCAL_PART: Final = re.compile(r"(?=.{1,64}\Z)[A-Za-z0-9!#$%&'*+/=?^_{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_{|}~-]+)*")
"""``dot-atom`` of RFC 5322, without the back tick: 64 characters at most (RFC 5321, 4.5.3.1.1)."""
_LOGIN: Final = re.compile(r"(?=.{1,64}\Z)[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
"""A login name that can stand before the @ of an address. ``root@elsewhere`` and ``-x`` are none."""


def checked_address(address: str, setting: str) -> str:
    """The address itself. Raises ``ValueError`` if it is invalid."""
    local_part, at, domain = address.rpartition("@")
    if not (at and _LOCAL_PART.fullmatch(local_part) and _is_domain(domain)):
        raise ValueError(f"{setting} is {address!r}, and no mail address: it looks like tidegauge@example.org")
    return address


def recipient_domain(domain: str) -> str:
    """The domain without an @ in front. Raises ``ValueError`` if it is invalid."""
    bare = domain.removeprefix("@")
    if not _is_domain(bare):
        raise ValueError(f"mail_domain is {domain!r}, and no domain: it looks like example.org")
    return bare


def address_of(user_name: str, domain: str | None) -> str | None:
    """The address ``ada@example.org``; without a domain ``ada``, which the mail server completes. ``None``: no address.

    The name is the kernel's owner of the process, never a claim of the job: nobody gets somebody else's mail by
    claiming a name. A bare number is a uid without an entry in passwd, and could be anybody's address elsewhere.
    """
    if not _LOGIN.fullmatch(user_name) or user_name.isdigit():
        return None
    return user_name if domain is None else f"{user_name}@{domain}"


def _is_domain(text: str) -> bool:
    return len(text) <= 253 and _DOMAIN.fullmatch(text) is not None


_POLICY: Final = SMTP.clone(cte_type="7bit")
"""The policy for servers without 8BITMIME (RFC 6152)."""


class Envelope(NamedTuple):
    """Addresses and ids of one mail."""

    sender: str
    recipient: str
    message_id: str
    """The id in angle brackets, the same for a repeated mail, so that a mailbox may show it once."""
    references: tuple[str, ...]
    """Ids of the earlier mails of the thread, the latest last."""


def as_mail(letter: MailText, envelope: Envelope, *, at_unix_s: float, png: bytes | None) -> bytes:
    """The mail as it goes over the wire, without dots doubled.

    Texts of a job or its owner reach a header through ``MailText.subject`` alone, which is one line, and through
    checked addresses; the library refuses line breaks in headers on top of that.
    """
    mail = EmailMessage(policy=_POLICY)
    mail["Subject"] = letter.subject
    mail["From"] = _address(envelope.sender, "Tidegauge")
    mail["To"] = _address(envelope.recipient)
    mail["Date"] = format_datetime(datetime.fromtimestamp(at_unix_s, timezone.utc))
    mail["Message-ID"] = envelope.message_id
    if envelope.references:
        mail["In-Reply-To"] = envelope.references[-1]
        mail["References"] = " ".join(envelope.references)
    # RFC 3834: nobody's holiday notice shall answer.
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Auto-Response-Suppress"] = "All"  # the same for Exchange
    mail.set_content(letter.text, cte="quoted-printable")
    mail.add_alternative(letter.html, subtype="html", cte="quoted-printable")
    if png is not None:
        html = mail.get_payload(1)
        assert isinstance(html, EmailMessage), "the second alternative was just added"
        html.add_related(png, "image", "png", cid=f"<{PLOT}>", disposition="inline", filename="memory.png")
    return mail.as_bytes()


def _address(address: str, display_name: str = "") -> Address:
    """The address; ``ada`` without a domain is a local mailbox of the server."""
    user, _, domain = address.rpartition("@") if "@" in address else (address, "", "")
    return Address(display_name, user, domain)


log = logging.getLogger(__name__)

STRANGER_FOR_S: Final = 3600.0
"""Time for which an address without a mailbox gets no mail: every round asks for every owner."""


class MailServer(Protocol):
    """The port to a mail server, which ``smtp.SmtpServer`` implements."""

    def send(self, mail: bytes, *, sender: str, recipient: str) -> None:
        """Send a mail. Raises ``RetryLaterError``, ``RefusedError`` and ``UnknownRecipientError``."""

    def check(self) -> None:
        """Return if the server is there and accepts the login. Raises ``RetryLaterError`` and ``RefusedError``."""


class MailWay:
    """The ``OwnerWay`` by mail. ``sender`` and ``domain`` are checked; ``draw=None``: no plots. In a ``Posted``,
    ``channel`` is the address and ``ts`` the Message-ID."""

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
        self.deliveries = Deliveries(wall_s=wall_s)
        self._server = server
        self._sender = sender
        self._domain = domain
        self._cluster = cluster
        self._links = links
        self._draw = draw
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._strangers: dict[str, float] = {}
        """Times until which an address counts as unknown."""

    name = "mail"
    told = "email"

    def check(self) -> None:
        self._server.check()

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

    revises = False

    def revise(self, decision: Decision, story: Story, *, posted: Posted, now_unix_s: float) -> None:
        """Nothing: a mail stays as it was sent."""

    def complete(self, story: Story, posted: Posted, *, now_unix_s: float) -> None:
        """Does nothing: the plot is in the mail."""

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

    def count(self, story: Story, *, posted: Posted) -> None:
        letter = replicas_letter(story, cluster=self._cluster, links=self._links)
        what = f"{affected(story)} replicas {incident_key(story.incident)}"
        self._send(letter, posted.channel, what, story, before=posted)

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
        """Send a mail whose Message-ID is made of ``what``: repeated after a crash, it is the same mail."""
        root = self._message_id(incident_key(story.incident))
        references = (root,) if before is None or before.ts == root else (root, before.ts)
        envelope = Envelope(self._sender, address, self._message_id(what), references)
        mail = as_mail(letter, envelope, at_unix_s=self._wall_s(), png=png)
        try:
            with self.deliveries.attempt():
                self._server.send(mail, sender=self._sender, recipient=address)
        except UnknownRecipientError as error:
            self._strangers[address] = self._monotonic_s() + STRANGER_FOR_S
            log.warning("no mail to %s for %.0f s: %s", address, STRANGER_FOR_S, error)
            raise
        return Posted(address, envelope.message_id)

    def _message_id(self, what: str) -> str:
        """A Message-ID; all mails of a thread refer to the incident's, which no mail has."""
        return f"<{digest(self._cluster, what)}.tidegauge@{self._sender.rpartition('@')[2]}>"
