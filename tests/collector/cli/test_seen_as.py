"""``tidegauge jobs`` and ``incidents`` for somebody who may see their own alone, and has none."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from api_world import filled_service
from tidegauge.cli.main import main
from tidegauge.cluster.api.http_api import HttpApi
from tidegauge.http.door_start import open_door
from tidegauge.http.tokens import make_token, token_line
from tidegauge.settings import Settings

TOKENS = {name: make_token() for name in ("ada", "zoe", "root")}
"""The service watches a job of ada's, and none of zoe's."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("api")
    tokens = folder / "tokens"
    tokens.write_text("\n".join(token_line(name, token) for name, token in TOKENS.items()))
    tokens.chmod(0o600)
    door = open_door(Settings(api_tokens_file=tokens, api_admins="root"), what="a test")
    with filled_service(folder) as service, contextlib.ExitStack() as at_the_end:
        api = HttpApi(service.routes(), host="127.0.0.1", port=0, door=door)
        api.start()
        at_the_end.callback(api.stop)
        yield api.url


@pytest.fixture
def zoe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGAUGE_API_TOKEN", TOKENS["zoe"])


@pytest.mark.usefixtures("zoe")
def test_jobs_without_own_jobs_says_as_which_user_the_service_sees_the_caller(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jobs", "--api", url]) == 0
    said = capsys.readouterr().out
    assert said.startswith("no jobs of yours watched: the service sees you as zoe")
    assert "only its admins see other users' jobs" in said
    assert "tidegauge run -- CMD" in said


@pytest.mark.usefixtures("zoe")
def test_incidents_without_own_ones_says_as_which_user_the_service_sees_the_caller(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["incidents", "--api", url]) == 0
    said = capsys.readouterr().out
    assert said.startswith("no open incidents of yours: the service sees you as zoe")
    assert said.endswith("; `tidegauge incidents --all` includes closed ones\n")
    main(["incidents", "--all", "--api", url])
    assert capsys.readouterr().out.startswith("no incidents of yours: the service sees you as zoe")


@pytest.mark.usefixtures("zoe")
@pytest.mark.parametrize("others", [[], ["--user", "ada"]])
def test_history_without_own_jobs_says_as_which_user_the_service_sees_the_caller(
    url: str, others: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "--since", "999999d", *others, "--api", url]) == 0
    said = capsys.readouterr().out
    assert said.startswith("no job of yours ended since ")
    assert ": the service sees you as zoe; only its admins see other users' jobs; " in said


@pytest.mark.parametrize(("name", "seen_as"), [("ada", "ada"), ("root", None)])
def test_programs_are_told_it_too_and_whoever_sees_something_is_shown_it_as_ever(
    url: str, name: str, seen_as: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGAUGE_API_TOKEN", TOKENS[name])
    for command in ("jobs", "incidents"):
        main([command, "--json", "--api", url])
        answer = json.loads(capsys.readouterr().out)
        assert answer["seen_as"] == seen_as
        assert answer[command]
        main([command, "--api", url])
        assert "yours" not in capsys.readouterr().out
