"""Sessions and the door that begins them: who is in by a cookie, for how long, and what ends it at once."""

from __future__ import annotations

import base64
from email.message import Message
from pathlib import Path

import bcrypt
import pytest

from login_world import NAMES, FakeAccess, FakeMunged, FakeReviewer, FakeTime, headers, with_cookie
from tidegauge.http.access import NO_HEADERS, LoggedIn, LoginMethod, Refusal, Viewer
from tidegauge.http.credentials import BesideFiles
from tidegauge.http.door import WebDoor
from tidegauge.http.munge import MungeLogin
from tidegauge.http.namespace_rights import AccessReviews
from tidegauge.http.sessions import COOKIE, MAX_SESSIONS_OF_ONE, SECURE_COOKIE, Identity, Sessions
from tidegauge.http.token_reviews import KEPT_S, ReviewedUser, TokenReviews
from tidegauge.http.tokens import make_token, token_line
from tidegauge.settings import Settings

PASSWORD = "CANARY-password"
TOKENS = {name: make_token() for name in ("ada", "bob", "root")}
JWT = "eyJhbGciOi.eyJzdWIiOi.c2ln"
HOUR_S = 3600.0


def users_file(file: Path, *names: str) -> Path:
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    file.write_text("basic_auth_users:\n" + "".join(f"  {name}: {hashed}\n" for name in names))
    return file


def tokens_file(file: Path, *names: str) -> Path:
    file.write_text("\n".join(token_line(name, TOKENS[name]) for name in names))
    file.chmod(0o600)
    return file


