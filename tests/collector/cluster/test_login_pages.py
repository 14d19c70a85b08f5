"""The pages to log in and out over HTTP, as browsers and scripts ask for them."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from email.message import Message
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode, urljoin

import pytest

from html_text import Page
from login_world import NAMES, FakeAccess, FakeMunged, FakeReviewer
from tidegauge.cluster.api.http_api import FORM_TYPE, HttpApi
from tidegauge.cluster.api.login_api import HOME, LoginPages, local_path
from tidegauge.cluster.api.route_access import Access
from tidegauge.cluster.ray_service.exporter_pages import exporter_pages
from tidegauge.http.credentials import BesideFiles
from tidegauge.http.door_start import open_door
from tidegauge.http.munge import MungeLogin
from tidegauge.http.namespace_rights import AccessReviews
from tidegauge.http.server import HTML_TYPE, Response
from tidegauge.http.sessions import COOKIE
from tidegauge.http.token_reviews import ReviewedUser, TokenReviews
from tidegauge.http.tokens import make_token, token_line
from tidegauge.settings import Settings
from waiting import PATIENCE_S

TOKEN = make_token()
BROWSER = {"Accept": "text/html,application/xhtml+xml;q=0.9", "Sec-Fetch-Site": "none"}
ACCESS = {
    "/login": Access.OPEN, "/logout": Access.OPEN, "/api/v1/me": Access.SIGNED_IN, "/page": Access.OWN,
    "/write": Access.OWN,
}  # fmt: skip


def words(html: str) -> str:
    """The text of a page, as it is read."""
    return " ".join(Page(html).text.split())


class Answer(NamedTuple):
    status: int
    headers: Message
    body: str
    path: str
    """That was asked for."""

    @property
    def leads_to(self) -> str:
        """Where a browser goes from here."""
        return urljoin(self.path, str(self.headers["Location"]))

    @property
    def cookie(self) -> str:
        """What a browser sends back."""
        return self.headers.get("Set-Cookie", "").partition(";")[0]


class Site:
    """An API with pages to log in, one page to see, and one form."""

    def __init__(self, settings: Settings, beside: BesideFiles, tokens: Path) -> None:
        self.tokens = tokens
        self.written: list[str | None] = []
        door = open_door(settings, what="a test", beside=beside)
        pages = exporter_pages(settings)
        logins = LoginPages(door, pages.login, pages.logout)

        def write(request: object) -> Response:
            self.written.append(request.viewer.name)  # type: ignore[attr-defined]  # a Request
            return Response(b"{}")

        self.api = HttpApi(
            {"/page": lambda request: Response(str(request.viewer.name).encode(), HTML_TYPE), **logins.routes()},
            forms={"/write": write, **logins.forms()}, host="127.0.0.1", port=0, door=door, access=ACCESS,
            public_url=settings.public_url,
        )  # fmt: skip

    def ask(self, path: str, headers: Mapping[str, str] = BROWSER, *, form: Mapping[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.api.port, timeout=PATIENCE_S)
        try:
            if form is None:
                connection.request("GET", path, headers=dict(headers))
            else:
                connection.request("POST", path, urlencode(form), {**headers, "Content-Type": FORM_TYPE})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode(), path)
        finally:
            connection.close()

    @property
    def from_here(self) -> dict[str, str]:
        """The headers of a form of this site in a browser."""
        return {"Accept": "text/html", "Origin": f"http://127.0.0.1:{self.api.port}", "Sec-Fetch-Site": "same-origin"}

    def log_in(self, **form: str) -> Answer:
        return self.ask("/login", self.from_here, form=form or {"token": TOKEN})


MUNGED = FakeMunged()
REVIEWER = FakeReviewer({"a.b.c": ReviewedUser("system:serviceaccount:team-a:train", frozenset())})


def served(folder: Path, beside: BesideFiles | None = None, **more: object) -> Site:
    tokens = folder / "tokens"
    tokens.write_text(token_line("ada", TOKEN))
    tokens.chmod(0o600)
    every = BesideFiles(
        munge=MungeLogin(MUNGED.uid_of, name_of=NAMES.get), kubernetes=TokenReviews(REVIEWER),
        access=AccessReviews(FakeAccess()),
    )  # fmt: skip
    settings = Settings.model_validate({"api_tokens_file": tokens, **more})
    return Site(settings, every if beside is None else beside, tokens)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = served(tmp_path)
    site.api.start()
    yield site
    site.api.stop()


def test_a_browser_is_led_to_the_form_and_from_there_to_the_page_it_wanted(site: Site) -> None:
    first = site.ask("/page?job=a%20b&x=1")
    assert (first.status, first.leads_to) == (303, "/login?next=/page%3Fjob%3Da%2520b%26x%3D1")
    assert "WWW-Authenticate" not in first.headers
    form = site.ask(first.leads_to)
    hidden = re.search(r'name="next" value="([^"]+)"', form.body)
    assert hidden is not None
    wanted = hidden[1].replace("&amp;", "&")
    done = site.log_in(token=TOKEN, next=wanted)
    assert (done.status, done.leads_to) == (303, "/page?job=a%20b&x=1")
    page = site.ask(done.leads_to, {**BROWSER, "Cookie": done.cookie})
    assert (page.status, page.body) == (200, "ada")


@pytest.mark.parametrize("path", ["/page", "/api/v1/me", "/no-such-page"])
@pytest.mark.parametrize(
    "headers", [{}, {"Accept": "*/*"}, {"Accept": "application/json"}, {**BROWSER, "Authorization": "Bearer tg_x"}]
)
def test_a_script_gets_401_as_ever(site: Site, path: str, headers: dict[str, str]) -> None:
    answer = site.ask(path, headers)
    assert answer.status == 401
    assert any(value.startswith("Basic") for value in answer.headers.get_all("WWW-Authenticate", ()))


def test_where_passwords_alone_are_asked_for_the_browser_asks_itself(tmp_path: Path) -> None:
    web = tmp_path / "web.yml"
    web.write_text("basic_auth_users: {ada: $2b$04$" + "a" * 53 + "}")
    site = served(tmp_path, BesideFiles(), api_tokens_file=None, web_config_file=web)
    site.api.start()
    try:
        answer = site.ask("/page")
        assert (answer.status, answer.headers["WWW-Authenticate"][:5]) == (401, "Basic")
        form = site.ask("/login").body
        assert 'name="password"' in form
        assert 'name="token"' not in form
    finally:
        site.api.stop()


def test_the_form_shows_the_ways_in_that_are_on_with_a_label_each(site: Site, tmp_path: Path) -> None:
    every = site.ask("/login")
    told = words(every.body)
    assert ("munge -n" in told, "kubectl create token" in told, "tg_" in told) == (True, True, True)
    assert 'name="password"' not in re.sub(r'id="token"[^>]*', "", every.body).replace('id="password"', "")
    for name in re.findall(r'<input id="(\w+)"', every.body):
        assert f'<label for="{name}">' in every.body
    assert "<script" not in every.body
    policy = every.headers["Content-Security-Policy"]
    assert ("default-src 'none'" in policy, "form-action 'self'" in policy, "frame-ancestors 'none'" in policy) == (
        True, True, True,
    )  # fmt: skip
    assert every.headers["Cache-Control"] == "no-store"


def test_every_way_in_leads_in_by_the_form(site: Site) -> None:
    ways = {
        "ada": site.log_in(token=f" {TOKEN}\n"), "bob": site.log_in(token=MUNGED.credential(70, 1002)),
        "system:serviceaccount:team-a:train": site.log_in(token="a.b.c"),
    }  # fmt: skip
    for name, answer in ways.items():
        assert answer.status == 303
        me = json.loads(site.ask("/api/v1/me", {"Cookie": answer.cookie}).body)
        assert me == {
            "name": name, "sees_all": False, "reads_metrics": False, "by_session": True,
            "login_methods": ["token", "munge", "kubernetes"],
        }  # fmt: skip
    by_header = json.loads(site.ask("/api/v1/me", {"Authorization": f"Bearer {TOKEN}"}).body)
    assert (by_header["name"], by_header["by_session"]) == ("ada", False)


@pytest.mark.parametrize(
    ("form", "status", "told"),
    [
        ({"token": "tg_CANARY"}, 401, "is not known here"), ({"token": "MUNGE:CANARY:"}, 401, "used before"),
        ({"name": "CANARY", "password": "x"}, 401, "is not known here"), ({"token": " "}, 400, "Nothing was filled"),
        ({"token": "CANARY", "name": "x"}, 400, "either"), ({"token": "C" * 8001}, 400, "too long"),
        ({"name": "\x00CANARY", "password": ""}, 401, "is not known here"),
        ({"token": "x\r\nX-Forwarded-User: CANARY"}, 401, "is not known here"),
        ({"name": "CANARY" * 99, "password": "x"}, 400, "too long"), ({"what": "CANARY"}, 400, ""),
        ({"token": "C" * 9000}, 413, ""),
    ],
)  # fmt: skip
def test_a_login_that_fails_says_why_and_repeats_nothing(
    site: Site, form: dict[str, str], status: int, told: str
) -> None:
    answer = site.log_in(**form)
    assert answer.status == status
    assert told in words(answer.body)
    assert "CANARY" not in answer.body
    assert "Set-Cookie" not in answer.headers
    assert "WWW-Authenticate" not in answer.headers, "a browser would put its own box before the page"


@pytest.mark.parametrize(
    "wanted",
    [
        "//evil.example", "/\\evil.example", "\\\\evil.example", "https://evil.example", "javascript:alert(1)",
        "/\t/evil.example", "/\n/evil.example", " /page", "/page\r\nSet-Cookie: a=b", "evil.example", "", "page",
        "/login?next=/login", "/logout", "/login", "/p\u00e4ge", "/" + "a" * 2000, "///evil.example", "/ /evil.example",
    ],
)  # fmt: skip
def test_next_leads_nowhere_else(site: Site, wanted: str) -> None:
    assert local_path(wanted) is None
    done = site.log_in(token=TOKEN, next=wanted)
    assert (done.status, done.leads_to) == (303, HOME)
    assert done.headers.get_all("Set-Cookie") == [done.headers["Set-Cookie"]]
    form = site.ask(f"/login?next={quote(wanted)}")
    assert "evil" not in form.body
    led = site.ask(f"/login?next={quote(wanted)}", {**BROWSER, "Cookie": done.cookie})
    assert led.status == 200


@pytest.mark.parametrize(
    "wanted", ["/", "/page", "/job?job_id=a%2Fb&attempt=0", "/.//evil.example", "/%2F%2Fevil.example"]
)
def test_next_leads_to_paths_of_this_server(site: Site, wanted: str) -> None:
    assert site.log_in(token=TOKEN, next=wanted).headers["Location"] == f".{wanted}"


def test_below_the_path_of_a_proxy_one_stays_below_it(site: Site) -> None:
    """The proxy of https://site.example/tidegauge/ takes the path away."""
    below = "https://site.example/tidegauge"

    def led(path: str, answer: Answer) -> str:
        return urljoin(below + path, str(answer.headers["Location"]))

    assert led("/page?x=1", site.ask("/page?x=1")) == f"{below}/login?next=/page%3Fx%3D1"
    assert led("/api/v1/me", site.ask("/api/v1/me")) == f"{below}/login?next=/api/v1/me"
    cookie = site.log_in().cookie
    for path in ("/login?next=/page", "/logout"):
        form = site.ask(path, {**BROWSER, "Cookie": cookie} if path == "/logout" else BROWSER)
        actions = re.findall(r'action="([^"]*)"', form.body)
        assert {urljoin(below + path, action) for action in actions} == {below + path.partition("?")[0]}
    assert led("/login", site.log_in(token=TOKEN, next="/page?x=1")) == f"{below}/page?x=1"
    assert led("/logout", site.ask("/logout", {**site.from_here, "Cookie": cookie}, form={})) == f"{below}/login"
    hop = site.ask("/login?next=/page", {"Accept": "text/html", "Sec-Fetch-Site": "cross-site"})
    onward = re.search(r'http-equiv="refresh" content="0;url=([^"]+)"', hop.body)
    assert onward is not None
    assert urljoin(f"{below}/login", onward[1].replace("&amp;", "&")) == f"{below}/login?next=%2Fpage&again=1"


