"""The coordinator's HTTP API: fixed paths, read only but for a table of forms. Standard library, loopback by default.

Nothing in a request chooses a file, a name or an unbounded amount of work: paths are looked up in a table, parameters
are bounded numbers and texts, and a limited number of requests is served at a time. A body is read of a form alone,
from somebody with a name, and if a browser sent it, from a page of this API. Who may read what: ``route_access``.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer
from urllib.parse import parse_qsl, urlsplit

from tidegauge.cluster.api.route_access import ROUTE_ACCESS, Access, may_read
from tidegauge.core.wire import to_json
from tidegauge.web.access import EVERYBODY, OPEN_DOOR, Door, Refusal, Viewer
from tidegauge.web.local_server import LocalServing
from tidegauge.web.server import GuardedMixIn, GuardedRequest, ServerLimits

# Which page a browser had a form from that it sends to the HTTP API: one of this API, or one of another site.

_PORTS = {"http": 80, "https": 443}


def is_from_here(headers: Message[str, str], public_url: str | None) -> bool:
    """Whether a form may be taken: else any page on the web could have a browser that knows a password send one.

    ``Origin``, and without it ``Referer``, has to name the host and port of ``Host`` or of ``public_url``, which is
    where a proxy that changes ``Host`` is reached. ``null`` is what a browser says that must not tell. Commands and
    scripts send neither. ``Sec-Fetch-Site`` comes over TLS and to localhost alone.
    """
    if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        return False
    sender = headers.get("Origin", headers.get("Referer"))
    if sender is None:
        return True
    here = f"{sender.partition(':')[0]}://{headers.get('Host', '')}"
    place = _place(sender)
    return place is not None and place in (_place(here), _place(public_url or ""))


def _place(url: str) -> tuple[str, int] | None:
    """Its host and port; ``None``: it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname and port else None


log = logging.getLogger(__name__)

MAX_REQUESTS_AT_ONCE = 16
"""That are worked on, on the port and on the local socket each: people, scripts, one or two Prometheus servers. More
is somebody's mistake, answered with 503. An answer that is being sent is no work: a slow reader holds up nobody, and
``LIMITS`` bounds how many answers wait for theirs."""
REQUEST_TIMEOUT_S = 10.0
LIMITS = ServerLimits(connections=64, ask_within_s=REQUEST_TIMEOUT_S, whole_s=120.0)
"""A history of weeks takes the coordinator seconds to tell, and a slow client some more to read."""
LOOK_S = 0.5
"""How often connections that take too long are looked for."""
MAX_QUERY_CHARS = 16_000
"""A job id may have 1024 characters, each of them up to 12 in a URL."""
MAX_FIELDS = 32
MAX_FORM_BYTES = 8192
"""Of a body: a comment of 500 characters has up to 6,000 in a form."""
METHODS, METHODS_OF_FORMS = ("GET", "HEAD"), ("GET", "HEAD", "POST")
JSON_TYPE = "application/json"
FORM_TYPE = "application/x-www-form-urlencoded"
HTML_TYPE = "text/html; charset=utf-8"


def _page_headers(*, form_action: str, referrer_policy: str) -> tuple[tuple[str, str], ...]:
    """Of pages for people, which hold what jobs call themselves: a browser runs and fetches nothing, whatever slips
    in."""
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action {form_action}; "
        "frame-ancestors 'none'"
    )
    return (("Content-Security-Policy", policy), ("Referrer-Policy", referrer_policy))


HTML_HEADERS = _page_headers(form_action="'none'", referrer_policy="no-referrer")
FORM_HEADERS = _page_headers(form_action="'self'", referrer_policy="same-origin")
"""Of a page with a form that comes back here. With ``no-referrer`` a browser would not say that it comes from here."""
NO_NAME = (
    "this service has no authentication, so it cannot tell who answers: on the head, its user or root "
    "answers with `tidegauge policy grade`; with authentication (docs/web_access.md) everyone can"
)
FROM_ELSEWHERE = (
    "this form was sent from a page of another site: open the page here and answer there. Behind a "
    "proxy that changes Host, set public_url to the address that browsers show"
)


class BadRequestError(ValueError):
    """The request cannot be understood; the message goes back with status 400."""


class NotFoundError(LookupError):
    """What the request asks for does not exist; the message goes back with status 404."""


class UnavailableError(Exception):
    """What the answer needs is away for now; the message goes back with status 503."""


_STATUS: Mapping[type[Exception], int] = {BadRequestError: 400, NotFoundError: 404, UnavailableError: 503}


