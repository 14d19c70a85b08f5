"""The ways in that settings switch on: one that does not work admits nobody, and never opens the door."""

from __future__ import annotations

import logging

import pytest

from login_world import headers
from tidegauge.cluster.ray_service.login_methods import LoginSetupError, check_login_methods, open_login_methods
from tidegauge.http.access import OPEN_DOOR, LoginMethod, Refusal, Viewer
from tidegauge.http.credentials import FILES_ALONE
from tidegauge.http.door_start import open_door
from tidegauge.settings import Settings

HEADER, PROXY = "X-Forwarded-User", "10.0.0.7"


def test_without_settings_there_is_no_way_in_but_files() -> None:
    assert open_login_methods(Settings()) == FILES_ALONE
    assert open_door(Settings(), what="a test", beside=open_login_methods(Settings())) is OPEN_DOOR


def test_settings_switch_on_each_way_in() -> None:
    settings = Settings(munge_login=True, proxy_user_header=HEADER, trusted_proxies=f"{PROXY}, 10.1.0.0/16")
    door = open_door(settings, what="a test", beside=open_login_methods(settings))
    assert door.login_methods() == {LoginMethod.MUNGE, LoginMethod.PROXY}
    assert isinstance(door.admit(None, "10.0.0.8", headers((HEADER, "ada"))), Refusal)
    ada = door.admit(None, "10.1.2.3", headers((HEADER, "ada")))
    assert isinstance(ada, Viewer)
    assert ada.name == "ada"


def test_a_coordinator_that_reaches_no_api_server_admits_nobody_and_says_what_to_do(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    settings = Settings(kubernetes_login=True)
    door = open_door(settings, what="a test", beside=open_login_methods(settings))
    answers = [door.admit(shown, "a") for shown in (None, "Bearer a.b.c")]
    assert [one.status for one in answers if isinstance(one, Refusal)] == [401, 503]
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "set kubernetes_kubeconfig" in said.getMessage()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"proxy_user_header": HEADER}, "set trusted_proxies too"),
        ({"trusted_proxies": PROXY}, "set proxy_user_header too"),
        ({"proxy_user_domain": "site.org"}, "proxy_user_domain is set without proxy_user_header"),
        ({"proxy_user_header": "Cookie", "trusted_proxies": PROXY}, "such as X-Forwarded-User"),
        ({"proxy_user_header": "X Y", "trusted_proxies": PROXY}, "such as X-Forwarded-User"),
        ({"proxy_user_header": HEADER, "trusted_proxies": "10.0.0.7/24"}, "is no address and no CIDR"),
        ({"proxy_user_header": HEADER, "trusted_proxies": "proxy.site"}, "is no address and no CIDR"),
        ({"proxy_user_header": HEADER, "trusted_proxies": "0.0.0.0/0"}, "is every address"),
        ({"proxy_user_header": HEADER, "trusted_proxies": f"{PROXY}, ::/0"}, "is every address"),
        ({"munge_login": True, "munge_socket": "/nowhere"}, "munge"),
    ],
)
def test_settings_that_cannot_work_are_told_at_the_start_with_the_next_step(
    settings: dict[str, object], told: str
) -> None:
    with pytest.raises(LoginSetupError) as refused:
        check_login_methods(Settings.model_validate(settings))
    assert told in str(refused.value)
