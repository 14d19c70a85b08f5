"""The sending of a mail to a mail server (SMTP, RFC 5321). No other module imports ``smtplib``.

The password is in no message, log line or exception.
"""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from tidegauge.http.loopback import is_loopback
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

PORT: Final = 25
TLS_PORT: Final = 465
"""The port at which TLS begins with the first byte (RFC 8314)."""
TIMEOUT_S: Final = 15.0
"""Bound of one mail as a whole; a message to an owner must be sent or given up within half a minute."""
OK: Final = 250
BUSY_S: Final = 60.0
"""Wait after a reply 4yz; servers with greylisting want minutes."""
AWAY_S: Final = 15.0
MAX_REPLY_CHARS: Final = 200

_SERVER: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")


class UnknownRecipientError(RefusedError):
    """The server has no such mailbox, or refuses mail for it."""


class UncertainError(RetryLaterError):
    """The server had the whole mail and did not say whether it takes it: sent again, it may come twice."""


class Server(NamedTuple):
    """The address of a mail server."""

    host: str
    port: int
    tls_first: bool = False
    """True for TLS from the first byte; else STARTTLS is used if the server offers it."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_here(self) -> bool:
        """True if the server is on this machine, and nobody listens in between."""
        return is_loopback(self.host)


def parse_server(text: str) -> Server:
    """The server of ``HOST``, ``HOST:PORT`` or ``[IPV6]:PORT``. Raises ``ValueError``."""
    found = _SERVER.fullmatch(text)
    port = int(found[3]) if found is not None and found[3] else PORT
    if found is None or not 1 <= port <= 65535:
        raise ValueError(f"mail_server is {text!r}; it looks like mail.example.org or mail.example.org:587")
    return Server(found[1] or found[2], port, tls_first=port == TLS_PORT)


class SmtpServer:
    """Sends mails, each over its own connection. Thread-safe. ``login``: user and password, if the server wants one."""

    def __init__(
        self,
        server: Server,
        *,
        login: tuple[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._login = login
        self._timeout_s = timeout_s
        self._monotonic_s = monotonic_s

    def send(self, mail: bytes, *, sender: str, recipient: str) -> None:
        """Send a mail. Returns once the server has accepted it, which is before it is delivered.

        Raises ``RetryLaterError`` and its kind ``UncertainError``, ``RefusedError`` and its kind
        ``UnknownRecipientError``.
        """
        try:
            with self._session() as connection:
                connection.sendmail(sender, [recipient], mail)
        except smtplib.SMTPRecipientsRefused as error:
            raise self._of_recipient(recipient, error) from None
        except smtplib.SMTPSenderRefused as error:
            raise self._of_reply(error, f"does not take mail from {sender} (setting mail_from)") from None

    def check(self) -> None:
        """Connect, log in and hang up. Raises ``RetryLaterError`` and ``RefusedError``."""
        with self._session() as connection:
            code, reply = connection.noop()
            if code != OK:
                raise smtplib.SMTPResponseException(code, reply)

    @contextmanager
    def _session(self) -> Iterator[_Patient]:
        """A connection after the login, which is closed in the end; errors of the block about the sender or the
        recipient pass."""
        connection = None
        try:
            connection = self._connected()
            try:
                self._introduce(connection)
                yield connection
                with suppress(OSError, smtplib.SMTPException):
                    connection.quit()
            finally:
                connection.close()
        except (smtplib.SMTPRecipientsRefused, smtplib.SMTPSenderRefused):
            raise
        except smtplib.SMTPAuthenticationError as error:
            raise self._of_reply(error, "does not take the login of mail_user") from None
        except smtplib.SMTPNotSupportedError:
            raise RefusedError(
                f"the mail server {self._server} has no login that we know: take mail_user away, or name another port"
            ) from None
        except smtplib.SMTPResponseException as error:
            raise self._of_reply(error, "does not take a mail") from None
        except ssl.SSLCertVerificationError as error:
            why = tidy(error.verify_message, MAX_REPLY_CHARS)
            raise RefusedError(f"the certificate of the mail server {self._server} is not valid: {why}") from None
        except (OSError, smtplib.SMTPException) as error:
            if connection is not None and connection.has_all:
                said = f"the mail server {self._server} was sent a mail and did not answer: {_why(error)}"
                raise UncertainError(said, after_s=AWAY_S) from None
            raise RetryLaterError(
                f"the mail server {self._server} cannot be reached: {_why(error)}", after_s=AWAY_S
            ) from None

    def _connected(self) -> _Patient:
        kind = _PatientTls if self._server.tls_first else _Patient
        return kind(
            self._server.host,
            self._server.port,
            ends_s=self._monotonic_s() + self._timeout_s,
            monotonic_s=self._monotonic_s,
        )

    def _introduce(self, connection: _Patient) -> None:
        """Send EHLO, start TLS if there is any, and log in if the server wants it."""
        connection.local_hostname = _own_name(connection)
        connection.ehlo_or_helo_if_needed()
        if self._server.tls_first:
            encrypted = True
        elif encrypted := connection.has_extn("starttls"):
            connection.starttls(context=self._starttls_context())
            connection.ehlo()
        if self._login is not None and not encrypted and not self._server.is_here:
            raise RefusedError(
                f"the mail server {self._server} offers no encryption, so the password of mail_user was not sent: name "
                "a port that has it, such as 465 or 587"
            )
        if self._login is not None:
            connection.login(*self._login)

    def _starttls_context(self) -> ssl.SSLContext:
        """The TLS context. A password goes only to a server that proves its name. Without one any certificate is
        accepted: an attacker with a false certificate could remove the offer of STARTTLS as well (RFC 7435), and mail
        servers inside a site often have self-signed certificates."""
        context = ssl.create_default_context()
        if self._login is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _of_recipient(self, recipient: str, error: smtplib.SMTPRecipientsRefused) -> RetryLaterError | RefusedError:
        code, reply = error.recipients.get(recipient, (0, b""))
        said = f"the mail server {self._server} does not take mail for {recipient}: {code} {_text(reply)}"
        return UnknownRecipientError(said) if code // 100 == 5 else RetryLaterError(said, after_s=BUSY_S)

    def _of_reply(self, error: smtplib.SMTPResponseException, what: str) -> RetryLaterError | RefusedError:
        if error.smtp_code < 0:  # smtplib's sign for a reply without a number, whose beginning it has cut off
            said = f"{self._server} does not answer as a mail server does; is mail_server its address and port?"
            return RetryLaterError(said, after_s=BUSY_S)
        said = f"the mail server {self._server} {what}: {error.smtp_code} {_text(error.smtp_error)}"
        return RefusedError(said) if error.smtp_code // 100 == 5 else RetryLaterError(said, after_s=BUSY_S)


class _Lines:
    """The server's lines within ``left_s``. The library would wait anew for each letter of a tarpit."""

    def __init__(self, connection: socket.socket, left_s: Callable[[], float]) -> None:
        self._connection = connection
        self._left_s = left_s
        self._read = b""

    def readline(self, most_bytes: int) -> bytes:
        """One line with its end, or without it if the connection ends or the line is too long. Raises ``OSError``."""
        # Also for a line that is here already: a reply may have any number of them.
        self._connection.settimeout(self._left_s())
        while b"\n" not in self._read and len(self._read) < most_bytes:
            data = self._connection.recv(4096)
            if not data:
                break
            self._read += data
            self._connection.settimeout(self._left_s())
        line = self._read[: self._read.find(b"\n") + 1 or most_bytes][:most_bytes]
        self._read = self._read[len(line) :]
        return line

    def close(self) -> None:
        """Does nothing: the connection belongs to the caller."""


