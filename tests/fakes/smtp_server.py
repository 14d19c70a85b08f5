"""A mail server on a free loopback port: speaks SMTP, offers TLS and a login, keeps mails, refuses on demand."""

from __future__ import annotations

import base64
import socket
import socketserver
import ssl
import threading
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import NamedTuple, Protocol

from serving import Serving


class Delivered(NamedTuple):
    """A mail that was taken."""

    hello: str
    """What the client called itself."""
    sender: str
    recipient: str
    raw: bytes
    encrypted: bool
    user: str | None

    @property
    def mail(self) -> EmailMessage:
        parsed = message_from_bytes(self.raw, policy=default)
        assert isinstance(parsed, EmailMessage)
        return parsed

    def text(self, kind: str = "plain") -> str:
        """The body, ``plain`` or ``html``, as a reader has it."""
        body = self.mail.get_body((kind,))
        assert body is not None, kind
        content = body.get_content()
        assert isinstance(content, str)
        return content


class _Stream(Protocol):
    def readline(self) -> bytes: ...


@dataclass
class FakeSmtp:
    """``refusals``: by the first word of a command (``connect`` for the greeting, ``.`` for a whole mail), what is
    answered instead. ``silent_at``: the command, or ``.``, to which no answer comes."""

    tls: ssl.SSLContext | None = None
    tls_first: bool = False
    """TLS from the first byte, and no STARTTLS."""
    login: tuple[str, str] | None = None
    refusals: dict[str, str] = field(default_factory=dict)
    silent_at: str | None = None
    delivered: list[Delivered] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def __enter__(self) -> FakeSmtp:
        self._closing = threading.Event()
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), lambda *asked: _Session(self, *asked))
        self._server.daemon_threads = True
        self._serving = Serving(self._server)
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._serving.stop()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def wait_for_the_end(self) -> None:
        self._closing.wait()


class _Session(socketserver.BaseRequestHandler):
    """One connection."""

    def __init__(self, fake: FakeSmtp, request: socket.socket, client: object, server: socketserver.BaseServer) -> None:
        self._fake = fake
        self._socket: socket.socket = request
        self._hello = self._sender = self._recipient = ""
        self._encrypted = False
        self._user: str | None = None
        super().__init__(request, client, server)

    def handle(self) -> None:
        if self._fake.tls_first and not self._encrypt():
            return
        lines: _Stream = self._socket.makefile("rb")
        self._answer("connect", "220 mail.test ESMTP")
        while command := lines.readline().decode().strip():
            self._fake.commands.append(command)
            word, _, rest = command.partition(" ")
            word = word.upper()
            if word == self._fake.silent_at:
                self._fake.wait_for_the_end()
                return
            if word == "STARTTLS" and self._fake.tls is not None:
                self._answer(word, "220 go ahead")
                if not self._encrypt():
                    return
                lines = self._socket.makefile("rb")
            elif word == "DATA":
                if self._answer(word, "354 end with a dot"):
                    raw = _data(lines)
                    self._fake.commands.append(".")
                    if self._fake.silent_at == ".":
                        self._fake.wait_for_the_end()
                        return
                    if self._answer(".", "250 taken"):
                        self._fake.delivered.append(
                            Delivered(self._hello, self._sender, self._recipient, raw, self._encrypted, self._user)
                        )
            elif word == "QUIT":
                self._answer(word, "221 bye")
                return
            else:
                self._answer(word, self._reply(word, rest))

    def finish(self) -> None:
        self._socket.close()

    def _encrypt(self) -> bool:
        """False: the client does not like our certificate."""
        assert self._fake.tls is not None
        try:
            self._socket = self._fake.tls.wrap_socket(self._socket, server_side=True)
        except OSError:
            return False
        self._encrypted = True
        return True

    def _reply(self, word: str, rest: str) -> str:
        if word == "EHLO":
            self._hello = rest
            offers = ["mail.test", "SIZE 10000000"]
            offers += ["STARTTLS"] * (self._fake.tls is not None and not self._encrypted)
            offers += ["AUTH PLAIN"] * (self._fake.login is not None)
            return "\r\n".join([*(f"250-{offer}" for offer in offers[:-1]), f"250 {offers[-1]}"])
        if word == "AUTH":
            _, user, password = base64.b64decode(rest.partition(" ")[2]).decode().split("\0")
            if (user, password) != self._fake.login:
                return "535 5.7.8 not with these"
            self._user = user
            return "235 welcome"
        if word == "MAIL":
            self._sender = _path(rest)
        elif word == "RCPT":
            self._recipient = _path(rest)
        return "250 fine"

    def _answer(self, word: str, usual: str) -> bool:
        """Whether it was the usual one."""
        refusal = self._fake.refusals.get(word)
        self._socket.sendall(f"{usual if refusal is None else refusal}\r\n".encode())
        return refusal is None


def _path(rest: str) -> str:
    """What stands between the angle brackets."""
    return rest.partition("<")[2].partition(">")[0]


def _data(lines: _Stream) -> bytes:
    """Up to the dot alone, with doubled dots single again."""
    whole = b""
    while (line := lines.readline()) != b".\r\n":
        assert line, "the client went away inside a mail"
        whole += line[1:] if line.startswith(b".") else line
    return whole
