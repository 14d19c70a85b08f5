"""The HTTP side of the fake Slack: requests in, answers and faults out."""

from __future__ import annotations

import json
import select
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs


class Fault(NamedTuple):
    """What one call gets instead of an answer."""

    status: int = 200
    body: Mapping[str, Any] | str = ""
    headers: Mapping[str, str] = {}
    hangs: bool = False
    """Nothing comes until the server is closed."""
    done_first: bool = False
    """The call is carried out, only its answer is lost."""


class Workspace(Protocol):
    """Who answers."""

    def next_fault(self, method: str) -> Fault | None:
        """What the next call of a method gets instead of an answer."""

    def wait_for_the_end(self) -> None:
        """Until the server is closed."""

    def answer(self, method: str, token: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What Slack says to a call."""

    def headers(self, token: str) -> Mapping[str, str]:
        """What each answer to this token says beside its body."""

    def keep_file(self, file_id: str, content: bytes) -> bool:
        """The bytes of a file; false if nobody announced it."""


class SlackServer(ThreadingHTTPServer):
    """On a free loopback port."""

    daemon_threads = True

    def __init__(self, slack: Workspace) -> None:
        super().__init__(("127.0.0.1", 0), _handler(slack))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that went away is what some tests are about."""


def _handler(slack: Workspace) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            *_, name = self.path.split("/")
            is_file = self.path.startswith("/upload/v1/")
            fault = slack.next_fault("upload" if is_file else name)
            if fault is None or fault.done_first:
                if self._is_given_up():
                    return
                reply = self._done(name, body, is_file=is_file)
            if fault is not None and fault.hangs:
                slack.wait_for_the_end()
                return
            if fault is not None:
                reply = fault
            self._send(reply)

        def _is_given_up(self) -> bool:
            """Whether this process stood still for longer than the client waits: who waits for an answer says no more,
            and who has hung up will ask again."""
            poll = select.poll()  # select(2) knows no descriptor above 1,023
            poll.register(self.connection, select.POLLIN)
            return bool(poll.poll(0))

        def _done(self, name: str, body: bytes, *, is_file: bool) -> Fault:
            if is_file:
                return Fault(200, f"OK - {len(body)}") if slack.keep_file(name, body) else Fault(404, "no such file")
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            return Fault(200, slack.answer(name, token, self._arguments(body)), slack.headers(token))

        def _arguments(self, body: bytes) -> dict[str, Any]:
            if self.headers.get_content_type() == "application/json":
                arguments: dict[str, Any] = json.loads(body or b"{}")
                return arguments
            return {key: values[-1] for key, values in parse_qs(body.decode()).items()}

        def _send(self, reply: Fault) -> None:
            is_text = isinstance(reply.body, str)
            payload = reply.body.encode() if isinstance(reply.body, str) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            self.send_header("Content-Type", "text/html" if is_text else "application/json; charset=utf-8")
            for key, value in reply.headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the overridden parameter
            """Nothing."""

    return Handler
