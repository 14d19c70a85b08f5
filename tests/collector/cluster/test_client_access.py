"""What the client shows, whom it trusts, and what it says when it is not let in."""

from __future__ import annotations

import base64
import getpass
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from tidegauge.cli.main import main
from tidegauge.cluster.api import client
from tidegauge.cluster.api.client import ApiAccess, ApiError
from tidegauge.cluster.api.http_api import HttpApi, Request, json_route
from tidegauge.cluster.api.route_access import Access
from tidegauge.cluster.service_record import StateFiles, local_api, write_address
from tidegauge.http.door_start import open_door
from tidegauge.http.tokens import make_token, token_line
from tidegauge.settings import Settings
from waiting import PATIENCE_S
from web_certificates import Authority

TOKEN = make_token()
HASH = bcrypt.hashpw(b"CANARY:pass word", bcrypt.gensalt(4)).decode()


class Site:
    """An API that says who asks, over TLS, and over its local socket."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.authority.issue("head", "127.0.0.1")
        tokens, web = folder / "tokens", folder / "web.yml"
        tokens.write_text(token_line("ada", TOKEN))
        tokens.chmod(0o600)
        web.write_text(
            f"tls_server_config: {{cert_file: head.pem, key_file: head.key}}\nbasic_auth_users: {{grace: {HASH}}}\n"
        )
        self.files = StateFiles(folder)
        door = open_door(Settings(web_config_file=web, api_tokens_file=tokens), what="a test")
        self.api = HttpApi(
            {"/who": json_route(self._who), "/secret": json_route(self._who)}, host="127.0.0.1", port=0, door=door,
            access={"/who": Access.OWN, "/secret": Access.ADMIN}, local_socket=self.files.api_socket,
        )  # fmt: skip
        self.api.start()
        write_address(self.files.api, self.api.url)

    def _who(self, request: Request) -> object:
        return {"name": request.viewer.name, "sees_all": request.viewer.sees_all}

    def access(self, token: str | None = TOKEN) -> ApiAccess:
        return ApiAccess(token, self.authority.certificate)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    # As deep as state directories of users may be: unix(7) alone would not allow it.
    folder = tmp_path / ("deep-" * 20) / "state"
    folder.mkdir(parents=True)
    site = Site(folder)
    yield site
    site.api.stop()


def refused(url: str, access: ApiAccess, path: str = "/who") -> ApiError:
    with pytest.raises(ApiError) as caught:
        client.get(url, path, access=access)
    assert TOKEN not in str(caught.value)
    assert "CANARY" not in str(caught.value)
    return caught.value


def test_a_token_says_who_asks(site: Site) -> None:
    assert client.get(site.api.url, "/who", access=site.access()) == {"name": "ada", "sees_all": False}


def test_a_name_and_a_password_do_as_well(site: Site) -> None:
    access = site.access("grace:CANARY:pass word")
    assert client.get(site.api.url, "/who", access=access)["name"] == "grace"


def test_without_a_token_it_is_said_where_one_comes_from(site: Site) -> None:
    error = refused(site.api.url, site.access(None))
    assert (error.status, error.refusal) == (401, None)
    assert "TIDEGAUGE_API_TOKEN_FILE" in str(error)
    assert "tidegauge config token" in str(error)


def test_a_token_that_is_not_known_is_said_and_not_shown(site: Site) -> None:
    assert "rejects the token" in str(refused(site.api.url, site.access(make_token())))


def test_client_explains_a_forbidden_page_in_a_sentence(site: Site) -> None:
    error = refused(site.api.url, site.access(), "/secret")
    assert (error.status, str(error.refusal)[:23]) == (403, "ada may not read /secre")


def test_a_certificate_of_an_unknown_authority_is_not_trusted(site: Site) -> None:
    said = str(refused(site.api.url, ApiAccess(TOKEN)))
    assert "is not trusted here" in said
    assert "TIDEGAUGE_API_CA_FILE" in said


def test_a_certificate_for_another_name_is_not_trusted(site: Site) -> None:
    said = str(refused(site.api.url.replace("127.0.0.1", "localhost"), site.access()))
    assert "is for another name" in said


def test_the_wrong_scheme_is_said(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        answering = subprocess.Popen(
            [sys.executable, "-c", "import socket,sys; s=socket.socket(fileno=int(sys.argv[1])); c,_=s.accept();"
             "c.recv(9); c.sendall(b'HTTP/1.0 400 Bad\\r\\n\\r\\n'); c.close()", str(listener.fileno())],
            pass_fds=[listener.fileno()],
        )  # fmt: skip
        assert "is it http:// instead of https://?" in str(refused(url, site.access()))
        assert answering.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("url", ["https://ada:CANARY@127.0.0.1:1", "http://CANARY@127.0.0.1:1"])
def test_an_address_with_a_password_is_refused_and_not_repeated(url: str) -> None:
    assert "TIDEGAUGE_API_TOKEN_FILE" in str(refused(url, ApiAccess()))


@pytest.mark.parametrize("url", ["http://[::1", "http://a:b", "https://", "unix://host/path", "unix:relative", "x"])
def test_an_address_that_is_none_is_said(url: str) -> None:
    assert "is not an API address" in str(refused(url, ApiAccess()))


def test_a_file_of_authorities_that_cannot_be_read_is_named(site: Site, tmp_path: Path) -> None:
    assert "api_ca_file" in str(refused(site.api.url, ApiAccess(None, tmp_path / "none.pem")))
    (tmp_path / "empty.pem").write_text("")
    assert "api_ca_file" in str(refused(site.api.url, ApiAccess(None, tmp_path / "empty.pem")))


def test_this_nodes_own_commands_need_no_token_and_no_certificate(site: Site) -> None:
    url = local_api(site.files)
    assert url is not None
    assert url.startswith("unix:///")
    who = {"name": getpass.getuser(), "sees_all": True}
    assert client.get(url, "/who") == client.get(url, "/secret") == who, "the kernel says who asks"


def test_client_suggests_https_for_a_tls_server(site: Site) -> None:
    with pytest.raises(ApiError, match="the server may use TLS: try https://"):
        client.get(site.api.url.replace("https", "http"), "/who")
    with pytest.raises(ApiError) as caught:
        client.get("http://127.0.0.1:1", "/who")
    assert "TLS" not in str(caught.value)


def test_the_local_socket_is_its_owners_alone(site: Site) -> None:
    """Another user cannot open it by its mode; and if they could, the kernel says who they are."""
    assert site.files.api_socket.stat().st_mode & 0o777 == 0o600
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    site.files.api_socket.chmod(0o666)
    for folder in [site.files.root, *list(site.files.root.parents)[:-1]]:
        folder.chmod(folder.stat().st_mode | 0o755) if "pytest" in str(folder) else None
    script = (
        "import os,socket,sys; d=os.open(sys.argv[1], os.O_PATH); os.setgid(65534); os.setuid(65534);"
        "s=socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect(f'/proc/self/fd/{d}/api.sock');"
        "s.sendall(b'GET /who HTTP/1.0\\r\\n\\r\\n'); print(len(s.recv(100)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(site.files.root)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "0\n" or "ConnectionResetError" in done.stderr or "BrokenPipeError" in done.stderr, done
    assert client.get(str(local_api(site.files)), "/who")["sees_all"] is True


def test_a_socket_that_a_crash_left_behind_is_taken_over(site: Site) -> None:
    again = HttpApi({}, host="127.0.0.1", port=0, local_socket=site.files.api_socket)
    again.start()
    try:
        with pytest.raises(ApiError, match="no such page"):
            client.get(str(local_api(site.files)), "/who")
    finally:
        again.stop()
    assert local_api(site.files) == site.api.url


def test_client_uses_the_address_if_the_local_socket_cannot_be_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = StateFiles(tmp_path)
    files.api_socket.mkdir()
    api = HttpApi({"/who": json_route(lambda _: {})}, host="127.0.0.1", port=0, local_socket=files.api_socket)
    with caplog.at_level(logging.WARNING):
        api.start()
    try:
        assert "commands on this node use" in caplog.text
        assert client.get(api.url, "/who") == {}
    finally:
        api.stop()


def test_commands_show_the_token_of_the_settings(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my-token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    monkeypatch.setenv("TIDEGAUGE_API_CA_FILE", str(site.authority.certificate))
    for variable, value, said in (
        ("TIDEGAUGE_API_TOKEN_FILE", str(file), "no such page"),
        ("TIDEGAUGE_API_TOKEN", TOKEN, "no such page"),
        ("TIDEGAUGE_API_TOKEN", base64.b64encode(b"x").decode(), "rejects the token"),
        ("TIDEGAUGE_CLUSTER", "x", "requires a token"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert main(["jobs", "--api", site.api.url]) == 3
        captured = capsys.readouterr()
        assert said in captured.err
        assert TOKEN not in captured.err + captured.out


def test_a_token_file_that_others_can_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my-token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    monkeypatch.setenv("TIDEGAUGE_API_TOKEN_FILE", str(file))
    assert main(["jobs", "--api", "http://127.0.0.1:1"]) == 2
    err = capsys.readouterr().err
    assert "chmod 600" in err
    assert TOKEN not in err
