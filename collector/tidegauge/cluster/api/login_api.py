"""Pages to log in and out with a browser, and who a viewer is. They need no script.

A login sends what it was given to the door as an ``Authorization`` header has it, so that both are checked by the same
rules; the session is the door's.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import quote, urlencode

from tidegauge.cluster.api.http_api import (
    FORM_HEADERS,
    LOGIN_PATH,
    BadRequestError,
    Request,
    Route,
    html_answer,
    json_route,
    seen_from,
)
from tidegauge.http.access import LoginDoor, LoginMethod, Refusal, Viewer
from tidegauge.http.server import Response

log = logging.getLogger(__name__)

LOGOUT_PATH = "/logout"
HOME = "/"
"""Where a login leads that was begun by nothing else: the page says as whom."""
MAX_NEXT_CHARS = 2000
MAX_SECRET_CHARS = 8000
MAX_NAME_CHARS = 256
_LOCAL_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]*")
"""Printable ASCII without spaces and backslashes, which browsers take for slashes; never ``//HOST``."""
EMPTY = "Nothing was filled in."
BOTH = "Fill in either the token or credential, or name and password."
NOT_OVER_TLS = (
    "Over plain HTTP your browser would not keep this login. Open this page at the service's https:// address "
    "(public_url)."
)


class LoginQuestion(NamedTuple):
    """What the page to log in shows."""

    methods: frozenset[LoginMethod]
    """The ways in that are on."""
    next_path: str
    viewer: Viewer | None = None
    """Who is logged in already, or needs no login."""
    problem: str | None = None
    """Why the last attempt failed: a sentence that quotes nothing of it."""
    goes_on: str | None = None
    """A relative address to go on to at once: the browser came from another site, for which it keeps the cookie back,
    and shows it when it comes from a page of this one."""


LoginPage = Callable[[LoginQuestion], str]
LogoutPage = Callable[[Viewer | None], str]
"""The viewer in, ``None`` for nobody; a page for people that asks whether to log out."""


class ViewerFacts(NamedTuple):
    """Who asks, and what they see."""

    name: str | None
    """``None``: nobody is asked for a name."""
    sees_all: bool
    reads_metrics: bool
    by_session: bool
    """They logged in at ``/login``, and ``/logout`` ends that."""
    login_methods: tuple[LoginMethod, ...]
    """The ways in that are on."""


def local_path(text: str | None) -> str | None:
    """A path on this server to lead a browser to, as it was given; ``None`` for anything else."""
    if text is None or len(text) > MAX_NEXT_CHARS or not _LOCAL_PATH.fullmatch(text):
        return None
    return None if text.partition("?")[0] in (LOGIN_PATH, LOGOUT_PATH) else text


class LoginPages:
    """Routes and forms by path."""

    def __init__(self, door: LoginDoor, login: LoginPage, logout: LogoutPage) -> None:
        self._door = door
        self._login = login
        self._logout = logout

    def routes(self) -> dict[str, Route]:
        return {"/api/v1/me": json_route(self._me), LOGIN_PATH: self._asked, LOGOUT_PATH: self._leaving}

    def forms(self) -> dict[str, Route]:
        return {LOGIN_PATH: self._sent, LOGOUT_PATH: self._left}

    def _me(self, request: Request) -> ViewerFacts:
        viewer = request.viewer
        return ViewerFacts(viewer.name, viewer.sees_all, viewer.reads_metrics, viewer.by_session, self._methods())

    def _methods(self) -> tuple[LoginMethod, ...]:
        on = self._door.login_methods()
        return tuple(method for method in LoginMethod if method in on)

    def _asked(self, request: Request) -> Response:
        next_path = local_path(request.query.get("next"))
        viewer = request.http.admit()
        if isinstance(viewer, Refusal):
            if next_path is not None and _may_hide_a_cookie(request):
                again = f"{LOGIN_PATH}?{urlencode({'next': next_path, 'again': '1'})}"
                return self._page(next_path, goes_on=seen_from(LOGIN_PATH, again))
            problem = None if viewer.status == 401 else viewer.text
            return self._page(next_path, problem=problem)
        return _led_to(next_path) if next_path is not None else self._page(None, viewer=viewer)

    def _sent(self, request: Request) -> Response:
        request.only("next", "token", "name", "password")
        form = request.query
        next_path = local_path(form.get("next"))
        try:
            authorization = _authorization(form)
        except BadRequestError as error:
            return self._page(next_path, problem=str(error), status=400)
        headers = request.http.headers
        result = self._door.log_in(authorization, request.http.peer, headers)
        if isinstance(result, Refusal):
            return self._page(next_path, problem=result.text, status=result.status, headers=_without_box(result))
        if result.cookie.startswith("__Host-") and headers.get("Origin", "").lower().startswith("http://"):
            return self._page(next_path, problem=NOT_OVER_TLS, status=400)
        log.info("%s logged in", result.name)
        return _led_to(next_path or HOME, ("Set-Cookie", result.cookie))

    def _leaving(self, request: Request) -> Response:
        viewer = request.http.admit()
        return html_answer(self._logout(None if isinstance(viewer, Refusal) else viewer), FORM_HEADERS)

    def _left(self, request: Request) -> Response:
        cookie = self._door.log_out(request.http.headers)
        return _led_to(LOGIN_PATH, *([("Set-Cookie", cookie)] if cookie else []))

    def _page(
        self, next_path: str | None, *, viewer: Viewer | None = None, problem: str | None = None,
        goes_on: str | None = None, status: int = 200, headers: tuple[tuple[str, str], ...] = (),
    ) -> Response:  # fmt: skip
        question = LoginQuestion(self._door.login_methods(), next_path or "", viewer, problem, goes_on)
        return html_answer(self._login(question), (*FORM_HEADERS, *headers), status=status)


def _authorization(form: Mapping[str, str]) -> str:
    """The ``Authorization`` that says the same. Raises ``BadRequestError``."""
    token, name, password = form.get("token", "").strip(), form.get("name", ""), form.get("password", "")
    if token and (name or password):
        raise BadRequestError(BOTH)
    if len(token) > MAX_SECRET_CHARS or len(name) > MAX_NAME_CHARS or len(password) > MAX_SECRET_CHARS:
        raise BadRequestError("This is too long for a token, a name or a password.")
    if token:
        return f"{'Munge' if token.startswith('MUNGE:') else 'Bearer'} {token}"
    if not name:
        raise BadRequestError(EMPTY)
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def _may_hide_a_cookie(request: Request) -> bool:
    """Whether a browser may have a cookie that it did not send, as ``SameSite=Strict`` has it of links elsewhere."""
    if "again" in request.query or "Cookie" in request.http.headers:
        return False
    return request.http.headers.get("Sec-Fetch-Site") not in ("same-origin", "none")


def _led_to(path: str, *headers: tuple[str, str]) -> Response:
    """From the page to log in or out, which both are at the root."""
    address = seen_from(LOGIN_PATH, quote(path, safe="/?&=%:;,+@!$'()*~#-._"))
    return Response(b"", headers=(("Location", address), *headers), status=303)


def _without_box(refusal: Refusal) -> tuple[tuple[str, str], ...]:
    """Its headers but for the challenges, to which a browser would answer with a box in front of the page."""
    return tuple(header for header in refusal.headers if header[0] != "WWW-Authenticate")
