"""A user that a proxy names: believed from the proxy alone, and only where it is beyond doubt."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from login_world import headers
from tidegauge.cluster.api.http_api import HttpApi, json_route
from tidegauge.cluster.api.route_access import Access
from tidegauge.http.access import LoginMethod, Refusal, Viewer
from tidegauge.http.credentials import BesideFiles
from tidegauge.http.door import WebDoor
from tidegauge.http.proxy_user import ProxyUser, parse_networks
from tidegauge.http.tokens import make_token, token_line
from tidegauge.settings import Settings
from waiting import PATIENCE_S

HEADER = "X-Forwarded-User"
PROXY = "10.0.0.7"


def proxy(domain: str | None = None) -> ProxyUser:
    return ProxyUser(HEADER, parse_networks([PROXY, "10.9.0.0/28", "fd00::/64"]), domain=domain)


@pytest.mark.parametrize("peer", [PROXY, "10.9.0.15", "::ffff:10.0.0.7", "fd00::5", "fd00::5%eth0"])
def test_a_name_of_a_trusted_proxy_is_the_user(peer: str) -> None:
    assert proxy().user(headers((HEADER.lower(), " ada ")), peer) == "ada"


@pytest.mark.parametrize("peer", ["10.0.0.8", "10.9.0.16", "127.0.0.1", "fd01::5", "", "ada", "10.0.0.7, 1.2.3.4"])
def test_a_header_of_anybody_else_is_as_if_it_were_not_there(peer: str) -> None:
    assert proxy().user(headers((HEADER, "root")), peer) is None


@pytest.mark.parametrize("name", ["x-forwarded_user", "X_Forwarded_User", "X-Forwarded-User2", "HTTP_X_FORWARDED_USER"])
def test_a_header_that_is_called_otherwise_is_none(name: str) -> None:
    assert proxy().user(headers((name, "root")), PROXY) is None


@pytest.mark.parametrize(
    "value",
    ["", " ", "(null)", "ada bob", "ada,root", "ada\r\n root", "ada\x00", "ada\x7f", "ada\u00e9", "ada:x", "-ada",
     "a" * 129, "ada;root", "../ada", "a\tb"],
)  # fmt: skip
def test_a_name_that_is_none_is_refused(value: str) -> None:
    refusal = proxy().user(headers((HEADER, value)), PROXY)
    assert isinstance(refusal, Refusal)
    assert refusal.status == 400
    assert "ada" not in refusal.text


def test_a_header_that_is_there_twice_is_refused_whatever_it_says() -> None:
    assert isinstance(proxy().user(headers((HEADER, "ada"), (HEADER.upper(), "ada")), PROXY), Refusal)


@pytest.mark.parametrize(
    ("domain", "sent", "name"),
    [
        ("site.org", "ada@site.org", "ada"), ("Site.org", "ada@SITE.ORG", "ada"), ("site.org", "ada", "ada"),
        ("site.org", "ada@evil.org", "ada@evil.org"), ("site.org", "ada@x.site.org", "ada@x.site.org"),
        ("site.org", "ada@xsite.org", "ada@xsite.org"), (None, "ada@site.org", "ada@site.org"),
    ],
)  # fmt: skip
def test_a_domain_is_taken_off_only_if_it_is_the_sites(domain: str | None, sent: str, name: str) -> None:
    assert proxy(domain).user(headers((HEADER, sent)), PROXY) == name


@pytest.fixture
def door(tmp_path: Path) -> WebDoor:
    tokens = tmp_path / "tokens"
    tokens.write_text(token_line("bob", TOKEN))
    tokens.chmod(0o600)
    settings = Settings(api_tokens_file=tokens, api_admins="root")
    return WebDoor(settings, BesideFiles(proxy=ProxyUser(HEADER, parse_networks(["127.0.0.1"]))))


TOKEN = make_token()


def test_the_proxys_word_stands_before_what_a_client_sends_along(door: WebDoor) -> None:
    ada = headers((HEADER, "ada"))
    assert door.admit("Basic eDp5", "127.0.0.1", ada) == Viewer("ada", sees_all=False, reads_metrics=False)
    assert door.admit(None, "127.0.0.1", headers((HEADER, "root"))) == Viewer("root", sees_all=True, reads_metrics=True)
    assert isinstance(door.admit(None, "10.0.0.1", headers((HEADER, "root"))), Refusal)
    bob = door.admit(f"Bearer {TOKEN}", "10.0.0.1", headers((HEADER, "root")))
    assert isinstance(bob, Viewer)
    assert bob.name == "bob"
    assert LoginMethod.PROXY in door.login_methods()


def test_a_proxy_that_names_nobody_is_treated_like_anybody(door: WebDoor) -> None:
    refusal = door.admit(None, "127.0.0.1", headers())
    assert isinstance(refusal, Refusal)
    assert refusal.status == 401
    assert isinstance(door.admit(f"Bearer {TOKEN}", "127.0.0.1", headers()), Viewer)


@pytest.mark.parametrize(
    "lines",
    [
        b"Foo: bar\rX-Forwarded-User: root\r\n", b"X-Forwarded-User : root\r\n", b"X_Forwarded_User: root\r\n",
        b"Foo\r\nX-Forwarded-User: root\r\n", b"Foo: bar\r\n X-Forwarded-User: root\r\n",
        b"X-Forwarded-User: ada\r\n\troot\r\n", b"X-Forwarded-User: ada\r\nX-Forwarded-User: root\r\n",
        b"Foo: bar\x0bX-Forwarded-User: root\r\n", b"Foo: bar\xc2\x85X-Forwarded-User: root\r\n",
    ],
)  # fmt: skip
def test_a_header_that_only_this_server_would_see_makes_nobody_root(door: WebDoor, lines: bytes) -> None:
    """What a client hides in a header that the proxy passes on."""
    who = json_route(lambda request: {"name": request.viewer.name})
    api = HttpApi({"/who": who}, host="127.0.0.1", port=0, door=door, access={"/who": Access.OWN})
    api.start()
    try:
        with socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE_S) as connection:
            connection.sendall(b"GET /who HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert b"root" not in answer
        assert b" 200 " not in answer[:20]
    finally:
        api.stop()
