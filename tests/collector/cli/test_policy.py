"""``tidegauge policy``: files, the simulation, how it stands, and the switch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loop_store import FakeStore, serving, told_store
from sample_views import NOW_S
from scheduler_values import JOB
from tidegauge.cli.main import main
from tidegauge.cli.policy import status as policy_status
from tidegauge.cli.policy import switch as policy_switch
from tidegauge.cluster.incident_loops.action_switch import ActionSwitch
from tidegauge.cluster.service_record import NodeSpec, StateFiles, prepare_state_dir, write_spec
from tidegauge.core.incidents.actions import ActionKind, LoopStatus, UnderWay

STATUS = LoopStatus("act", None, incidents_open=1)
POLICY = """
version: 1
mode: warn
brakes: {breaker: {share: 0.2}, exempt: {users: [root, "svc-*"]}}
rules:
  - name: leak
    when: {cause: leak, severity: critical, checkpoint: true, requeueable: true}
    ladder:
      - {action: notify}
      - {action: notify, after: 5m}
      - {action: checkpoint, after: 5m, grace: 10m}
      - {action: requeue, alloc_conf: {expandable_segments: True}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def url() -> Iterator[str]:
    with serving(told_store(), STATUS) as url:
        yield url


# check, show, schema


def test_a_good_policy_is_shown_as_tables(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", str(file)]) == 0
    page = capsys.readouterr().out
    assert "mode warn: owners are notified, no other action is taken" in page
    assert (
        "1     leak  cause: leak, severity: critical, checkpoint: yes, requeueable: yes  1. notify, 2. notify" in page
    )
    assert "3. checkpoint (after 5m, grace 10m), 4. requeue (alloc_conf expandable_segments:True)" in page
    rows = dict(
        line.split(maxsplit=1) for line in page.splitlines() if line.startswith(("breaker.", "exempt.", "min_"))
    )
    assert (rows["breaker.share"], rows["breaker.window"], rows["exempt.users"]) == ("0.2", "1h", "root or svc-*")
    assert rows["min_age"] == "2m"


def test_policy_check_prints_errors_with_file_and_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(POLICY.replace("grace: 10m", "grace: soon").replace("mode: warn", "mode: wran"))
    assert main(["policy", "check", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{file}:3: error: ")
    assert lines[1].startswith(f"{file}:11: error: ")
    assert lines[2] == f"{file} is not a valid policy"


def test_policy_check_warns_of_a_risky_but_valid_policy(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(POLICY.replace("brakes: {", "brakes: {warnings_before_stop: 0, "))
    assert main(["policy", "check", str(file)]) == 0
    assert "warning: jobs may be stopped without a warning" in capsys.readouterr().out


def test_findings_come_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(POLICY.replace("mode: warn", "mode: wran"))
    assert main(["policy", "check", str(file), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["usable"], answer["findings"][0]["level"], answer["findings"][0]["line"]) == (False, "error", 3)


def test_a_file_that_is_not_there_is_a_wrong_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", str(tmp_path / "gone.yaml")]) == 2
    assert "gone.yaml" in capsys.readouterr().err


def test_the_default_can_be_taken_as_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "show", "--default"]) == 0
    copy = tmp_path / "policy.yaml"
    copy.write_text(capsys.readouterr().out)
    assert main(["policy", "check", str(copy)]) == 0
    assert "mode observe" in capsys.readouterr().out


def test_the_policy_in_force_is_the_default_where_there_is_no_file(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "show", "--api", url]) == 0
    assert capsys.readouterr().out.startswith("in force: the default policy\n")
    assert main(["policy", "show", "--json", "--api", url]) == 0
    assert json.loads(capsys.readouterr().out)["mode"] == "observe"


def test_a_file_on_another_machine_is_not_taken_from_this_one(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeStore(), replace(STATUS, policy_file=str(file))) as url:
        assert main(["policy", "show", "--yaml", "--api", url]) == 3
    assert f"the file {file} on the head" in capsys.readouterr().err


def test_a_file_that_is_not_in_force_is_not_shown_as_if_it_were(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeStore(), replace(STATUS, policy_file="/p.yaml", policy_problem="/p.yaml: line 3: no")) as url:
        assert main(["policy", "show", "--api", url]) == 1
    assert "/p.yaml: line 3: no. The last valid policy stays in force" in capsys.readouterr().err


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "schema"]) == 0
    assert "rules" in json.loads(capsys.readouterr().out)["properties"]


# simulate


def test_a_simulation_says_what_would_have_been_done_and_what_it_cannot_know(
    file: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "simulate", str(file), "--since", "7d", "--api", url]) == 0
    page = capsys.readouterr().out
    assert "1         4711" in page
    assert "rule leak, rung 1" in page
    assert "Actions in mode act: " in page
    assert "The mode in this file is warn: as it is, no action would be taken on a job." in page
    assert "every action succeeds immediately" in page
    assert "left out of the answer" not in page