class Site:
    """A door with every way in, and what is behind each."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.time = FakeTime()
        self.munged = FakeMunged()
        self.names = dict(NAMES)
        self.reviewer = FakeReviewer()
        self.tokens = tokens_file(folder / "tokens", "ada", "bob", "root")
        self.web = users_file(folder / "web.yml", "carol")
        self.beside = BesideFiles(
            munge=MungeLogin(self.munged.uid_of, name_of=self.names.get, monotonic_s=self.time),
            kubernetes=TokenReviews(self.reviewer, monotonic_s=self.time),
            access=AccessReviews(FakeAccess(), monotonic_s=self.time),
        )
        chosen = {"api_tokens_file": self.tokens, "web_config_file": self.web, "api_admins": "root", **settings}
        self.door = WebDoor(Settings.model_validate(chosen), self.beside, monotonic_s=self.time)

    def log_in(self, authorization: str, shown: Message[str, str] = NO_HEADERS) -> str:
        answer = self.door.log_in(authorization, "10.0.0.9", shown)
        assert isinstance(answer, LoggedIn), answer
        return answer.cookie

    def who(self, shown: Message[str, str]) -> str | int | None:
        """The name, or the status of the refusal."""
        viewer = self.door.admit(None, "10.0.0.9", shown)
        return viewer.status if isinstance(viewer, Refusal) else viewer.name


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def bearer(name: str) -> str:
    return f"Bearer {TOKENS[name]}"


def basic(name: str, password: str = PASSWORD) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_a_login_is_a_cookie_that_shows_who_one_is_and_no_script_reads(site: Site) -> None:
    cookie = site.log_in(bearer("root"))
    assert cookie.startswith(f"{COOKIE}=")
    assert cookie.split("; ")[1:] == ["Path=/", "HttpOnly", "SameSite=Strict", "Max-Age=43200"]
    seen = site.door.admit(None, "a", with_cookie(cookie))
    assert seen == Viewer("root", sees_all=True, reads_metrics=True, by_session=True)
    assert site.who(NO_HEADERS) == 401


def test_behind_tls_of_a_proxy_the_cookie_is_of_this_host_alone(tmp_path: Path) -> None:
    site = Site(tmp_path, public_url="HTTPS://head.example")
    cookie = site.log_in(bearer("ada"))
    assert cookie.startswith(f"{SECURE_COOKIE}=")
    assert "; Secure" in cookie
    value = cookie.partition("=")[2]
    assert site.who(with_cookie(cookie)) == "ada"
    assert site.who(with_cookie(f"{COOKIE}={value}")) == 401, "a neighbour's host could have set that one"


def test_a_session_ends_with_its_hours(site: Site) -> None:
    cookie = site.log_in(bearer("ada"))
    site.time.now_s += 12 * HOUR_S - 1
    assert site.who(with_cookie(cookie)) == "ada"
    site.time.now_s += 1
    assert site.who(with_cookie(cookie)) == 401


def test_a_session_ends_at_the_logout_wherever_its_cookie_went(site: Site) -> None:
    cookie, other = site.log_in(bearer("ada")), site.log_in(bearer("ada"))
    assert "Max-Age=0" in site.door.log_out(with_cookie(cookie))
    assert (site.who(with_cookie(cookie)), site.who(with_cookie(other))) == (401, "ada")


def test_another_process_knows_no_session(tmp_path: Path) -> None:
    cookie = Site(tmp_path).log_in(bearer("ada"))
    assert Site(tmp_path).who(with_cookie(cookie)) == 401


def test_a_session_ends_with_the_line_of_its_token_and_does_not_come_back(site: Site) -> None:
    adas, bobs = site.log_in(bearer("ada")), site.log_in(bearer("bob"))
    tokens_file(site.tokens, "bob")
    assert (site.who(with_cookie(adas)), site.who(with_cookie(bobs))) == (401, "bob")
    tokens_file(site.tokens, "ada", "bob")
    assert site.who(with_cookie(adas)) == 401


def test_a_session_is_not_of_whoever_gets_the_token_later(site: Site) -> None:
    cookie = site.log_in(bearer("ada"))
    site.tokens.write_text(token_line("root", TOKENS["ada"]))
    assert site.who(with_cookie(cookie)) == 401


def test_a_session_ends_with_the_password_or_the_user(site: Site) -> None:
    cookie = site.log_in(basic("carol"))
    assert site.who(with_cookie(cookie)) == "carol"
    users_file(site.web, "carol")  # another salt: as after a new password
    assert site.who(with_cookie(cookie)) == 401
    again = site.log_in(basic("carol"))
    users_file(site.web, "dora")
    assert site.who(with_cookie(again)) == 401


def test_with_further_ways_in_the_last_user_may_be_taken_from_the_file(tmp_path: Path) -> None:
    site = Site(tmp_path, api_tokens_file=None)
    cookie = site.log_in(basic("carol"))
    site.web.write_text("")
    assert site.who(with_cookie(cookie)) == 401
    assert site.door.problem() is None


def test_a_credential_of_munge_begins_one_session_which_ends_with_the_user(site: Site) -> None:
    credential = f"Munge {site.munged.credential(1, 1001)}"
    cookie = site.log_in(credential)
    assert site.who(with_cookie(cookie)) == "ada"
    refused = site.door.log_in(credential, "a", NO_HEADERS)
    assert isinstance(refused, Refusal)
    assert refused.status == 401
    del site.names[1001]
    assert site.who(with_cookie(cookie)) == 401


def test_a_session_by_a_kubernetes_token_is_reviewed_again_and_ends_when_it_is_taken_back(site: Site) -> None:
    site.reviewer.users[JWT] = ReviewedUser("system:serviceaccount:team-a:train", frozenset())
    cookie = site.log_in(f"Bearer {JWT}")
    assert site.who(with_cookie(cookie)) == "system:serviceaccount:team-a:train"
    site.time.now_s += KEPT_S
    site.reviewer.is_away = True
    assert site.who(with_cookie(cookie)) == 503, "not in, and not thrown out either"
    site.reviewer.is_away = False
    assert site.who(with_cookie(cookie)) == "system:serviceaccount:team-a:train"
    site.reviewer.users.clear()
    site.time.now_s += KEPT_S
    assert site.who(with_cookie(cookie)) == 401


def test_no_secret_is_kept_that_could_be_read_without_the_cookie(site: Site) -> None:
    site.reviewer.users[JWT] = ReviewedUser("eve", frozenset())
    keys = [site.log_in(shown).partition("=")[2].partition(";")[0] for shown in (bearer("ada"), f"Bearer {JWT}")]
    kept = repr(vars(site.door._sessions))
    assert "ada" in kept
    assert not [secret for secret in (*keys, TOKENS["ada"], JWT) if secret in kept]


def test_the_key_of_a_session_is_never_the_clients_choice(site: Site) -> None:
    chosen = headers(("Cookie", f"{COOKIE}={'A' * 43}"))
    cookie = site.log_in(bearer("ada"), chosen)
    assert "A" * 43 not in cookie
    assert site.who(chosen) == 401


def test_a_login_ends_the_session_that_the_browser_had(site: Site) -> None:
    before = site.log_in(bearer("ada"))
    after = site.log_in(bearer("bob"), with_cookie(before))
    assert (site.who(with_cookie(before)), site.who(with_cookie(after))) == (401, "bob")


@pytest.mark.parametrize(
    "cookie",
    ["", "x", "{name}=", "{name}=x", "{name}={value}x", "{other}={value}", "{name}={value}; {name}={value}",
     "{name}={stale}; {name}={value}", "{name} {value}", "{name}=\"{value}\"", "{name}={value}\x00", "\xff={value}"],
)  # fmt: skip
def test_nothing_but_the_one_cookie_is_a_session(site: Site, cookie: str) -> None:
    value = site.log_in(bearer("ada")).partition("=")[2].partition(";")[0]
    stale = site.log_in(bearer("bob")).partition("=")[2].partition(";")[0]
    text = cookie.format(name=COOKIE, other=SECURE_COOKIE, value=value, stale=stale)
    assert site.who(headers(("Cookie", text))) == 401
    assert site.who(headers(("Cookie", f"theme=dark; {COOKIE}={value}; x=y"))) == "ada"


def test_two_cookie_headers_with_two_sessions_are_none(site: Site) -> None:
    one, other = (site.log_in(bearer(name)).partition(";")[0] for name in ("ada", "bob"))
    assert site.who(headers(("Cookie", one), ("Cookie", other))) == 401


def test_a_thousand_logins_of_one_push_out_nobody_else(site: Site) -> None:
    bobs = site.log_in(bearer("bob"))
    adas = [site.log_in(bearer("ada")) for _ in range(1000)]
    assert site.who(with_cookie(bobs)) == "bob"
    assert [site.who(with_cookie(one)) for one in adas[-MAX_SESSIONS_OF_ONE:]] == ["ada"] * MAX_SESSIONS_OF_ONE
    assert site.who(with_cookie(adas[0])) == 401
    assert len(site.door._sessions) == MAX_SESSIONS_OF_ONE + 1


def test_sessions_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegauge.http.sessions.MAX_SESSIONS", 50)
    sessions = Sessions(lifetime_s=60, secure=False, monotonic_s=FakeTime())
    cookies = [sessions.begin(Identity(f"u{n}", LoginMethod.TOKEN, frozenset())) for n in range(120)]
    assert len(sessions) == 50
    assert sessions.find(with_cookie(cookies[69])) is None
    assert sessions.find(with_cookie(cookies[70])) is not None


def test_what_a_script_shows_counts_and_not_the_cookie_beside_it(site: Site) -> None:
    shown = with_cookie(site.log_in(bearer("ada")))
    wrong = site.door.admit("Bearer tg_wrong", "a", shown)
    assert isinstance(wrong, Refusal)
    bob = site.door.admit(bearer("bob"), "a", shown)
    assert isinstance(bob, Viewer)
    assert (bob.name, bob.by_session) == ("bob", False)


def test_passwords_at_the_form_wait_as_they_do_in_a_header(site: Site) -> None:
    answers = [site.door.log_in(basic("carol", f"guess {n}"), "10.0.0.66", NO_HEADERS) for n in range(9)]
    assert [one.status for one in answers if isinstance(one, Refusal)] == [401] * 5 + [429] * 4


@pytest.mark.parametrize(("header", "is_asked"), [
    ((), True), (("Sec-Fetch-Mode", "navigate"), True), (("Sec-Fetch-Mode", "cors"), False),
    (("X-Requested-With", "fetch"), False),
])  # fmt: skip
def test_a_script_of_a_page_is_not_answered_with_a_box_for_a_password(
    site: Site, header: tuple[str, str], is_asked: bool
) -> None:
    refusal = site.door.admit(None, "a", headers(header) if header else NO_HEADERS)
    assert isinstance(refusal, Refusal)
    assert any(value.startswith("Basic") for _, value in refusal.headers) is is_asked
    assert ("WWW-Authenticate", "Munge") in refusal.headers


def test_the_ways_in_are_those_of_settings_and_files(site: Site, tmp_path: Path) -> None:
    methods = LoginMethod
    assert site.door.login_methods() == {methods.TOKEN, methods.PASSWORD, methods.MUNGE, methods.KUBERNETES}
    assert WebDoor(Settings()).login_methods() == frozenset()
    users = WebDoor(Settings(web_config_file=users_file(tmp_path / "only", "carol")))
    assert users.login_methods() == {methods.PASSWORD}


def test_a_way_in_without_files_asks_everybody_for_a_name(site: Site) -> None:
    door = WebDoor(Settings(), BesideFiles(munge=site.beside.munge))
    assert isinstance(door.admit(None, "a"), Refusal)
    assert isinstance(door.admit("Munge ", "a"), Refusal)
    viewer = door.admit(f"munge {site.munged.credential(3, 1002)}", "a")
    assert viewer == Viewer("bob", sees_all=False, reads_metrics=False)


def test_a_kubernetes_group_may_be_of_admins_and_a_namespace_makes_nobody_one(tmp_path: Path) -> None:
    site = Site(tmp_path, api_admins="root,group:gpu-admins", metrics_readers="system:serviceaccount:mon:prom")
    users = {
        "a.b.c": ReviewedUser("grace", frozenset({"gpu-admins"})), "d.e.f": ReviewedUser("eve", frozenset({"root"})),
        "g.h.i": ReviewedUser("system:serviceaccount:root:default", frozenset()),
        "j.k.l": ReviewedUser("system:serviceaccount:mon:prom", frozenset()),
        "m.n.o": ReviewedUser("group:gpu-admins", frozenset()),
    }  # fmt: skip
    site.reviewer.users.update(users)
    seen = [site.door.admit(f"Bearer {token}", "a") for token in users]
    assert [one if isinstance(one, Viewer) else one.status for one in seen] == [
        Viewer("grace", sees_all=True, reads_metrics=True), Viewer("eve", sees_all=False, reads_metrics=False),
        Viewer("system:serviceaccount:root:default", sees_all=False, reads_metrics=False),
        Viewer("system:serviceaccount:mon:prom", sees_all=False, reads_metrics=True), 403,
    ]  # fmt: skip


def test_a_token_of_tidegauge_is_never_shown_to_the_api_server(site: Site) -> None:
    for token in (make_token(), TOKENS["ada"], "tg_x"):
        site.door.admit(f"Bearer {token}", "a")
    assert site.reviewer.asked == 0
