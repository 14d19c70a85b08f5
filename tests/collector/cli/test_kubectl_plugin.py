"""``kubectl tidegauge``: the commands with a kubeconfig alone, through an API server that keeps ``Authorization``."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from login_world import FakeAccess, FakeReviewer, FakeTime
from page_site import Site, running_site
from scheduler_hooks.kubernetes.scripted_api import Reply, ScriptedApi, Seen
from tidegauge.cli.kubectl_plugin import NO_TOKEN, main
from tidegauge.http.access import NAMESPACE_HEADER, SHOWN_HEADER
from tidegauge.http.credentials import BesideFiles
from tidegauge.http.namespace_rights import READ, AccessReviews, AccessRight
from tidegauge.http.token_reviews import ReviewedUser, TokenReviews
from waiting import PATIENCE_S

PROXY = "/api/v1/namespaces/tidegauge/services/http:tidegauge-head:api/proxy"
TOKEN, MADE = "ada.s.token", "made.for.trainer"
USERS = {TOKEN: "ada", MADE: "system:serviceaccount:team-a:trainer"}
NAMESPACES = {"ada": "team-a", "bob": "team-b"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    access = FakeAccess({
        "ada": {AccessRight(READ, "team-a"), AccessRight(READ, "team-b")}, USERS[MADE]: {AccessRight(READ, "team-a")},
    })  # fmt: skip
    reviewer = FakeReviewer({token: ReviewedUser(name, frozenset()) for token, name in USERS.items()})
    beside = BesideFiles(
        kubernetes=TokenReviews(reviewer, monotonic_s=FakeTime()),
        access=AccessReviews(access, within_s=PATIENCE_S, monotonic_s=FakeTime()),
    )
    with running_site(tmp_path_factory.mktemp("site"), beside, namespaces=NAMESPACES) as site:
        yield site


@pytest.fixture
def api(site: Site) -> Iterator[ScriptedApi]:
    """An API server: it proxies to the head's Service, and gives tokens to one service account."""

    def answer(seen: Seen) -> Reply:
        if seen.path == "/api/v1/namespaces/team-a/serviceaccounts/trainer/token":
            return Reply(201, {"status": {"token": MADE}})
        if not seen.path.startswith(PROXY):
            return Reply(403, {"kind": "Status", "message": f"cannot {seen.method} {seen.path}"})
        connection = http.client.HTTPConnection("127.0.0.1", site.api.port, timeout=PATIENCE_S)
        kept = {key: value for key, value in seen.headers.items() if key.lower() != "authorization"}
        query = f"?{urlencode(seen.query)}" if seen.query else ""
        try:
            connection.request(seen.method, seen.path.removeprefix(PROXY) + query, headers=kept)
            found = connection.getresponse()
            return Reply(found.status, found.read().decode(), {"Content-Type": found.headers["Content-Type"]})
        finally:
            connection.close()

    with ScriptedApi(answer) as api:
        yield api


@pytest.fixture
def kubeconfig(api: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = api.kubeconfig(tmp_path, token=TOKEN)
    config = json.loads(path.read_text())
    of_b = {"cluster": "scripted", "user": "tester", "namespace": "team-b"}
    config["contexts"].append({"name": "b", "context": of_b})
    config["contexts"][0]["context"]["namespace"] = "team-a"
    config["users"].append({"name": "by-certificate", "user": {}})
    config["contexts"].append({"name": "bare", "context": {"cluster": "scripted", "user": "by-certificate"}})
    path.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.delenv("TIDEGAUGE_API_TOKEN", raising=False)
    return path


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], {"adas-job"}), (["-n", "team-b"], {"bobs-job"}), (["--context", "b"], {"bobs-job"}),
        (["-A"], {"adas-job", "bobs-job"}), (["-n", "team-c"], set()),
        (["--service-account", "trainer", "-A"], {"adas-job"}), (["--context", "b", "-n", "team-a"], {"adas-job"}),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("kubeconfig")
