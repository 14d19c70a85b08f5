"""The mail server of the settings, and whom mails come from."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tidegauge_exporter.mail.owner_channel import MailServer, checked_address, recipient_domain
from tidegauge_exporter.mail.smtp import SmtpServer, parse_server


class MailSettings(Protocol):
    """The settings of these names."""

    @property
    def mail_server(self) -> str | None: ...
    @property
    def mail_from(self) -> str | None: ...
    @property
    def mail_domain(self) -> str | None: ...
    @property
    def mail_user(self) -> str | None: ...


class Outbox(NamedTuple):
    server: MailServer
    sender: str
    domain: str | None
    """As ``owner_channel.address_of`` takes it."""


def open_outbox(settings: MailSettings, password: str | None) -> Outbox:
    """Raises ``ValueError`` for settings that are missing, invalid or do not go together."""
    if not settings.mail_server:
        raise ValueError("mail_server is not set")
    if not settings.mail_from:
        raise ValueError("mail_server is set, and mail_from is not: which address do mails come from?")
    if (settings.mail_user is None) is not (password is None):
        raise ValueError("mail_user and mail_password_file belong together: set both or none")
    login = None if settings.mail_user is None or password is None else (settings.mail_user, password)
    return Outbox(
        SmtpServer(parse_server(settings.mail_server), login=login),
        checked_address(settings.mail_from, "mail_from"),
        None if settings.mail_domain is None else recipient_domain(settings.mail_domain),
    )