@dataclass(frozen=True)
class Request:
    """What of a request an answer may depend on."""

    query: Mapping[str, str]
    """Of a form that was sent: its fields, none of which it had twice."""
    accept: str | None
    viewer: Viewer = EVERYBODY
    """Who asks: what they may see of an ``Access.OWN`` page is for its route to see to."""

    def number(self, name: str, *, default: int, most: int = 10**15 - 1) -> int:
        """A whole number from 0 to ``most`` out of the query."""
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise BadRequestError(f"{name} must be a whole number, not {text[:40]!r}")
        if int(text) > most:
            raise BadRequestError(f"{name} may be at most {most}, not {text}")
        return int(text)

    def text(self, name: str, *, most_chars: int) -> str:
        """A text out of the query, which must be there. What it says is not checked any further."""
        text = self.query.get(name)
        if not text:
            raise BadRequestError(f"{name} is missing")
        if len(text) > most_chars:
            raise BadRequestError(f"{name} may have at most {most_chars} characters, not {len(text)}")
        return text

    def only(self, *names: str) -> None:
        """Raises ``BadRequestError`` for a form with another field: it may mean what nobody reads."""
        for name in self.query:
            if name not in names:
                fields = f"{', '.join(names[:-1])} and {names[-1]}"
                raise BadRequestError(f"the form has an unknown field {name[:40]!r}; its fields are {fields}")


@dataclass(frozen=True)
class Answer:
    """What goes back."""

    body: bytes
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()
    """Beside those that every answer has; stronger than those of the web configuration."""
    status: int = 200


Route = Callable[[Request], Answer]
NO_FORMS: Mapping[str, Route] = {}


def json_route(value: Callable[[Request], object]) -> Route:
    """A route that answers with ``to_json`` of what ``value`` returns."""
    return lambda request: Answer(to_json(value(request)))


def html_route(page: Callable[[Request], str], headers: tuple[tuple[str, str], ...] = HTML_HEADERS) -> Route:
    """A route that answers with the page that ``page`` returns: a whole document with its style sheet in it."""
    return lambda request: html_answer(page(request), headers)


def html_answer(page: str, headers: tuple[tuple[str, str], ...] = HTML_HEADERS, *, status: int = 200) -> Answer:
    """A page for people as an answer."""
    return Answer(page.encode(errors="replace"), HTML_TYPE, headers, status)


class HttpApi:
    """Serves a table of routes from daemon threads, from ``start`` to ``stop``."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        host: str,
        port: int,
        door: Door = OPEN_DOOR,
        access: Mapping[str, Access] = ROUTE_ACCESS,
        forms: Mapping[str, Route] = NO_FORMS,
        local_socket: Path | None = None,
        public_url: str | None = None,
    ) -> None:
        """``forms``: what is done with a form that is sent to a path; whoever may read its page may send it, if they
        have a name. ``local_socket``: also served there, without TLS, to root and to this process' own user alone.
        ``public_url``: the setting; a form may come from a page there, too."""
        self._routes = dict(routes)
        self._forms = dict(forms)
        self._host = host
        self._port = port
        self._door = door
        self._access = access
        self._local_socket = local_socket
        self._public_url = public_url
        self._server: _Server | None = None
        self._local: LocalServing | None = None

    def start(self) -> None:
        """Bind and serve. Raises ``OSError`` if the port is taken or the host is not one of this machine."""
        self._server = _Server((self._host, self._port), self._handler(), self._door)
        threading.Thread(
            target=self._server.serve_forever, args=(LOOK_S,), name="tidegauge-api", daemon=True
        ).start()  # fmt: skip
        if self._local_socket is not None:
            self._local = LocalServing(self._local_socket, self._handler(), LIMITS, look_s=LOOK_S)
            problem = self._local.start()
            if problem is not None:
                log.warning("commands on this node use %s for now: %s: %s", self.url, self._local_socket, problem)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        """Of one server, with slots of its own: what strangers ask for takes none from the head's own commands."""
        slots = threading.BoundedSemaphore(MAX_REQUESTS_AT_ONCE)
        return _handler(self._routes, self._forms, self._access, slots, self._public_url)

    @property
    def port(self) -> int:
        """The port as bound."""
        assert self._server is not None, "not started"
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where a client on this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return (
            f"{self._door.scheme}://[{host}]:{self.port}"
            if ":" in host
            else f"{self._door.scheme}://{host}:{self.port}"
        )

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._local is not None:
            self._local.stop()
        self._server = self._local = None


class _Server(GuardedMixIn, TCPServer):
    request_queue_size = 64
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], door: Door) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.guard(LIMITS, door)
        super().__init__(address, handler)


@dataclass(frozen=True)
class _Reply:
    """What is sent once the work for it is done."""

    status: int
    body: bytes
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()


