"""The coordinator's HTTP API: fixed paths, read only except for a table of forms. Loopback by default.

Nothing in a request chooses a file, a name or an unbounded amount of work: paths are looked up in a table, parameters
are bounded numbers and texts, and a limited number of requests is served at a time. A body is read only from a form,
only from a viewer with a name (but for forms to log in and out), and from a browser only if it comes from a page of
this API. ``route_access`` says who may read which page.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

from tidegauge.cluster.api.route_access import ROUTE_ACCESS, Access, may_read
from tidegauge.core.wire import to_json
from tidegauge.http.access import (
    EVERYBODY,
    NAMESPACE_HEADER,
    OPEN_DOOR,
    LoginDoor,
    NotAllowedError,
    Refusal,
    RightsUnknownError,
    Viewer,
)
from tidegauge.http.connections import ServerLimits
from tidegauge.http.door import offers_login_page
from tidegauge.http.local_server import LocalServing
from tidegauge.http.served_hosts import ServedHosts
from tidegauge.http.server import HTML_TYPE, App, HttpRequest, HttpServer, Response

# Which page a browser had a form from that it sends to the HTTP API: one of this API, or one of another site.

_PORTS = {"http": 80, "https": 443}


def is_from_here(headers: Message[str, str], public_url: str | None, *, scheme: str = "http") -> bool:
    """Whether a form may be accepted: otherwise any page on the web could make a browser that knows a password send
    one.

    ``Origin``, and without it ``Referer``, must name ``public_url``, the address of a proxy that changes ``Host``, or
    the host and port of ``Host``: where this server speaks TLS itself, with ``https``. Where it does not, a proxy that
    keeps ``Host`` may, so that either scheme is right. A browser that hides its origin sends ``null``. Commands and
    scripts send neither. Browsers send ``Sec-Fetch-Site`` over TLS and to localhost only.
    """
    if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        return False
    sender = headers.get("Origin", headers.get("Referer"))
    if sender is None:
        return True
    schemes = ("https",) if scheme == "https" else ("http", "https")
    here = (_place(f"{one}://{headers.get('Host', '')}") for one in schemes)
    place = _place(sender)
    return place is not None and place in (*here, _place(public_url or ""))


def _place(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of a URL; ``None`` without one of them."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and port else None


log = logging.getLogger(__name__)

MAX_REQUESTS_AT_ONCE = 16
"""Requests in work at once, on the port and on the local socket each: people, scripts, one or two Prometheus servers.
More is a mistake, answered with 503. A response that is being sent does not count; ``LIMITS`` bounds those."""
LIMITS = ServerLimits(connections=64, ask_within_s=10.0, whole_s=120.0)
"""A history of weeks takes the coordinator seconds to tell, and a slow client some more to read."""
MAX_QUERY_CHARS = 16_000
"""A job id may have 1024 characters, each of them up to 12 in a URL."""
MAX_FIELDS = 32
MAX_FORM_BYTES = 8192
"""Of a body: a comment of 500 characters has up to 6,000 in a form."""
METHODS, METHODS_OF_FORMS = ("GET", "HEAD"), ("GET", "HEAD", "POST")
FORM_TYPE = "application/x-www-form-urlencoded"


def _page_headers(*, form_action: str, referrer_policy: str) -> tuple[tuple[str, str], ...]:
    """Headers of pages for people: a browser runs and fetches nothing, whatever names jobs choose."""
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action {form_action}; "
        "frame-ancestors 'none'"
    )
    return (("Content-Security-Policy", policy), ("Referrer-Policy", referrer_policy))


HTML_HEADERS = _page_headers(form_action="'none'", referrer_policy="no-referrer")
FORM_HEADERS = _page_headers(form_action="'self'", referrer_policy="same-origin")
"""Of a page with a form that comes back here. With ``no-referrer`` a browser would not say that it comes from here."""
LOGIN_PATH = "/login"
NO_NAME = (
    "this service has no authentication, so it cannot tell who answers: on the head, its user or root answers with "
    "`tidegauge policy grade`, or asks with `tidegauge profile --now`; with authentication (docs/web_access.md) "
    "everyone can"
)
OTHER_HOST = (
    "without authentication this service answers at an IP address, localhost, its machine's host name and the host of "
    "public_url, not at the name in Host, which may be another site's: set public_url to the address that people use, "
    "or set up authentication (docs/web_access.md)"
)
FROM_ELSEWHERE = (
    "this form was sent from a page of another site: open the page here and answer there. Behind a "
    "proxy that changes Host, set public_url to the address that browsers show"
)


class BadRequestError(ValueError):
    """The request is invalid; the message is sent with status 400."""


class NotFoundError(LookupError):
    """The requested thing does not exist; the message is sent with status 404."""


class UnavailableError(Exception):
    """The answer needs something that is unavailable now; the message is sent with status 503."""


STATUS: Mapping[type[Exception], int] = {
    BadRequestError: 400, NotAllowedError: 403, NotFoundError: 404, UnavailableError: 503, RightsUnknownError: 503,
}  # fmt: skip
"""Errors of a route by the status that they are answered with."""


@dataclass(frozen=True)
class Request:
    """The parts of a request that an answer may depend on."""

    query: Mapping[str, str]
    """Of a form that was sent: its fields, none of which it had twice."""
    accept: str | None
    viewer: Viewer = EVERYBODY
    """Who asks: what they may see of an ``Access.OWN`` page is for its route to see to."""
    sent: HttpRequest | None = None
    """As it came; only the pages to log in and out look at it."""

    @property
    def http(self) -> HttpRequest:
        assert self.sent is not None, "it came over HTTP"
        return self.sent

    def number(self, name: str, *, default: int, most: int = 10**15 - 1) -> int:
        """A whole number from 0 to ``most`` from the query. Raises ``BadRequestError``."""
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise BadRequestError(f"{name} must be a whole number, not {text[:40]!r}")
        if int(text) > most:
            raise BadRequestError(f"{name} may be at most {most}, not {text}")
        return int(text)

    def text(self, name: str, *, most_chars: int) -> str:
        """A required text from the query, of any content. Raises ``BadRequestError``."""
        text = self.query.get(name)
        if not text:
            raise BadRequestError(f"{name} is missing")
        if len(text) > most_chars:
            raise BadRequestError(f"{name} may have at most {most_chars} characters, not {len(text)}")
        return text

    def only(self, *names: str) -> None:
        """Raises ``BadRequestError`` for a form with another field, which would be ignored."""
        for name in self.query:
            if name not in names:
                fields = f"{', '.join(names[:-1])} and {names[-1]}"
                raise BadRequestError(f"the form has an unknown field {name[:40]!r}; its fields are {fields}")


Route = Callable[[Request], Response]
Namespaces = Callable[[], Collection[str]]
RefusalPage = Callable[[str, Refusal], Response]
"""A refusal as a page for people who asked for this path."""
NO_FORMS: Mapping[str, Route] = {}


def json_route(value: Callable[[Request], object]) -> Route:
    """A route that answers with ``to_json`` of what ``value`` returns."""
    return lambda request: Response(to_json(value(request)))


def html_route(page: Callable[[Request], str], headers: tuple[tuple[str, str], ...] = HTML_HEADERS) -> Route:
    """A route that answers with the page that ``page`` returns: a whole document including its style sheet."""
    return lambda request: html_answer(page(request), headers)


def html_answer(page: str, headers: tuple[tuple[str, str], ...] = HTML_HEADERS, *, status: int = 200) -> Response:
    return Response(page.encode(errors="replace"), HTML_TYPE, headers, status)


class HttpApi(HttpServer):
    """The server of a table of pages: daemon threads from ``start`` to ``stop``."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        host: str,
        port: int,
        door: LoginDoor = OPEN_DOOR,
        access: Mapping[str, Access] = ROUTE_ACCESS,
        forms: Mapping[str, Route] = NO_FORMS,
        local_socket: Path | None = None,
        public_url: str | None = None,
        hosts: ServedHosts | None = None,
        refusal_page: RefusalPage | None = None,
        namespaces: Namespaces = frozenset,
    ) -> None:
        """``forms``: handlers of forms by path; whoever may read a page may send its form, if they have a name.
        ``local_socket``: a Unix socket that serves the same pages without TLS, to root and to the user of this process
        only. ``public_url``: the setting; a form may also come from a page there. ``hosts``: at which a client without
        a name is answered; by default those of this machine and of the settings. ``refusal_page``: what a browser is
        shown that opens a page; by default the JSON that scripts get. ``namespaces``: of Kubernetes, of all jobs that
        are known."""
        self._local_socket = local_socket
        hosts = hosts or ServedHosts(host, public_url)
        # Slots of its own for each: what strangers ask for takes none from the head's own commands.
        app, local_app = (
            _Pages(routes, forms, access, public_url, hosts, refusal_page, namespaces, one).app()
            for one in (door, OPEN_DOOR)
        )
        self._local = None if local_socket is None else LocalServing(local_socket, local_app)
        super().__init__(app, host=host, port=port, door=door)

    def start(self) -> None:
        super().start()
        if self._local is not None:
            problem = self._local.start()
            if problem is not None:
                log.warning("commands on this node use %s for now: %s: %s", self.url, self._local_socket, problem)

    @property
    def url(self) -> str:
        """The address for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"{self.door.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def stop(self, *, drain_s: float = 0.0) -> None:
        super().stop(drain_s=drain_s)
        if self._local is not None:
            self._local.stop()


class _Pages:
    """The handlers of one socket."""

    def __init__(
        self, routes: Mapping[str, Route], forms: Mapping[str, Route], access: Mapping[str, Access],
        public_url: str | None, hosts: ServedHosts, refusal_page: RefusalPage | None, namespaces: Namespaces,
        door: LoginDoor,
    ) -> None:  # fmt: skip
        self._door = door
        self._routes = routes
        self._forms = forms
        self._access = access
        self._public_url = public_url
        self._hosts = hosts
        self._refusal_page = refusal_page
        self._namespaces = namespaces
        self._slots = threading.BoundedSemaphore(MAX_REQUESTS_AT_ONCE)

    def app(self) -> App:
        methods = {"GET": self._read, "HEAD": self._read, "POST": self._sent, None: self._no_such_method}
        return App({(method, None): handler for method, handler in methods.items()}, LIMITS, "coordinator")

    def _read(self, request: HttpRequest) -> Response | Refusal:
        answer = self._looked_up(request)
        if not isinstance(answer, Refusal) or answer.status == 401 or self._refusal_page is None:
            return answer  # a browser asks for name and password by itself
        return self._refusal_page(request.path, answer) if _is_for_people(request) else answer

    def _looked_up(self, request: HttpRequest) -> Response | Refusal:
        access = self._access.get(request.path, Access.ADMIN if request.path in self._routes else Access.SIGNED_IN)
        if access is Access.OPEN:  # costs nothing, and whoever asks whether this lives has to be answered
            return self._answer(self._routes, request, request.query, EVERYBODY)
        viewer = self._admitted(request, access)
        if isinstance(viewer, Refusal):
            return self._refused(request, viewer)
        return self._in_turn(self._routes, request, request.query, viewer)

    def _admitted(self, request: HttpRequest, access: Access) -> Viewer | Refusal:
        """The viewer, or the refusal. A stranger does not learn which pages exist."""
        viewer = request.admit()
        if isinstance(viewer, Refusal):
            return viewer
        # With TLS a browser has compared the name with the certificate's. Scrapers have names of the site's.
        is_looked_at = viewer.name is None and self._door.scheme == "http" and access is not Access.METRICS
        if is_looked_at and not self._hosts.serve(request.headers.get("Host")):
            return Refusal(421, OTHER_HOST)
        try:
            viewer = self._with_rights(request, viewer, access)
        except RightsUnknownError as error:
            return Refusal(503, str(error), (("Retry-After", "5"),))
        if may_read(viewer, access):
            return viewer
        lists = "api_admins or metrics_readers" if access is Access.METRICS else "api_admins"
        return Refusal(
            403, f"{viewer.name} may not read {request.path}: an admin of this service can add them to {lists}"
        )

    def _with_rights(self, request: HttpRequest, viewer: Viewer, access: Access) -> Viewer:
        """The viewer as far as the page depends on rights elsewhere. Raises ``RightsUnknownError``."""
        wanted = request.headers.get(NAMESPACE_HEADER)
        if access is Access.OWN and request.method in METHODS and wanted is not None:
            return viewer.with_rights([wanted]).narrowed(wanted)
        if viewer.rights is None:
            return viewer
        return viewer.with_rights(self._namespaces() if access is Access.OWN else ())

    def _refused(self, request: HttpRequest, refusal: Refusal) -> Response | Refusal:
        """The refusal; a person with a browser, who has yet to log in, is led there."""
        headers = request.headers
        if refusal.status != 401 or LOGIN_PATH not in self._routes or "Authorization" in headers:
            return refusal
        if not is_browser(headers.get("Accept")) or not offers_login_page(self._door.login_methods()):
            return refusal
        wanted = f"{request.path}?{request.query}" if request.query else request.path
        login = seen_from(request.path, f"{LOGIN_PATH}?next={quote(wanted, safe='/')}")
        return Response(b"", headers=(("Location", login),), status=303)

    def _sent(self, request: HttpRequest) -> Response | Refusal:
        path = request.path
        access = self._access.get(path, Access.ADMIN if path in self._forms else Access.SIGNED_IN)
        viewer = EVERYBODY if access is Access.OPEN else self._admitted(request, access)
        if isinstance(viewer, Refusal):
            return self._refused(request, viewer)
        if path not in self._forms:
            return self._no_such_method(request)
        if viewer.name is None and access is not Access.OPEN:
            return Refusal(403, NO_NAME)
        if not is_from_here(request.headers, self._public_url, scheme=self._door.scheme):
            return Refusal(403, FROM_ELSEWHERE)
        if request.headers.get_content_type() != FORM_TYPE:
            return Refusal(415, f"send a form as {FORM_TYPE}")
        form = request.body(MAX_FORM_BYTES, "shorten the comment")
        if isinstance(form, Refusal):
            return form
        body = form.decode("ascii", "replace")
        if access is Access.OPEN:  # with limits of its own: strangers take no slot of those who are known
            return self._answer(self._forms, request, body, viewer)
        return self._in_turn(self._forms, request, body, viewer)

    def _no_such_method(self, request: HttpRequest) -> Refusal:
        allowed = METHODS_OF_FORMS if request.path in self._forms else METHODS
        return Refusal(405, f"use {' or '.join(allowed)} here", (("Allow", ", ".join(allowed)),))

    def _in_turn(
        self, table: Mapping[str, Route], request: HttpRequest, query: str, viewer: Viewer
    ) -> Response | Refusal:
        if not self._slots.acquire(blocking=False):
            return Refusal(503, "too many requests at once")
        try:
            return self._answer(table, request, query, viewer)
        finally:
            self._slots.release()

    def _answer(
        self, table: Mapping[str, Route], request: HttpRequest, query: str, viewer: Viewer
    ) -> Response | Refusal:
        route = table.get(request.path)
        if route is None and self._refusal_page is not None and _is_for_people(request):
            return Refusal(404, "there is no such page")
        if route is None:
            return Response(to_json({"error": "no such page", "pages": sorted(self._routes)}), status=404)
        try:
            fields = _of_form(query) if table is self._forms else _of_query(query)
            return route(Request(fields, request.headers.get("Accept"), viewer, request))
        except tuple(STATUS) as error:
            return Refusal(STATUS[type(error)], str(error))


def is_browser(accept: str | None) -> bool:
    """Whether a client with this ``Accept`` shows what it gets to a person: scripts ask for anything, or for JSON."""
    return "text/html" in (accept or "")


def _is_for_people(request: HttpRequest) -> bool:
    return is_browser(request.headers.get("Accept")) and not request.path.startswith("/api/")


def seen_from(page: str, path: str) -> str:
    """The address of ``path`` relative to ``page``, both as this server has them: right also where a proxy serves them
    below a path of its own."""
    return "/".join([".."] * (page.count("/") - 1) or ["."]) + path


def _of_query(query: str) -> Mapping[str, str]:
    """Raises ``BadRequestError``, as ``_parsed`` does."""
    return {name: value for name, value in _parsed(query) if value}


def _of_form(body: str) -> Mapping[str, str]:
    """Raises ``BadRequestError``, also for a field that is there twice: its value would be ambiguous."""
    fields = _parsed(body)
    for name, times in Counter(name for name, _ in fields).items():
        if times > 1:
            raise BadRequestError(f"the form has {name[:40]} twice: send each field once")
    return dict(fields)


def _parsed(text: str) -> list[tuple[str, str]]:
    """Raises ``BadRequestError`` for more fields than any page has."""
    try:
        return parse_qsl(text[:MAX_QUERY_CHARS], keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise BadRequestError(f"the query cannot be read: {error}") from None
