"""Slurm's commands as processes, and what their refusals mean, in the words recorded on 22.05, 24.11 and 26.05."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from scheduler_hooks.slurm.fake_slurm import (
    AWAY,
    AWAY_FOR_SCANCEL,
    AWAY_FOR_SCONTROL,
    DENIED,
    DENIED_BY_SCANCEL,
    NO_REQUEUE,
    NOT_BATCH,
    NOT_YOURS,
    PENDING_ALREADY,
    UNKNOWN,
    UNKNOWN_TO_SQUEUE,
    FakeSlurm,
    recorded,
)
from tidegauge_scheduler_hooks.ports import ChangedError, PermanentError, SchedulerError, TemporaryError
from tidegauge_scheduler_hooks.slurm import commands as slurm_commands
from tidegauge_scheduler_hooks.slurm.commands import (
    MAX_NAMED,
    Finished,
    OverrunError,
    SlurmCommands,
    check,
    run_bounded,
)

ENVIRON = {"PATH": os.defpath}
MAX_OUTPUT_BYTES = 1 << 20
NO_CONTROLLER_22_05 = b"""{ "meta": {}, "errors": [ { "description": "Failed while looking for jobs",
  "error_number": -1, "error": "Unspecified error", "source": "slurm_load_jobs" } ], "jobs": [ ] }"""
"""``squeue --json`` of 22.05 without a controller; it ends with 0, and says nothing on its standard error."""


# What is said


@pytest.mark.parametrize(
    ("said", "error", "advice"),
    [
        (AWAY, TemporaryError, ""),
        (AWAY_FOR_SCONTROL, TemporaryError, ""),
        (AWAY_FOR_SCANCEL, TemporaryError, ""),
        ("scancel: error: Kill job error on job id 7: Socket timed out on send/recv operation", TemporaryError, ""),
        ("", TemporaryError, "exit status 1"),
        ("something new", TemporaryError, ""),
        (UNKNOWN, ChangedError, ""),
        (UNKNOWN_TO_SQUEUE, ChangedError, ""),
        ("4_[9]: Invalid job id specified", ChangedError, ""),
        (PENDING_ALREADY, ChangedError, ""),
        ("Job has already finished for job 7", ChangedError, ""),
        (DENIED, PermanentError, "AdminLevel=Operator"),
        (DENIED_BY_SCANCEL, PermanentError, "AdminLevel=Operator"),
        ("4_[1]: Access/permission denied", PermanentError, "AdminLevel=Operator"),
        (NOT_YOURS, PermanentError, "AdminLevel=Operator"),
        ("7_3: Invalid user id", PermanentError, "AdminLevel=Operator"),
        (NO_REQUEUE, PermanentError, "requeue=1"),
        (NOT_BATCH, PermanentError, "srun and salloc"),
        ("Pathname of a file, directory or other parameter too long for job 7", PermanentError, ""),
        ("squeue: fatal: Unable to process configuration file", PermanentError, "slurm_conf"),
    ],
)
def test_every_refusal_is_one_of_our_errors(said: str, error: type[SchedulerError], advice: str) -> None:
    with pytest.raises(error, match=f"Slurm: cannot requeue job 7: .*{advice}"):
        check(Finished(1, b"", said.format(name="7").encode()), "requeue job 7")


def test_a_warning_beside_a_good_answer_is_none() -> None:
    check(Finished(0, b"", b"squeue: error: Plugin tidegauge.so: incompatible Slurm plugin version (22.05.8)"), "x")


def test_slurm_error_is_truncated_and_stripped_of_control_characters() -> None:
    with pytest.raises(TemporaryError) as caught:
        check(Finished(1, b"", b"\x1b[31mred\r\n" + b"x" * 10_000), "x")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_a_job_list_that_names_its_error_is_no_empty_list() -> None:
    slurm = FakeSlurm()
    slurm.before = lambda _: Finished(0, NO_CONTROLLER_22_05, b"")
    with pytest.raises(TemporaryError, match="Failed while looking for jobs"):
        slurm.jobs([7])


def test_jobs_that_nobody_knows_are_none() -> None:
    slurm = FakeSlurm()
    slurm.before = lambda _: Finished(1, b"", UNKNOWN_TO_SQUEUE.encode())
    assert slurm.jobs([7]) == []
    assert slurm.look("7") is None
    slurm.before = lambda _: Finished(0, b"", b"")
    assert slurm.look("7_3") is None


def test_jobs_are_named_unless_there_are_too_many() -> None:
    slurm = FakeSlurm()
    slurm.jobs([9, 7])
    slurm.jobs(range(MAX_NAMED + 1))
    assert slurm.calls == [("squeue", "--all", "--json", "-j", "7,9"), ("squeue", "--all", "--json")]


# Processes


def script(folder: Path, program: str, text: str) -> SlurmCommands:
    """Commands of which one is a shell script; the others are missing."""
    path = folder / program
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return SlurmCommands(folder, timeout_s=20.0)


def test_commands_come_from_the_folder_that_was_named(short_path: Path) -> None:
    (short_path / "answer").write_bytes(recorded("22.05"))
    commands = script(short_path, "squeue", f'cat "{short_path}/answer"')
    assert len(commands.jobs([1])) == 15
    with pytest.raises(PermanentError, match=r"scontrol cannot be run here .*slurm_bin_dir"):
        commands.requeue("7")


def test_slurm_commands_do_not_inherit_the_callers_slurm_variables(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_FORMAT", "SLURM_JOB_ID", "SCANCEL_STATE", "SLURM_CLUSTERS", "LANG"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/site/slurm.conf")
    text = f'env > "{short_path}/environ"'
    script(short_path, "scancel", text).cancel("7")
    names = {line.partition("=")[0] for line in (short_path / "environ").read_text().splitlines()}
    assert names - {"PWD", "_", "SHLVL"} == {"PATH", "LC_ALL", "SLURM_TIME_FORMAT", "SLURM_CONF"}
    SlurmCommands(short_path, Path("/other.conf")).cancel("7")
    assert "SLURM_CONF=/other.conf" in (short_path / "environ").read_text()


def test_a_comment_is_one_argument_with_every_byte(short_path: Path) -> None:
    comment = b'a; "b" $(reboot)\n\xe9 \xc3\xbc'.decode(errors="surrogateescape")
    script(short_path, "scontrol", f'printf "%s|" "$@" > "{short_path}/arguments"').set_comment("7_3", comment)
    expected = b'update|jobid=7_3|comment=a; "b" $(reboot)\n\xe9 \xc3\xbc|'
    assert (short_path / "arguments").read_bytes() == expected


def time_is_up_with(child: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of one second is over once the number of the child is there, however slow this machine is."""

    def monotonic() -> float:
        return 10.0 if child.exists() and child.read_text().endswith("\n") else 0.0

    monkeypatch.setattr(slurm_commands, "time", SimpleNamespace(monotonic=monotonic))