def test_a_simulation_as_json_has_the_decisions(file: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "simulate", str(file), "--json", "--api", url]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["incidents"] == 2
    assert answer["totals"]["notify"] == sum(one["action"] == "notify" for one in answer["decisions"]) >= 1
    assert (answer["assumed"], answer["left_out"]) == ([], 0)


def test_without_incidents_there_is_nothing_to_simulate(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeStore(), STATUS) as url:
        assert main(["policy", "simulate", str(file), "--api", url]) == 0
    assert capsys.readouterr().out == "nothing to simulate: no incidents in the last 7 days\n"


def test_a_job_of_which_nothing_is_recorded_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = told_store()
    store.audit.made.clear()
    with serving(store, STATUS) as url:
        main(["policy", "simulate", str(file), "--api", url])
    assert "No job records for these incidents: 1, 2." in capsys.readouterr().out


def test_a_policy_that_cannot_be_used_is_not_simulated(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("version: 2\n")
    assert main(["policy", "simulate", str(file), "--api", "http://127.0.0.1:1"]) == 2
    assert f"run `tidegauge policy check {file}`" in capsys.readouterr().err


# status, log


def test_status_says_how_everything_stands(capsys: pytest.CaptureFixture[str]) -> None:
    under_way = UnderWay("1:leak:0:1", ActionKind.CHECKPOINT, JOB, NOW_S, "waiting for proof, 210 s left")
    busy = replace(STATUS, policy_file="/etc/p.yaml", under_way=(under_way,))
    with serving(FakeStore(), busy) as url:
        assert main(["policy", "status", "--api", url]) == 0
    page = capsys.readouterr().out
    assert "mode        act: the actions of the rules are taken, within the brakes\n" in page
    assert "policy      /etc/p.yaml\nactions     not paused\nbreaker     closed\ndatabase    ok\n" in page
    assert "in progress checkpoint of job 4711 since " in page
    assert page.endswith(": waiting for proof, 210 s left\n")


@pytest.mark.parametrize(
    ("changes", "exit_code", "text"),
    [
        ({"paused": "by ada since noon"}, 0, "actions     PAUSED by ada since noon"),
        ({"breaker": "4 of 20 jobs"}, 1, "breaker     OPEN: 4 of 20 jobs; `tidegauge policy resume` resets it"),
        (
            {"user_breakers": ("4 jobs of eve",)},
            1,
            "breaker     closed\nbreaker     OPEN: 4 jobs of eve; `tidegauge policy resume` resets it",
        ),
        ({"store_problem": "disk full"}, 1, "database    PROBLEM, no decisions: disk full"),
        ({"records_problem": "disk full"}, 1, "records     PROBLEM, no jobs are recorded: disk full"),
        ({"scheduler_problems": {"ray": "no answer"}}, 1, "ray         PROBLEM: no answer"),
        ({"policy_problem": "line 3: no"}, 1, "PROBLEM     line 3: no (the last valid policy stays in force"),
    ],
)
def test_policy_status_exits_nonzero_for_a_problem_but_not_for_a_pause(
    changes: dict[str, object], exit_code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(FakeStore(), replace(STATUS, **changes)) as url:  # type: ignore[arg-type]  # fields by name
        assert main(["policy", "status", "--api", url]) == exit_code
    assert text in capsys.readouterr().out


def test_policy_status_in_one_line_names_what_needs_attention() -> None:
    assert policy_status.in_one_line(STATUS) == "policy act, 1 incident open"
    assert policy_status.in_one_line(replace(STATUS, user_breakers=("eve",))) == (
        "policy act, 1 incident open, circuit breaker of 1 user OPEN"
    )
    assert policy_status.in_one_line(replace(STATUS, records_problem="full")) == (
        "policy act, 1 incident open, NO RECORDS of jobs, PROBLEMS, see `tidegauge policy status`"
    )
    bad = replace(STATUS, paused="by ada", breaker="many", store_problem="full")
    assert policy_status.in_one_line(bad) == (
        "policy act, 1 incident open, PAUSED by ada, circuit breaker OPEN, PROBLEMS, see `tidegauge policy status`"
    )


def test_the_log_has_every_decision_and_what_became_of_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "log", "--api", url]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 6
    assert "requeue     not taken (mode observe)" in rows[1]
    assert "checkpoint  on hold (paused)" in rows[3]
    assert "checkpoint  done: 2 of 2 ranks saved at step 412" in rows[4]
    assert main(["policy", "log", "--limit", "1", "--api", url]) == 0
    assert capsys.readouterr().out.startswith("4 older decisions are not shown (--limit)\n")


def test_an_empty_log_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeStore(), STATUS) as url:
        assert main(["policy", "log", "--api", url]) == 0
    assert capsys.readouterr().out == "no decisions in this period\n"