def test_jobs_are_those_of_the_namespace_as_with_kubectl(
    options: list[str], shown: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([*options, "jobs", "--json"], ["jobs", *options, "--json"]):
        assert main(words) == 0
        jobs = json.loads(capsys.readouterr().out)["jobs"]
        assert {job["job_id"].partition("/")[2] for job in jobs} == shown


@pytest.mark.usefixtures("kubeconfig")
def test_the_token_goes_past_the_api_server_in_a_header_of_its_own(
    api: ScriptedApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["incidents", "--all"]) in (0, 1)
    seen = next(seen for seen in api.requests if seen.path.startswith(PROXY))
    assert seen.token == f"Bearer {TOKEN}", "for the API server"
    assert (seen.headers[SHOWN_HEADER], seen.headers[NAMESPACE_HEADER]) == (f"Bearer {TOKEN}", "team-a")
    assert "adas" in (said := capsys.readouterr().out)
    assert TOKEN not in said


@pytest.mark.parametrize("command", [["job", "team-a/adas-job"], ["report", "1"], ["history"]])
@pytest.mark.usefixtures("kubeconfig")
def test_the_commands_are_those_of_tidegauge(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) in (0, 1), capsys.readouterr().err
    capsys.readouterr()
    assert main(["-n", "team-b", *command]) != 0 or "adas" not in capsys.readouterr().out


@pytest.mark.usefixtures("kubeconfig")
def test_straight_to_the_head_shows_the_same(site: Site, api: ScriptedApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--server", site.api.url, "jobs", "--json"]) == 0
    assert [job["job_id"] for job in json.loads(capsys.readouterr().out)["jobs"]] == ["team-a/adas-job"]
    assert api.requests == []


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--context", "bare", "jobs"], 3, NO_TOKEN), (["--context", "none", "jobs"], 3, "are here, b, bare"),
        (["--service", "head", "jobs"], 2, "NAMESPACE/NAME"), (["--audience", "x", "jobs"], 2, "--service-account"),
        (["--service", "other/head", "jobs"], 3, "cannot GET"), (["--server", "head", "jobs"], 2, "https://"),
        (["--service-account", "nobody", "jobs"], 3, "no token for service account nobody in team-a: the API server "),
        (["--kubeconfig", "/nowhere", "jobs"], 3, "the kubeconfig /nowhere cannot be used: "),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("kubeconfig")
def test_what_cannot_work_is_told_with_the_next_step(
    words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    assert told in capsys.readouterr().err


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("below", ["", "a/" * 60], ids=["short", "longer than a socket's path may be"])
def test_nobody_else_can_use_the_socket_and_none_is_left(
    kubeconfig: Path, short_folder: Path, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = short_folder / below
    usual.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr("tempfile.tempdir", str(usual))
    sockets: list[Path] = []
    modes: list[int] = []
    real = os.stat

    def command(words: list[str]) -> int:
        socket = Path(words[-1].removeprefix("unix://"))
        modes.append(real(socket.parent).st_mode & 0o777)
        sockets.append(socket)
        return 0

    monkeypatch.setattr("tidegauge.cli.kubectl_plugin.tidegauge", command)
    assert main(["--kubeconfig", str(kubeconfig), "jobs"]) == 0
    assert modes == [0o700]
    assert not sockets[0].parent.exists()
    assert list(usual.glob("kubectl-tidegauge-*")) == []


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert "--all-namespaces" in said
    assert "jobs, job, incidents" in said
    with pytest.raises(SystemExit):
        main(["jobs", "--help"])
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "No configuration found"), ("a: [b\nc: d\n", "expected"), ("just words", "cannot be used"), ("[1]", "")],
)
def test_kubeconfig_that_cannot_be_used_is_told_by_name_in_one_line(
    content: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    assert main(["--kubeconfig", str(path), "jobs"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kubectl tidegauge: the kubeconfig {path} cannot be used: ")
    assert says in line
    assert line.endswith("; see `kubectl config view`, or name another with --kubeconfig FILE")


def test_missing_login_program_is_told_and_not_that_there_is_a_certificate(kubeconfig: Path) -> None:
    config = json.loads(kubeconfig.read_text())
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-login", "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": program}
    kubeconfig.write_text(json.dumps(config))
    found = subprocess.run(
        [sys.executable, "-m", "tidegauge.cli.kubectl_plugin", "jobs"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 3
    (line,) = found.stderr.splitlines()
    assert "no-such-login" in line
    assert str(kubeconfig) in line
    assert "certificate" not in line