def test_a_command_that_hangs_is_ended_with_its_children(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = short_path / "child"
    time_is_up_with(child, monkeypatch)
    script(short_path, "squeue", f'sleep 600 & echo $! > "{child}"; wait')
    commands = SlurmCommands(short_path, timeout_s=1.0)
    with pytest.raises(TemporaryError, match="squeue was stopped: no answer within 1 s"):
        commands.look("7")
    ended(int(child.read_text()))


def test_a_child_that_keeps_the_output_open_is_ended_too(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = short_path / "child"
    time_is_up_with(child, monkeypatch)
    with pytest.raises(OverrunError, match="no answer within 1 s"):
        run_bounded(
            [b"sh", b"-c", f'sleep 600 & echo $! > "{child}"'.encode()],
            timeout_s=1.0,
            environ=ENVIRON,
            most_bytes=MAX_OUTPUT_BYTES,
        )
    ended(int(child.read_text()))


def test_an_answer_without_end_is_cut_off() -> None:
    with pytest.raises(OverrunError, match="longer than 1048576 bytes"):
        run_bounded([b"yes"], timeout_s=60.0, environ=ENVIRON, most_bytes=MAX_OUTPUT_BYTES)


def test_both_outputs_and_the_code_come_back_whole() -> None:
    command = b"head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; exit 210"
    done = run_bounded([b"sh", b"-c", command], timeout_s=60.0, environ=ENVIRON, most_bytes=MAX_OUTPUT_BYTES)
    assert done == Finished(210, bytes(300_000), bytes(300_000))


def ended(pid: int) -> None:
    """Return once a process is gone, or waits as a zombie for somebody to fetch it."""
    deadline_s = time.monotonic() + 60.0
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except (FileNotFoundError, ProcessLookupError):  # the latter: it ended while it was read
            return
        if state == "Z":
            return
    raise AssertionError(f"{pid} lives on")
