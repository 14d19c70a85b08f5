"""What `scontrol listpids` says and how it is asked: its text, and programs that take its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.agent.slurm.listpids import MAX_OUTPUT_BYTES, ListPids, find_scontrol, parse_listpids, scontrol_environ
from tidegauge.core.ids import JobId
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.settings import Settings
from waiting import PATIENCE_S

TABLE = """\
PID      JOBID    STEPID   LOCALID GLOBALID
182      2        0        0       4
183      2        0        1       5
142      1        batch    0       0
155      1        batch    -       -
201      1        interactive 0    0
300      7        extern   -       -
301      7        extern   -       -
301      7        0        0       0
400      9        0+1      0       0
"""
"""Written by Slurm 22.05.8, the last four lines in its manner: pam_slurm_adopt and a heterogeneous job."""


def place(job: str, step: str) -> SlurmPlace:
    return SlurmPlace(JobId(job), step)


def test_every_process_has_its_job_and_step() -> None:
    assert parse_listpids(TABLE) == {
        182: place("2", "0"),
        183: place("2", "0"),
        142: place("1", "batch"),
        155: place("1", "batch"),
        201: place("1", "interactive"),
        300: place("7", "extern"),
        301: place("7", "0"),
        400: place("9", "0+1"),
    }


def test_a_pid_in_two_jobs_is_in_neither() -> None:
    table = TABLE + "182      3        0        0       0\n182      2        1        0       0\n"
    assert 182 not in parse_listpids(table)
    assert 183 in parse_listpids(table)


def test_columns_are_found_by_their_names() -> None:
    assert parse_listpids("JOBID  SLUID  PID  STEPID\n12 s0HN 99 batch\n") == {99: place("12", "batch")}


@pytest.mark.parametrize("text", ["", "\n", "PID STEPID\n1 0\n", "Invalid job id specified\n", "1 2 0 0 0\n"])
def test_a_text_without_the_tables_head_says_nothing(text: str) -> None:
    assert parse_listpids(text) == {}


@pytest.mark.parametrize(
    "line",
    ["-1 1 0 - -", "0 1 0 - -", "12 0 0 - -", "1e3 1 0 - -", "12 1 - - -", "12 1 /etc - -", "12 1", "12",
     "٣ 1 0 0 0", "12 99999999999 0 0 0", "12 1 " + "x" * 40, "12 ../../1 0 0 0"],
)  # fmt: skip
def test_a_line_that_is_no_process_of_a_step_is_passed_over(line: str) -> None:
    assert parse_listpids(f"{TABLE}{line}\n") == parse_listpids(TABLE)


rows = st.tuples(
    st.integers(1, 1 << 22), st.integers(1, (1 << 32) - 1), st.sampled_from(["0", "17", "batch", "extern", "0+1"])
)


@given(st.lists(rows, unique_by=lambda row: row[0]))
def test_any_table_comes_back_as_it_was_written(table: list[tuple[int, int, str]]) -> None:
    lines = [f"{pid:<8} {job:<8} {step:<8} -       -       " for pid, job, step in table]
    found = parse_listpids("\n".join(["PID      JOBID    STEPID   LOCALID GLOBALID", *lines]))
    assert found == {pid: place(str(job), step) for pid, job, step in table}


@given(st.text())
def test_no_text_is_too_much(text: str) -> None:
    found = parse_listpids("PID JOBID STEPID\n" + text)
    assert all(pid > 0 and each.job_id.isdigit() and each.job_id.isascii() for pid, each in found.items())


# --- the command


def scontrol(folder: Path, script: str) -> ListPids:
    program = folder / "scontrol"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return ListPids(str(program), {"PATH": "/usr/bin:/bin"}, timeout_s=PATIENCE_S)


def test_asks_for_all_processes_of_the_node(tmp_path: Path) -> None:
    said = scontrol(tmp_path, f'[ "$*" = listpids ] && cat <<END\n{TABLE}END')()
    assert said.problem is None
    assert said.places == parse_listpids(TABLE)


def test_an_idle_node_is_no_failure(tmp_path: Path) -> None:
    script = "echo PID JOBID STEPID LOCALID GLOBALID; echo No job steps exist on this node. >&2; exit 1"
    assert scontrol(tmp_path, script)() == ({}, None)


def test_a_step_that_ends_meanwhile_is_no_failure(tmp_path: Path) -> None:
    script = f"cat <<END\n{TABLE}END\necho Job step 3.0 does not exist on this node. >&2; exit 1"
    said = scontrol(tmp_path, script)()
    assert (said.problem, len(said.places)) == (None, 8)


def test_a_step_that_does_not_answer_leaves_the_others_known(tmp_path: Path) -> None:
    said = scontrol(tmp_path, f"cat <<END\n{TABLE}END\necho Unable to connect to slurmstepd: x >&2; exit 1")()
    assert said.problem == "scontrol listpids: Unable to connect to slurmstepd: x"
    assert len(said.places) == 8


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo scontrol: error: stepd_available: Couldn\\'t find nodename >&2\n"
         "echo No job steps exist on this node. >&2\nexit 1", "stepd_available: Couldn't find nodename"),
        ("exit 3", "exit status 3"),
        ("printf 'a\\033[31mb' >&2; exit 1", "a [31mb"),
    ],
)  # fmt: skip
def test_scontrol_listpids_reports_its_problem(tmp_path: Path, script: str, problem: str) -> None:
    said = scontrol(tmp_path, script)()
    assert said.places == {}
    assert said.problem is not None
    assert problem in said.problem


def test_a_program_that_does_not_run_is_told(tmp_path: Path) -> None:
    said = ListPids(str(tmp_path / "scontrol"), {})()
    assert said.problem == f"{tmp_path}/scontrol cannot be run: No such file or directory"


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    scontrol(tmp_path, "exec sleep 600")
    said = ListPids(str(tmp_path / "scontrol"), {"PATH": "/usr/bin:/bin"}, timeout_s=0.1)()
    assert said == ({}, "scontrol listpids did not finish within 0.1 s")


@pytest.mark.slow
def test_scontrol_listpids_bounds_the_output_it_reads(tmp_path: Path) -> None:
    said = scontrol(tmp_path, "echo PID JOBID STEPID; echo 12 1 0; exec yes 13 1 0")()
    assert said.problem == f"scontrol listpids wrote more than {MAX_OUTPUT_BYTES} bytes"
    assert said.places == {12: place("1", "0"), 13: place("1", "0")}


def test_scontrol_is_where_the_admin_says_or_on_the_path(tmp_path: Path) -> None:
    scontrol(tmp_path, "")
    elsewhere = tmp_path / "empty"
    assert find_scontrol(Settings(slurm_bin_dir=tmp_path), {"PATH": ""}) == str(tmp_path / "scontrol")
    assert find_scontrol(Settings(slurm_bin_dir=elsewhere), {"PATH": str(tmp_path)}) is None
    assert find_scontrol(Settings(), {"PATH": str(tmp_path)}) == str(tmp_path / "scontrol")
    assert find_scontrol(Settings(), {"PATH": str(elsewhere)}) is None


def test_scontrol_is_asked_about_this_node_and_no_other_cluster(tmp_path: Path) -> None:
    settings = Settings(slurm_conf=tmp_path / "slurm.conf", slurm_node_name="n7")
    environ = scontrol_environ(settings, {"PATH": "/bin", "SLURM_CLUSTERS": "other", "SLURMD_NODENAME": "n1"})
    assert environ == {"PATH": "/bin", "SLURM_CONF": str(tmp_path / "slurm.conf"), "SLURMD_NODENAME": "n7"}
    assert scontrol_environ(Settings(), {"SLURMD_NODENAME": "n1"}) == {"SLURMD_NODENAME": "n1"}