@pytest.mark.parametrize("path", ["/login", "/logout", "/write"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Referer": "http://evil.example/login"},
    ],
)
def test_a_form_of_another_site_neither_logs_in_nor_out_nor_writes(
    site: Site, path: str, headers: dict[str, str]
) -> None:
    cookie = site.log_in().cookie
    answer = site.ask(path, {"Cookie": cookie, **headers}, form={"token": TOKEN})
    assert answer.status == 403
    assert "Set-Cookie" not in answer.headers
    assert site.ask("/page", {"Cookie": cookie}).status == 200
    assert site.written == []


def test_a_session_may_send_forms_of_this_site(site: Site) -> None:
    cookie = site.log_in().cookie
    assert site.ask("/write", {**site.from_here, "Cookie": cookie}, form={}).status == 200
    assert site.written == ["ada"]


def test_a_form_of_a_session_that_has_ended_leads_to_the_login_and_back(site: Site) -> None:
    cookie = site.log_in().cookie
    site.tokens.write_text("")
    answer = site.ask("/write?x=1", {**site.from_here, "Cookie": cookie}, form={"word": "x"})
    assert (answer.status, answer.leads_to) == (303, "/login?next=/write%3Fx%3D1")
    assert site.written == []


def test_a_logout_ends_the_session_and_opening_the_page_does_not(site: Site) -> None:
    cookie = site.log_in().cookie
    asked = site.ask("/logout", {**BROWSER, "Cookie": cookie})
    assert "You are ada" in words(asked.body)
    assert site.ask("/page", {"Cookie": cookie}).status == 200
    left = site.ask("/logout", {**site.from_here, "Cookie": cookie}, form={})
    assert (left.status, left.leads_to) == (303, "/login")
    assert left.headers["Set-Cookie"].startswith(f"{COOKIE}=; Path=/; HttpOnly")
    assert site.ask("/page", {"Cookie": cookie}).status == 401
    assert site.ask("/logout", site.from_here, form={}).status == 303