def _handler(
    routes: Mapping[str, Route], forms: Mapping[str, Route], access: Mapping[str, Access],
    slots: threading.BoundedSemaphore, public_url: str | None,
) -> type[BaseHTTPRequestHandler]:  # fmt: skip
    class Handler(GuardedRequest, BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S
        server_version = "tidegauge"
        sys_version = ""

        def do_GET(self) -> None:
            self._send(self._reply())

        do_HEAD = do_GET  # noqa: N815 - the name that the base class calls

        def do_POST(self) -> None:
            self._send(self._done())

        def _reply(self) -> _Reply:
            path, _, query = self.path.partition("#")[0].partition("?")
            decision = access.get(path, Access.ADMIN if path in routes else Access.SIGNED_IN)
            if decision is Access.OPEN:  # costs nothing, and whoever asks whether this lives has to be answered
                return self._answer(routes, path, query, EVERYBODY)
            viewer = self._admitted(path, decision)
            return viewer if isinstance(viewer, _Reply) else self._in_turn(routes, path, query, viewer)

        def _done(self) -> _Reply:
            """With a form that was sent."""
            path = self.path.partition("?")[0]
            viewer = self._admitted(path, access.get(path, Access.ADMIN if path in forms else Access.SIGNED_IN))
            if isinstance(viewer, _Reply):
                return viewer
            if path not in forms:
                return self._no_such_method()
            if viewer.name is None:
                return _Reply(403, to_json({"error": NO_NAME}))
            if not is_from_here(self.headers, public_url):
                return _Reply(403, to_json({"error": FROM_ELSEWHERE}))
            form = self._form()
            return form if isinstance(form, _Reply) else self._in_turn(forms, path, form, viewer)

        def _form(self) -> str | _Reply:
            """The request's body."""
            length = self.headers.get("Content-Length", "")
            if not (length.isascii() and length.isdigit()):
                return _Reply(411, b'{"error":"a form comes with its Content-Length"}')
            if len(length) > len(str(MAX_FORM_BYTES)) or int(length) > MAX_FORM_BYTES:
                return _Reply(413, to_json({"error": f"a form may have at most {MAX_FORM_BYTES} bytes"}))
            if self.headers.get_content_type() != FORM_TYPE:
                return _Reply(415, to_json({"error": f"send a form as {FORM_TYPE}"}))
            return self.rfile.read(int(length)).decode("ascii", "replace")

        def _in_turn(self, table: Mapping[str, Route], path: str, query: str, viewer: Viewer) -> _Reply:
            if not slots.acquire(blocking=False):
                return _Reply(503, b'{"error":"too many requests at once"}')
            try:
                return self._answer(table, path, query, viewer)
            finally:
                slots.release()

        def _no_such_method(self) -> _Reply:
            allowed = METHODS_OF_FORMS if self.path.partition("?")[0] in forms else METHODS
            words = {"error": f"use {' or '.join(allowed)} here"}
            return _Reply(405, to_json(words), headers=(("Allow", ", ".join(allowed)),))

        def _admitted(self, path: str, decision: Access) -> Viewer | _Reply:
            """Who asks, or how they are refused. A stranger does not learn which pages there are."""
            door: Door = self.server.door
            viewer = door.admit(self.headers.get("Authorization"), self.address_string())
            if isinstance(viewer, Refusal):
                return _Reply(viewer.status, to_json({"error": viewer.text}), headers=viewer.headers)
            if not may_read(viewer, decision):
                return _Reply(403, to_json({"error": _not_allowed(viewer, path, decision)}))
            return viewer

        def _answer(self, table: Mapping[str, Route], path: str, query: str, viewer: Viewer) -> _Reply:
            route = table.get(path)
            if route is None:
                return _Reply(404, to_json({"error": "no such page", "pages": sorted(routes)}))
            try:
                fields = _of_form(query) if table is forms else _of_query(query)
                answer = route(Request(fields, self.headers.get("Accept"), viewer))
            except (BadRequestError, NotFoundError, UnavailableError) as error:
                return _Reply(_STATUS[type(error)], to_json({"error": str(error)}))
            except Exception:
                log.exception("the API failed on %s", path)
                return _Reply(500, b'{"error":"internal error; see the coordinator\'s log"}')
            return _Reply(answer.status, answer.body, answer.content_type, answer.headers)

        def _send(self, reply: _Reply) -> None:
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Content-Length", str(len(reply.body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            ours = {name.lower() for name, _ in reply.headers} | {"x-content-type-options"}
            of_the_door = (more for more in self.server.door.headers if more[0].lower() not in ours)
            for name, value in (*reply.headers, *of_the_door):
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """What the base class says to other methods, as everything else here is said."""
            if code == HTTPStatus.NOT_IMPLEMENTED:
                self._send(self._no_such_method())
            else:
                super().send_error(code, message, explain)

        def address_string(self) -> str:
            return self.client_address[0] if self.client_address else "local"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            log.debug("%s %s", self.address_string(), format % args)

    return Handler


def _of_query(query: str) -> Mapping[str, str]:
    """Raises ``BadRequestError``, as ``_parsed`` does."""
    return {name: value for name, value in _parsed(query) if value}


def _of_form(body: str) -> Mapping[str, str]:
    """Raises ``BadRequestError``, too, where a field is there twice: nobody knows which of its values is meant."""
    fields = _parsed(body)
    for name, times in Counter(name for name, _ in fields).items():
        if times > 1:
            raise BadRequestError(f"the form has {name[:40]} twice: send each field once")
    return dict(fields)


def _parsed(text: str) -> list[tuple[str, str]]:
    """Raises ``BadRequestError`` for one of more parts than any page has."""
    try:
        return parse_qsl(text[:MAX_QUERY_CHARS], keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise BadRequestError(f"the query cannot be read: {error}") from None


def _not_allowed(viewer: Viewer, path: str, decision: Access) -> str:
    lists = "api_admins or metrics_readers" if decision is Access.METRICS else "api_admins"
    return f"{viewer.name} may not read {path}: an admin of this service can add them to {lists}"
