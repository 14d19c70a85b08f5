"""``tidegauge up``: what it says where others than this machine's users reach its pages."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tidegauge.cli.main import main
from tidegauge.cli.service import up
from tidegauge.cluster.ray_service import service_control
from tidegauge.cluster.service_record import NodeSpec, ServiceRecord, StateFiles, prepare_state_dir
from tidegauge.http.tokens import make_token, token_line
from tidegauge.osproc.processes import identity_of
from web_certificates import Authority

CLOSES = "Set web_config_file or api_tokens_file (docs/web_access.md), as by --set web_config_file=FILE"


@pytest.fixture
def files(tmp_path: Path) -> StateFiles:
    return prepare_state_dir(tmp_path / "state")


def record(files: StateFiles, *, is_head: bool = True, **settings: Any) -> ServiceRecord:
    spec = NodeSpec(
        state_dir=str(files.root), engine_dir="e", token_file=str(files.token), head_address="10.0.0.1:6399",
        node_address="10.0.0.1", is_head=is_head, settings=settings,
    )  # fmt: skip
    me = identity_of(os.getpid())
    assert me is not None
    return ServiceRecord(supervisor=me, boot_id="b", phase="running", detail="", spec=spec, started_unix_s=1.0)


def warning(files: StateFiles, capsys: pytest.CaptureFixture[str], about: ServiceRecord) -> str | None:
    """As programs are told; people are told the same."""
    up._tell(files, about, as_json=True, already=False)
    said: str | None = json.loads(capsys.readouterr().out)["warning"]
    up._tell(files, about, as_json=False, already=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("warning  ")] == ([f"warning       {said}"] if said else [])
    return said


def test_a_head_that_anybody_may_ask_says_what_is_open_and_what_closes_it(
    files: StateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    assert warning(files, capsys, record(files, listen_host="0.0.0.0")) == (
        "the API, with /metrics, listens on 0.0.0.0 and asks nobody for a name: whoever reaches it sees everybody's "
        f"jobs. {CLOSES}"
    )


def test_of_a_node_it_is_its_metrics(files: StateFiles, capsys: pytest.CaptureFixture[str]) -> None:
    said = warning(files, capsys, record(files, is_head=False, listen_host="10.0.0.7"))
    assert said is not None
    assert said.startswith("/metrics listens on 10.0.0.7 and asks nobody for a name")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_there_is_nothing_to_say(files: StateFiles, host: str, capsys: pytest.CaptureFixture[str]) -> None:
    up._tell(files, record(files, listen_host=host), as_json=True, already=False)
    assert json.loads(capsys.readouterr().out)["warning"] is None


def test_names_without_tls_are_said_and_with_tls_nothing_is(
    files: StateFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens, web = tmp_path / "tokens", tmp_path / "web.yml"
    tokens.write_text(token_line("ada", make_token()))
    tokens.chmod(0o600)
    said = warning(files, capsys, record(files, listen_host="0.0.0.0", api_tokens_file=str(tokens)))
    assert said is not None
    assert "without TLS: tokens and passwords travel in the clear" in said
    Authority(tmp_path).issue("node7")
    web.write_text("tls_server_config: {cert_file: node7.pem, key_file: node7.key}")
    both = record(files, listen_host="0.0.0.0", api_tokens_file=str(tokens), web_config_file=str(web))
    assert warning(files, capsys, both) is None


def test_up_warns_that_every_client_certificate_sees_all_jobs(
    files: StateFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, web = Authority(tmp_path), tmp_path / "web.yml"
    authority.issue("node7")
    web.write_text(
        "tls_server_config: {cert_file: node7.pem, key_file: node7.key, client_auth_type: RequireAndVerifyClientCert, "
        f"client_ca_file: {authority.certificate.name}}}"
    )
    said = warning(files, capsys, record(files, listen_host="0.0.0.0", web_config_file=str(web)))
    assert said is not None
    assert "whoever has a client certificate sees everybody's jobs. Set basic_auth_users in web_config_file" in said


def test_a_file_that_broke_since_is_for_status_to_tell(files: StateFiles, capsys: pytest.CaptureFixture[str]) -> None:
    about = record(files, listen_host="0.0.0.0", api_tokens_file=str(files.root / "away"))
    assert warning(files, capsys, about) is None


def test_in_the_foreground_it_is_said_before_the_service_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_control, "run_in_foreground", lambda _, **__: 0)
    settings = (f"state_dir={tmp_path}/s", "engine_port=0", "listen_host=0.0.0.0")
    assert main(["up", "--foreground", *(part for one in settings for part in ("--set", one))]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tidegauge up: warning: the API, with /metrics, listens on 0.0.0.0")


def test_a_head_that_asks_by_more_than_files_says_what_nodes_leave_open(
    files: StateFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``/metrics`` of nodes, the head's too, knows passwords and tokens alone."""
    said = warning(files, capsys, record(files, listen_host="0.0.0.0", munge_login=True))
    assert said is not None
    assert said.startswith("/metrics listens on 0.0.0.0 and asks nobody for a name")
    tokens = tmp_path / "tokens"
    tokens.write_text(token_line("ada", make_token()))
    tokens.chmod(0o600)
    both = record(files, listen_host="0.0.0.0", munge_login=True, api_tokens_file=str(tokens))
    assert "without TLS" in (warning(files, capsys, both) or "")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("munge_login=true", "there is no unmunge here: install munge"),
        ("proxy_user_header=X-Forwarded-User", "set trusted_proxies too"),
        ("kubernetes_login=true", "outside a pod, set kubernetes_kubeconfig"),
    ],
)
def test_up_refuses_a_login_that_cannot_work_and_says_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, setting: str, told: str
) -> None:
    monkeypatch.setattr(service_control, "run_in_foreground", lambda _, **__: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["up", "--foreground", "--set", f"state_dir={tmp_path}/s", "--set", setting]) == 2
    assert told in capsys.readouterr().err