def test_a_token_taken_from_the_file_ends_a_session_at_its_next_page(site: Site) -> None:
    cookie = site.log_in().cookie
    site.tokens.write_text("")
    answer = site.ask("/page", {**BROWSER, "Cookie": cookie})
    assert (answer.status, answer.leads_to) == (303, "/login?next=/page")


def test_whoever_is_logged_in_sees_as_whom_and_is_led_on(site: Site) -> None:
    cookie = site.log_in().cookie
    assert "You are ada and see your own jobs" in words(site.ask("/login", {**BROWSER, "Cookie": cookie}).body)
    led = site.ask("/login?next=/page", {**BROWSER, "Cookie": cookie})
    assert (led.status, led.leads_to) == (303, "/page")


@pytest.mark.parametrize("site_of_link", ["cross-site", "same-site", None])
def test_a_link_of_another_site_finds_the_session_that_the_browser_kept_back(
    site: Site, site_of_link: str | None
) -> None:
    """``SameSite=Strict``: of a link in a mail the browser sends no cookie, of a page of this site it does."""
    there = {"Accept": "text/html", **({"Sec-Fetch-Site": site_of_link} if site_of_link else {})}
    cookie = site.log_in().cookie
    login = site.ask("/page", there).leads_to
    hop = site.ask(login, there)
    onward = re.search(r'http-equiv="refresh" content="0;url=([^"]+)"', hop.body)
    assert onward is not None
    path = urljoin(login, onward[1].replace("&amp;", "&"))
    assert path == "/login?next=%2Fpage&again=1"
    assert site.ask(path, {**BROWSER, "Cookie": cookie}).leads_to == "/page"
    assert 'name="token"' in site.ask(path, there).body, "and without one the form, not another hop"


def test_over_plain_http_no_login_is_begun_that_the_browser_would_not_keep(tmp_path: Path) -> None:
    site = served(tmp_path, public_url="https://head.example")
    site.api.start()
    try:
        answer = site.log_in()
        assert (answer.status, "https://" in words(answer.body)) == (400, True)
        assert "Set-Cookie" not in answer.headers
        public = {"Origin": "https://head.example", "Accept": "text/html"}
        cookie = site.ask("/login", public, form={"token": TOKEN}).headers["Set-Cookie"]
        assert cookie.startswith("__Host-")
        assert "Secure" in cookie
    finally:
        site.api.stop()


def test_without_authentication_there_is_nothing_to_log_in_to(tmp_path: Path) -> None:
    site = served(tmp_path, BesideFiles(), api_tokens_file=None)
    site.api.start()
    try:
        assert "asks nobody for a name" in words(site.ask("/login").body)
        assert site.log_in().status == 403
        me = json.loads(site.ask("/api/v1/me", {}).body)
        assert (me["name"], me["sees_all"], me["login_methods"]) == (None, True, [])
    finally:
        site.api.stop()