class _Patient(smtplib.SMTP):
    """A connection with a deadline ``ends_s`` for all commands together."""

    def __init__(self, host: str, port: int, *, ends_s: float, monotonic_s: Callable[[], float]) -> None:
        self._ends_s = ends_s
        self._monotonic_s = monotonic_s
        self.has_all = False
        """Whether the server was sent a whole mail, with the dot at its end."""
        # A name is given, though another is said: the library would look its own up in the DNS, which may take long.
        super().__init__(host, port, local_hostname="localhost", timeout=self._left_s(), **self._options())

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and isinstance(self.sock, socket.socket):
            self.file = _Lines(self.sock, self._left_s)
        return super().getreply()

    def send(self, s: Any) -> None:
        super().send(s)
        # Commands are text; only a mail is bytes, and is sent at once.
        self.has_all = isinstance(s, bytes)

    def _left_s(self) -> float:
        """Raises ``TimeoutError``."""
        left_s = self._ends_s - self._monotonic_s()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        return left_s

    def _options(self) -> dict[str, Any]:
        return {}


class _PatientTls(_Patient, smtplib.SMTP_SSL):
    """A connection with a deadline, TLS from the start, and a certificate that must be valid."""

    def _options(self) -> dict[str, Any]:
        return {"context": ssl.create_default_context()}


def _own_name(connection: smtplib.SMTP) -> str:
    """The name for EHLO: this machine's full name, else its address in brackets (RFC 5321, 4.1.4)."""
    name = socket.gethostname()
    if re.fullmatch(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", name) or not isinstance(connection.sock, socket.socket):
        return name
    address = str(connection.sock.getsockname()[0])
    return f"[IPv6:{address}]" if ":" in address else f"[{address}]"


def _text(reply: bytes | str) -> str:
    return tidy(reply.decode("ascii", "replace") if isinstance(reply, bytes) else reply, MAX_REPLY_CHARS)


def _why(error: OSError | smtplib.SMTPException) -> str:
    if isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError):
        return "no answer in time"
    words = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return tidy(words, MAX_REPLY_CHARS)
