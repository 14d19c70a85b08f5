"""A letter as a mail: headers, both texts, the picture. The only module that imports ``email``.

What a job or its owner chose reaches a header through ``Letter.subject`` alone, which is one line, and through
addresses that were checked; the library refuses line breaks in headers on top of that.
"""

from __future__ import annotations

from datetime import datetime, timezone
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Final, NamedTuple

from tidegauge_exporter.mail.mail_text import PLOT, MailText

_POLICY: Final = SMTP.clone(cte_type="7bit")
"""So that servers without 8BITMIME (RFC 6152) take it."""


class Envelope(NamedTuple):
    """Whom a mail goes to, and which it belongs to."""

    sender: str
    recipient: str
    message_id: str
    """With its angle brackets. The same mail sent twice has the same, so that a mailbox may show it once."""
    references: tuple[str, ...]
    """The mails that it continues, the latest last."""


def as_mail(letter: MailText, envelope: Envelope, *, at_unix_s: float, png: bytes | None) -> bytes:
    """The mail as it goes over the wire, without dots doubled."""
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
    """``ada`` alone is an address without a domain: a local mailbox of the server."""
    user, _, domain = address.rpartition("@") if "@" in address else (address, "", "")
    return Address(display_name, user, domain)
