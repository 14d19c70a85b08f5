"""An HTTP server that says what a test scripts: for what no faithful API server would do on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from serving import Serving


class Seen(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    content_type: str
    token: str
    user_agent: str
    body: Any
    headers: Mapping[str, str]


class Reply(NamedTuple):
    """``events`` are sent one by one, as far as they have come, as the lines of a watch."""

    status: int = 200
    body: Mapping[str, Any] | str = ""
    headers: Mapping[str, str] = {}
    events: Iterable[Mapping[str, Any]] | None = None
    hangs_up: bool = False
    """The connection is closed in place of an answer."""


class ScriptedApi:
    """On a free loopback port, from ``with`` to its end."""

    def __init__(self, script: Callable[[Seen], Reply]) -> None:
        self.requests: list[Seen] = []
        self._script = script
        self._over = threading.Event()
        server = _Server(("127.0.0.1", 0), self._handler())
        self._serving = Serving(server)
        self.url = f"http://127.0.0.1:{server.server_address[1]}"

    def kubeconfig(self, folder: Path, *, token: str = "secret") -> Path:
        """A file that leads here."""
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "scripted", "user": "tester"}}],
            "clusters": [{"name": "scripted", "cluster": {"server": self.url}}],
            "users": [{"name": "tester", "user": {"token": token}}],
        }
        path.write_text(json.dumps(config))
        return path

    @property
    def forever(self) -> Iterator[Mapping[str, Any]]:
        """Events that never come, until the server ends."""
        self._over.wait()
        yield from ()

    def __enter__(self) -> ScriptedApi:
        self._serving.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._serving.stop()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                reply = api._say(self)
                if reply.hangs_up:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for key, value in reply.headers.items():
                    self.send_header(key, value)
                if reply.events is not None:
                    self._stream(reply.events)
                    return
                text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def do_PUT(self) -> None:
                self._answer()

            def do_PATCH(self) -> None:
                self._answer()

            def _stream(self, events: Iterable[Mapping[str, Any]]) -> None:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.flush()
                for event in events:
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the overridden one's name
                """Nothing."""

        return Handler

    def _say(self, handler: BaseHTTPRequestHandler) -> Reply:
        parts = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        seen = Seen(
            handler.command,
            parts.path,
            dict(parse_qsl(parts.query)),
            handler.headers.get("Content-Type", ""),
            handler.headers.get("Authorization", ""),
            handler.headers.get("User-Agent", ""),
            json.loads(body) if body else None,
            dict(handler.headers.items()),
        )
        self.requests.append(seen)
        return self._script(seen)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that went away is what some tests are about."""