# pause, resume


@pytest.fixture
def files(tmp_path: Path) -> StateFiles:
    return prepare_state_dir(tmp_path / "state")


def node_spec(files: StateFiles, *, is_head: bool) -> NodeSpec:
    return NodeSpec(
        state_dir=str(files.root), engine_dir="e", token_file="t", head_address="10.0.0.1:6399",
        node_address="10.0.0.2", is_head=is_head, settings={},
    )  # fmt: skip


def test_pause_and_resume_set_the_switch_of_the_head(files: StateFiles, capsys: pytest.CaptureFixture[str]) -> None:
    write_spec(files, node_spec(files, is_head=True))
    where = ["--set", f"state_dir={files.root}"]
    assert main(["policy", "pause", "--reason", "moving the racks", *where]) == 0
    paused = ActionSwitch(files.actions).read(now_s=NOW_S).paused
    assert paused is not None
    assert paused.startswith(f"by {policy_switch._who()} since ")
    assert paused.endswith(": moving the racks")
    said = capsys.readouterr().out
    assert "no action on any job until `tidegauge policy resume`" in said
    assert "No service is running here; this takes effect when one starts." in said
    assert "`tidegauge policy status`" not in said
    assert main(["policy", "status", *where]) == 3
    assert f"Actions are PAUSED {paused}" in capsys.readouterr().err
    assert main(["policy", "resume", *where]) == 0
    switches = ActionSwitch(files.actions).read(now_s=NOW_S)
    assert (switches.paused, switches.breaker_reset_s) == (None, NOW_S)
    assert "the circuit breakers are reset" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["pause", "resume"])
def test_the_switch_is_refused_where_it_would_do_nothing(
    what: str, files: StateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--set", f"state_dir={files.root}"]
    assert main(["policy", what, *where]) == 3
    assert f"tidegauge policy {what}: no service was ever started with the state directory" in capsys.readouterr().err
    write_spec(files, node_spec(files, is_head=False))
    assert main(["policy", what, *where]) == 3
    assert "only an agent; run this on the head 10.0.0.1:6399" in capsys.readouterr().err
    files.node.write_text("{")
    assert main(["policy", what, *where]) == 3
    assert "run this as the user who runs the service" in capsys.readouterr().err
    assert not files.actions.exists()


def test_a_switch_that_cannot_be_set_is_not_taken_for_set(
    files: StateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    write_spec(files, node_spec(files, is_head=True))
    files.actions.mkdir()
    assert main(["policy", "pause", "--set", f"state_dir={files.root}"]) == 3
    said = capsys.readouterr()
    assert "NOTHING HAS CHANGED" in said.err
    assert said.out == ""


def test_every_subcommand_has_a_line_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["policy", "--help"])
    page = capsys.readouterr().out
    assert all(
        name in page for name in ("status", "log", "show", "check", "simulate", "grade", "schema", "pause", "resume")
    )
