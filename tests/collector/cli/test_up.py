from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tidegauge.cli.errors import BAD_NEWS, ENVIRONMENT, FINE, USAGE, CommandError
from tidegauge.cli.main import main
from tidegauge.cli.service import status, up
from tidegauge.cluster.ray_service import service_control
from tidegauge.cluster.ray_service.agent_place import AgentKind, AgentPlace
from tidegauge.cluster.service_record import (
    NodeSpec,
    ServiceRecord,
    StateFiles,
    prepare_state_dir,
    take_lock,
    write_address,
    write_record,
)
from tidegauge.osproc.processes import identity_of
from tidegauge.settings import Settings
from tidegauge.steady_clock import read_boot_id


def running(files: StateFiles, settings: Mapping[str, object]) -> ServiceRecord:
    spec = NodeSpec(
        state_dir=str(files.root), engine_dir="e", token_file=str(files.token), head_address="127.0.0.1:6399",
        node_address="127.0.0.1", is_head=True, settings=dict(settings),
    )  # fmt: skip
    me = identity_of(os.getpid())
    assert me is not None
    return ServiceRecord(
        supervisor=me, boot_id=read_boot_id(), phase="running", detail="", spec=spec, started_unix_s=1.0
    )


@pytest.mark.parametrize(
    ("wanted", "remark"), [(9494, False), (9500, True), (0, False)], ids=["got", "taken", "any free one"]
)
def test_port_that_was_taken_is_mentioned(
    wanted: int, remark: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = prepare_state_dir(tmp_path / "state")
    write_address(files.agent, "127.0.0.1:9494")
    record = running(files, {"metrics_port": wanted})
    up._tell(files, record, as_json=False, already=False)
    out = capsys.readouterr().out
    assert "http://127.0.0.1:9494/metrics" in out
    assert (f"metrics_port {wanted} was taken" in out) == remark


def test_up_names_the_settings_that_a_running_service_does_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = prepare_state_dir(tmp_path / "state")
    settings = Settings(state_dir=files.root, slack_channel="#gpu")
    monkeypatch.setattr(service_control, "running_record", lambda _: running(files, settings.model_dump(mode="json")))
    command = ["up", "--set", f"state_dir={files.root}", "--set", "slack_channel=#gpu", "--json"]
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    assert main([*command, "--set", "slack_channel=#ops", "--set", "mail_server=mail.example.org"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["already_up"]
    assert "mail_server, slack_channel" in told.err
    assert "tidegauge down" in told.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--foreground"], ENVIRONMENT, f"up already, as process {os.getpid()}; `tidegauge down` ends it"),
        (["--join", "127.0.0.1:6399", "--token-file", "t"], ENVIRONMENT, "already up as the head 127.0.0.1:6399; run"),
        (["--node-address", "10.0.0.9"], FINE, "other values of --node-address; to use these, run `tidegauge down`"),
    ],
    ids=["foreground", "join", "address"],
)
def test_up_does_not_pass_over_what_a_running_service_is_not(
    arguments: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    files = prepare_state_dir(tmp_path / "state")
    settings = Settings(state_dir=files.root).model_dump(mode="json")
    monkeypatch.setattr(service_control, "running_record", lambda _: running(files, settings))
    assert main(["up", "--set", f"state_dir={files.root}", *arguments]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "url", ["head:9495", "//head:9495", "ftp://head", "http://", "http://ada:word@head", "http://a b"]
)
def test_up_refuses_a_public_url_that_no_link_can_lead_to(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    assert main(["up", "--set", f"state_dir={state}", "--set", f"public_url={url}"]) == USAGE
    assert f"public_url: {url!r} is not a URL such as http://head:9495" in capsys.readouterr().err
    assert not state.exists()


def test_a_service_that_was_started_with_such_a_public_url_runs_on_without_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = prepare_state_dir(tmp_path / "state")
    settings = Settings(state_dir=files.root, public_url="head:9495")
    assert settings.pages_url is None
    record = running(files, settings.model_dump(mode="json"))
    monkeypatch.setattr(status, "local_service", lambda _: (files, record))
    main(["status", "--set", f"state_dir={files.root}"])
    assert (
        "links     none to pages, in messages and alerts: public_url: 'head:9495' is not a URL"
        in capsys.readouterr().out
    )
    record.spec.settings["public_url"] = "http://head:9495"
    main(["status", "--set", f"state_dir={files.root}"])
    assert "links" not in capsys.readouterr().out


def test_up_makes_no_head_of_a_node_whose_service_crashed_and_status_says_how_it_starts_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = prepare_state_dir(tmp_path / "state")
    here = ["--set", f"state_dir={files.root}"]
    joined = running(files, {})
    crashed = replace(joined, boot_id="another", spec=replace(joined.spec, is_head=False, head_address="10.0.0.1:6399"))
    write_record(files, crashed)
    again = f"`tidegauge up --join 10.0.0.1:6399 --token-file {files.token}` restarts it"
    assert main(["status", *here]) != 0
    assert again in unwrapped(capsys)
    assert main(["up", *here]) != 0
    said = unwrapped(capsys)
    assert again in said
    assert "`tidegauge down`" in said
    assert not files.gcs.exists()
    assert not files.node.exists()


def test_up_and_status_leave_alone_a_service_that_cannot_be_seen_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where two hosts share a home: the record is of another boot, and its supervisor has the lock."""
    files = prepare_state_dir(tmp_path / "state")
    here = ["--set", f"state_dir={files.root}", "--set", "engine_port=0"]
    write_record(files, replace(running(files, {}), boot_id="another"))
    lock = take_lock(files)
    assert lock is not None
    for command in ("up", "status"):
        assert main([command, *here]) == ENVIRONMENT
        assert f"a service that cannot be seen here uses the state directory {files.root}:" in unwrapped(capsys)
    assert files.record.exists()
    assert not files.node.exists()
    os.close(lock)


def test_status_of_a_node_says_which_other_agent_keeps_its_own_from_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = prepare_state_dir(tmp_path / "state")
    here = ["--set", f"state_dir={files.root}"]
    supervisor = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        process = identity_of(supervisor.pid)
        assert process is not None
        record = running(files, {})
        write_record(files, replace(record, supervisor=process, spec=replace(record.spec, is_head=False)))
        assert main(["status", *here]) == BAD_NEWS
        assert "metrics   no agent yet\n" in (told := capsys.readouterr().out)
        assert "agent.lock" not in told
        other = AgentPlace(files.agent_place, AgentKind.ENGINE)
        assert other.take()
        assert main(["status", *here]) == BAD_NEWS
        why = f"another agent (pid {os.getpid()}) holds {files.agent_place} and has not ended when asked to"
        assert f"agent     {why}" in capsys.readouterr().out
        main(["status", "--json", *here])
        assert json.loads(capsys.readouterr().out)["local"]["agent_problem"].startswith(why)
        other.release()
    finally:
        supervisor.communicate()


def unwrapped(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_only_a_head_needs_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)  # as where it is not installed
    up.check_installed(is_head=False)
    with pytest.raises(CommandError, match="sqlalchemy"):
        up.check_installed(is_head=True)
