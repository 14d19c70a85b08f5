"""`WebDoor`: who comes in, what is read again, and that a broken file neither opens the door nor closes it."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from tidegauge.http import door as web_door
from tidegauge.http.access import EVERYBODY, OPEN_DOOR, Refusal, Viewer
from tidegauge.http.config import WebConfigError
from tidegauge.http.door import BROKEN_AGAIN_S, LATER, WebDoor
from tidegauge.http.door_files import read_door_files
from tidegauge.http.door_start import ClosedDoor, open_door
from tidegauge.http.tokens import make_token, token_line
from tidegauge.settings import Settings, comma_separated
from web_certificates import Authority

PASSWORD = "CANARY-password"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
TOKEN = make_token()


class Place:
    """A folder with the files of a door."""

    def __init__(self, folder: Path) -> None:
        self.web = folder / "web.yml"
        self.tokens = folder / "tokens"
        self.authority = Authority(folder)
        self.write(users=("ada", "prometheus", "root"))

    def write(self, *, users: tuple[str, ...] = (), tls: str | None = None, more: str = "") -> None:
        text = "".join(f"  {name}: {HASH}\n" for name in users)
        cert = f"tls_server_config: {{cert_file: {tls}.pem, key_file: {tls}.key}}\n" if tls else ""
        self.web.write_text(cert + (f"basic_auth_users:\n{text}" if users else "") + more)

    def write_tokens(self, *names: str) -> None:
        self.tokens.write_text("\n".join(token_line(name, TOKEN) for name in names))
        self.tokens.chmod(0o600)

    def door(self, *, tokens: bool = False) -> WebDoor:
        return WebDoor(
            Settings(web_config_file=self.web, api_tokens_file=self.tokens if tokens else None, api_admins="root")
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def basic(name: str, password: str = PASSWORD) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_a_name_and_its_password_come_in_and_admins_and_scrapers_see_more(place: Place) -> None:
    door = place.door()
    assert door.admit(basic("ada"), "a") == Viewer("ada", sees_all=False, reads_metrics=False)
    assert door.admit(basic("prometheus"), "a") == Viewer("prometheus", sees_all=False, reads_metrics=True)
    assert door.admit(basic("root"), "a") == Viewer("root", sees_all=True, reads_metrics=True)


@pytest.mark.parametrize(
    "shown",
    [
        None, "", "Basic", "Basic ", "Basic %%%", "Basic YWRh", "Bearer", "Bearer x", "Digest x", basic("ada", "wrong"),
        basic("nobody"), basic("", ""), "Basic " + base64.b64encode(b"\xff:x").decode(), f"Bearer {HASH}",
        "Basic " + "A" * 100_000,
    ],
    ids=lambda shown: str(shown)[:8],  # the hash is another one in each of xdist's processes
)  # fmt: skip
def test_anybody_else_is_asked_who_they_are(place: Place, shown: str | None) -> None:
    refusal = place.door().admit(shown, "a")
    assert isinstance(refusal, Refusal)
    assert refusal.status == 401
    assert ("WWW-Authenticate", "Bearer") in refusal.headers
    assert "CANARY" not in refusal.text


def test_web_door_answers_429_after_too_many_passwords(place: Place) -> None:
    door = place.door()
    refusals = [door.admit(basic("ada", f"guess {number}"), "10.0.0.66") for number in range(20)]
    assert [one.status for one in refusals if isinstance(one, Refusal)] == [401] * 5 + [429] * 15
    assert refusals[-1] == Refusal(429, LATER, (("Retry-After", "5"),))


def test_a_token_comes_in_whatever_passwords_others_try(place: Place) -> None:
    place.write_tokens("ada")
    door = place.door(tokens=True)
    for number in range(50):
        door.admit(basic("ada", f"guess {number}"), "a")
    assert door.admit(f"Bearer {TOKEN}", "a") == Viewer("ada", sees_all=False, reads_metrics=False)
    assert door.admit(f"bearer {TOKEN}", "a") == Viewer("ada", sees_all=False, reads_metrics=False)


def test_tokens_alone_ask_for_names_too_even_where_nobody_has_one(place: Place) -> None:
    place.write()
    place.write_tokens()
    assert isinstance(place.door(tokens=True).admit(None, "a"), Refusal)


def test_a_web_configuration_without_users_asks_nobody(place: Place) -> None:
    place.write(tls=None)
    assert place.door().admit(None, "a") == EVERYBODY


def test_a_new_user_is_known_and_an_old_one_forgotten_once_the_file_has_changed(place: Place) -> None:
    door = place.door()
    assert isinstance(door.admit(basic("ada"), "a"), Viewer)
    place.write(users=("bob",))
    assert isinstance(door.admit(basic("ada"), "a"), Refusal)
    assert isinstance(door.admit(basic("bob"), "a"), Viewer)


def test_a_new_token_file_counts_at_once(place: Place) -> None:
    place.write_tokens("ada")
    door = place.door(tokens=True)
    place.write_tokens("bob2")
    admitted = door.admit(f"Bearer {TOKEN}", "a")
    assert isinstance(admitted, Viewer)
    assert admitted.name == "bob2"


@pytest.mark.parametrize("text", ["basic_auth_users: {ada: CANARY}", "CANARY", ""])
def test_a_file_that_breaks_while_it_is_used_changes_nothing_and_is_said_once(
    place: Place, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    door = place.door()
    place.web.write_text(text)
    for _ in range(5):
        assert isinstance(door.admit(basic("ada"), "a"), Viewer)
        assert isinstance(door.admit(None, "a"), Refusal)
    (said,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "what was in force before stays so" in said.getMessage()
    assert "CANARY" not in caplog.text
    place.write(users=("bob",))
    assert isinstance(door.admit(basic("bob"), "a"), Viewer)


def test_a_broken_file_is_read_once_and_again_when_it_changes_or_after_some_seconds(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, reads = [0.0], []

    def counted(settings: Settings) -> Any:
        reads.append(settings)
        return read_door_files(settings)

    door = WebDoor(Settings(web_config_file=place.web), monotonic_s=lambda: now_s[0])
    monkeypatch.setattr(web_door, "read_door_files", counted)
    place.web.write_text("CANARY: x")
    for _ in range(100):
        door.tls()
        door.admit(None, "a")
    assert len(reads) == 1
    now_s[0] += BROKEN_AGAIN_S  # what it names, a certificate say, may have come to be there
    door.tls()
    door.tls()
    assert len(reads) == 2
    place.write(users=("bob",))
    assert isinstance(door.admit(basic("bob"), "a"), Viewer)
    assert len(reads) == 3


def test_a_token_file_that_others_may_read_now_is_noticed_and_what_was_in_force_stays(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.write_tokens("ada")
    door = place.door(tokens=True)
    place.tokens.chmod(0o644)
    for _ in range(3):
        assert isinstance(door.admit(f"Bearer {TOKEN}", "a"), Viewer)
    (said,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "has mode 0644" in said.getMessage()
    assert "what was in force before stays so" in said.getMessage()
    for mode in (0o600, 0o644):
        place.tokens.chmod(mode)
        door.admit(f"Bearer {TOKEN}", "a")
    assert caplog.text.count("has mode 0644") == 2  # it happened twice


def test_a_file_that_goes_away_changes_nothing(place: Place) -> None:
    door = place.door()
    place.web.unlink()
    assert isinstance(door.admit(basic("ada"), "a"), Viewer)
    assert isinstance(door.admit(None, "a"), Refusal)


def test_tls_is_neither_switched_on_nor_off_while_it_runs(place: Place) -> None:
    place.authority.issue("node7")
    door = place.door()
    place.write(users=("ada",), tls="node7")
    assert (door.tls(), door.scheme) == (None, "http")
    other = place.door()
    assert other.scheme == "https"
    place.write(users=("ada",))
    assert other.tls() is not None


def test_a_renewed_certificate_counts_from_the_next_connection_on(place: Place) -> None:
    place.authority.issue("node7")
    place.write(tls="node7")
    door = place.door()
    first = door.tls()
    assert door.tls() is first
    place.authority.issue("node7")
    assert door.tls() is not first


def test_half_a_renewal_keeps_the_old_certificate(place: Place) -> None:
    pair = place.authority.issue("node7")
    place.write(tls="node7")
    door = place.door()
    first = door.tls()
    pair.key.write_text("")
    assert door.tls() is first


def test_more_requests_than_the_files_rate_are_refused(place: Place) -> None:
    place.write(more="rate_limit: {interval: 1h, burst: 2}")
    door = place.door()
    answers = [door.admit(None, "a") for _ in range(3)]
    assert answers[:2] == [EVERYBODY, EVERYBODY]
    assert isinstance(answers[2], Refusal)
    assert answers[2].status == 429


def test_without_settings_the_door_is_open_and_that_is_said_where_others_can_reach_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert open_door(Settings(), what="the API") is OPEN_DOOR
    assert caplog.text == ""
    assert open_door(Settings(listen_host="0.0.0.0"), what="the API") is OPEN_DOOR
    assert "asks nobody for a name" in caplog.text


def test_names_without_tls_are_a_warning_beyond_loopback(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    open_door(Settings(listen_host="10.0.0.1", web_config_file=place.web), what="the API")
    assert "without TLS" in caplog.text


def test_a_file_that_is_broken_at_the_start_lets_nobody_in_until_it_is_mended(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.web.write_text("CANARY: x")
    settings = Settings(web_config_file=place.web)
    with pytest.raises(WebConfigError, match="there is no such key"):
        read_door_files(settings)
    assert isinstance(open_door(settings, what="the API"), ClosedDoor)
    now_s = [0.0]
    door = ClosedDoor(settings, "", monotonic_s=lambda: now_s[0])
    with pytest.raises(ConnectionRefusedError):
        door.tls()
    with pytest.raises(ConnectionRefusedError):
        door.admit(basic("ada"), "a")
    now_s[0] += 1.0
    with pytest.raises(ConnectionRefusedError):
        door.tls()
    place.write(users=("ada",))
    now_s[0] += 1.0
    assert door.tls() is None
    assert isinstance(door.admit(basic("ada"), "a"), Viewer)
    assert isinstance(door.admit(None, "a"), Refusal)
    assert "CANARY" not in caplog.text


def test_names_are_a_list_with_commas() -> None:
    assert comma_separated(" ada, grace ,,") == ["ada", "grace"]
    assert comma_separated(None) == []
