"""The keeper with real commands: it is their terminal's job, passes everything on, and restarts what it is asked to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kept_jobs import KeptJob, ask, job_environ, keep_command, wait_for_end
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.launches import LaunchState, decode_launch_record
from tidegauge.osproc.processes import identity_of, is_alive, send_signal

READY = 'echo "up $TIDEGAUGE_ATTEMPT"; '
SLEEP = READY + "exec sleep 600"

Start = Callable[..., KeptJob]


@pytest.fixture
def start(short_path: Path) -> Iterator[Start]:
    """Start a job; ended after the test."""
    jobs: list[KeptJob] = []

    def start(script: str, **options: Any) -> KeptJob:
        jobs.append(KeptJob(short_path / "run", script, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


def identity(pid: str) -> ProcessId:
    process = identity_of(int(pid))
    assert process is not None
    return process


# The command is as if it had been started alone


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_the_exit_status_is_the_commands_own(start: Start, script: str, status: int) -> None:
    assert start(script).wait() == status


def test_a_command_that_was_interrupted_looks_so_to_the_shell(start: Start) -> None:
    assert start("kill -INT $$").wait() == -signal.SIGINT


def test_streams_are_the_commands_own(start: Start) -> None:
    job = start("cat; echo oops >&2")
    out, err = job.popen.communicate("a line\n", timeout=60)
    assert (out, err) == ("a line\n", "oops\n")


def test_the_command_begins_with_no_signal_blocked_or_ignored(start: Start) -> None:
    job = start("exec grep -E 'Sig(Blk|Ign)' /proc/self/status")
    masks = dict(job.line().split(":\t") for _ in range(2))
    assert int(masks["SigBlk"], 16) == 0
    assert int(masks["SigIgn"], 16) & (1 << 31) - 1 == 0  # above are those that glibc keeps for itself


def test_keeper_leaves_ignored_signals_ignored(start: Start) -> None:
    job = start(SLEEP, ignored=[signal.SIGHUP])
    job.line()
    send_signal(job.command(), signal.SIGHUP)
    job.signal(signal.SIGHUP)
    assert job.ask("requeue") == {"ok": True}  # nobody asked for the end of it
    assert job.line() == "up 1"


def test_a_command_that_cannot_run_leaves_nothing_behind(start: Start) -> None:
    job = start("", command=["/no/such/program"])
    _, err = job.rest()
    assert "FileNotFoundError" in err
    assert list(job.folder.iterdir()) == []


def test_without_a_run_directory_the_job_runs_and_its_owner_is_told(short_path: Path) -> None:
    (short_path / "file").touch()
    environ = job_environ(short_path / "file")
    done = subprocess.run(keep_command(["sh", "-c", "exit 4"]), env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    assert done.stderr.count("tidegauge:") == 1
    assert "cannot be requeued" in done.stderr


def test_its_files_are_the_users_own_and_gone_at_the_end(start: Start) -> None:
    job = start(SLEEP)
    job.line()
    job.settle()
    assert {path.stat().st_mode & 0o777 for path in job.folder.iterdir()} == {0o600}
    assert len(list(job.folder.iterdir())) == 2
    send_signal(job.command(), signal.SIGKILL)
    assert job.wait() == 137
    assert list(job.folder.iterdir()) == []


def exit_told(job: KeptJob) -> tuple[int | None, bool]:
    (record,) = [path for path in job.folder.iterdir() if path.suffix == ".job"]
    told = decode_launch_record(record.read_bytes())
    return told.exit_status, told.cancelled


def test_where_a_rank_left_a_ring_the_record_stays_and_says_how_the_job_ended(start: Start) -> None:
    job = start(READY + "read line; exit 3")
    job.line()
    (job.folder / "4-4.ring").touch()
    job.popen.communicate("go\n", timeout=60)
    assert exit_told(job) == (3, False)
    assert sorted(path.suffix for path in job.folder.iterdir()) == [".job", ".ring"]


def test_a_job_that_a_person_ended_was_cancelled(start: Start) -> None:
    job = start("trap 'exit 0' TERM; " + READY + "while :; do sleep 0.05; done")
    job.line()
    (job.folder / "4-4.ring").touch()
    job.popen.terminate()
    assert job.wait() == 0
    assert exit_told(job) == (0, True)


def test_keeper_leaves_background_processes_of_the_command_running(start: Start) -> None:
    job = start("sleep 600 >&- 2>&- & echo $!")
    left = identity(job.line())
    job.adopt(left)
    assert job.wait() == 0
    assert is_alive(left)


# Signals


def test_a_signal_to_the_keeper_is_for_the_command(start: Start) -> None:
    job = start(f"trap 'echo got it; exit 3' TERM; {READY} while :; do sleep 0.01; done")
    job.line()
    job.signal(signal.SIGTERM)
    assert job.wait() == 3
    assert job.rest()[0] == "got it\n"


def test_a_command_that_signals_its_whole_group_does_not_hear_itself(start: Start) -> None:
    job = start("trap 'echo heard' USR1; kill -USR1 0; sleep 0; echo up; exec sleep 600")
    # Its own signal once, and no second time through the keeper, which is in the group too.
    assert (job.line(), job.line()) == ("heard", "up")
    assert job.ask("describe")["ok"]


def test_a_job_that_its_owner_just_asked_to_end_is_not_started_again(start: Start) -> None:
    job = start(f"trap 'echo saving' TERM; {READY} while :; do sleep 0.01; done")
    job.line()
    job.signal(signal.SIGTERM)
    assert job.line() == "saving"
    assert job.ask("requeue")["kind"] == "busy"
    assert job.record().decisions == ()


def test_an_owner_who_ends_the_job_while_it_is_requeued_has_the_last_word(start: Start) -> None:
    job = start(f"trap 'echo leaving' TERM; trap 'echo hurried' INT; {READY} while :; do sleep 0.01; done")
    job.line()
    assert job.ask("requeue", grace_s=3000) == {"ok": True}
    assert job.line() == "leaving"
    job.signal(signal.SIGINT)
    assert job.line() == "hurried"  # so the keeper has heard it
    send_signal(job.command(), signal.SIGKILL)
    assert job.wait() == -signal.SIGINT
    out, err = job.rest()
    assert "up 1" not in out
    assert "not restarted" in err


# Requeue, hold, cancel


def test_requeue_ends_the_command_and_starts_it_again_with_the_changes(start: Start) -> None:
    script = READY + 'echo "$PYTORCH_CUDA_ALLOC_CONF $A"; exec sleep 600'
    job = start(script, environ={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})
    assert (job.line(), job.line()) == ("up 0", "max_split_size_mb:64 ")
    first = job.command()
    expand = {"expandable_segments": "True"}
    assert job.ask("requeue", reason="fragmentation", alloc_conf=expand, environ={"A": "b c"}) == {"ok": True}
    assert (job.line(), job.line()) == ("up 1", "max_split_size_mb:64,expandable_segments:True b c")
    assert not is_alive(first)
    assert "fragmentation" in job.said()
    record = job.record()
    assert (record.restarts, record.state, record.decisions) == (1, LaunchState.RUNNING, ("d-1",))


def test_a_second_requeue_is_about_the_second_attempt(start: Start) -> None:
    job = start(SLEEP)
    job.line()
    job.ask("requeue", "d-1")
    assert job.line() == "up 1"
    assert job.ask("requeue", "d-2")["kind"] == "changed"
    assert job.ask("requeue", "d-2", restarts=1) == {"ok": True}
    assert job.line() == "up 2"


def test_the_same_requeue_from_two_sides_at_once_restarts_once(start: Start) -> None:
    job = start(SLEEP)
    job.line()
    first, second = job.connect(), job.connect()
    line = json.dumps({"command": "requeue", "id": "d-1", "restarts": 0}).encode() + b"\n"
    first.sendall(line)
    assert ask(second, json.loads(line)).keys() <= {"ok", "already"}
    first.close()
    assert job.line() == "up 1"
    assert job.ask("requeue") == {"ok": True, "already": True}
    assert job.record().restarts == 1


def test_a_decision_is_on_record_when_the_command_is_asked_to_end(start: Start, short_path: Path) -> None:
    seen = short_path / "seen"
    job = start(
        f"trap 'cat $TIDEGAUGE_RUN_DIR/*/*.job > {seen}; exit 0' TERM; {READY} while :; do sleep 0.01; done",
    )
    job.line()
    job.ask("cancel", "d-written")
    assert job.wait() == 1
    found = json.loads(seen.read_text())
    assert (found["decisions"], found["state"]) == (["d-written"], "stopping")


def test_a_command_that_ends_by_itself_meanwhile_is_started_again_once(start: Start) -> None:
    job = start(f"trap '' TERM; {READY} exec sleep 600")
    job.line()
    assert job.ask("requeue", grace_s=3000) == {"ok": True}
    send_signal(job.command(), signal.SIGKILL)
    assert job.line() == "up 1"
    assert job.ask("describe")["restarts"] == 1


def test_a_command_that_has_ended_is_not_started_again(start: Start) -> None:
    job = start(READY + "read line; exit 5")
    job.line()
    connection = job.connect()
    job.signal(signal.SIGSTOP)  # the keeper sees neither the end nor the request before both are there
    command = job.command()
    job.type("go")
    wait_for_end(command)
    connection.sendall(json.dumps({"command": "requeue", "id": "d-1", "restarts": 0}).encode() + b"\n")
    job.signal(signal.SIGCONT)
    assert job.wait() == 5
    connection.close()
    assert "up 1" not in job.rest()[0]


def test_a_command_that_does_not_listen_is_ended_by_force(start: Start) -> None:
    job = start(f"trap '' TERM; {READY} while :; do sleep 0.01; done")
    job.line()
    first = job.command()
    job.ask("requeue", grace_s=0.1)
    assert job.line() == "up 1"
    assert not is_alive(first)


def test_ranks_in_sessions_of_their_own_and_orphans_are_ended_too(start: Start) -> None:
    orphan = "(setsid sh -c 'echo $$; exec sleep 600' &)"
    job = start(f"{orphan}; {READY} setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.01; done'")
    lines = {job.line() for _ in range(3)}
    assert "up 0" in lines
    ranks = [identity(pid) for pid in lines - {"up 0"}]
    assert len(ranks) == 2
    job.ask("requeue", grace_s=0.2)
    while job.line() != "up 1":
        pass
    assert not any(is_alive(rank) for rank in ranks)


def test_processes_from_before_the_job_are_nobodys_to_end(start: Start) -> None:
    job = start(SLEEP, launcher=["sh", "-c", 'sleep 600 >&- 2>&- & echo $!; exec "$@"', "sh"])
    stranger = identity(job.line())
    assert job.line() == "up 0"
    assert job.ask("requeue") == {"ok": True}
    assert job.line() == "up 1"
    assert is_alive(stranger)
    job.ask("cancel", "d-2", restarts=1)
    assert job.wait() == 1
    assert is_alive(stranger)


def test_hold_ends_the_job_and_says_how_to_start_it(start: Start) -> None:
    job = start(SLEEP)
    job.line()
    job.ask("cap", "d-1", fraction=0.5)
    job.ask("hold", "d-2", reason="third attempt that leaks")
    assert job.wait() == 1
    _, err = job.rest()
    assert "third attempt that leaks" in err
    assert f"env TIDEGAUGE_MEMORY_FRACTION=0.5 tidegauge run -- sh -c '{SLEEP}'" in err
    assert all(line.startswith("tidegauge: ") for line in err.splitlines())


def test_cancel_ends_the_job_for_good(start: Start) -> None:
    job = start(SLEEP)
    job.line()
    command = job.command()
    job.ask("cancel", reason="it takes its neighbours down")
    assert job.wait() == 1
    assert not is_alive(command)
    assert "takes its neighbours down" in job.rest()[1]


def test_a_cap_counts_for_later_attempts(start: Start) -> None:
    job = start('echo "up $TIDEGAUGE_MEMORY_FRACTION"; exec sleep 600')
    assert job.line() == "up "
    job.ask("cap", "d-1", fraction=0.25)
    job.ask("requeue", "d-2")
    assert job.line() == "up 0.25"


def test_a_notice_reaches_the_owner_in_lines_that_say_whose_they_are(start: Start) -> None:
    job = start(SLEEP)
    job.line()
    job.ask("notify", text="rank 3 leaks\nsee \x1b[31mincident 7")
    assert (job.said(), job.said()) == ("tidegauge: rank 3 leaks", "tidegauge: see ?[31mincident 7")


def test_a_command_that_cannot_be_started_again_ends_the_job(start: Start, short_path: Path) -> None:
    program = short_path / "train.sh"
    program.write_text(f"#!/bin/sh\n{SLEEP}\n")
    program.chmod(0o755)
    job = start("", command=[str(program)])
    job.line()
    program.unlink()
    job.ask("requeue")
    assert job.wait() == 126
    assert "cannot be restarted" in job.rest()[1]


# The keeper in trouble


def test_a_keeper_that_is_killed_takes_nothing_with_it(start: Start) -> None:
    job = start(SLEEP)
    job.line()
    command = job.command()
    job.signal(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    assert is_alive(command)
    assert job.record().process == job.process  # for the agent to see that it is over


def test_a_run_directory_that_goes_away_costs_the_job_nothing(start: Start) -> None:
    job = start(READY + "read line; exit 6")
    job.line()
    with job.connect() as connection:
        while job.run_dir.exists():  # the keeper may write into it meanwhile
            shutil.rmtree(job.run_dir, ignore_errors=True)
        assert ask(connection, {"command": "notify", "id": "d-1", "restarts": 0, "text": "a word"}) == {"ok": True}
    assert "the job continues" in job.said()
    assert job.said() == "tidegauge: a word"
    job.type("go")
    assert job.wait() == 6


def test_nonsense_on_the_socket_is_answered_and_harms_nobody(start: Start) -> None:
    job = start(SLEEP)
    job.line()
    connection = job.connect()
    connection.sendall(b"\xff\x00{[\n")
    with connection, connection.makefile("rb") as lines:
        assert b"error" in lines.readline()
    assert job.ask("describe")["job_id"] == "job-1"
    assert is_alive(job.command())


def test_leftovers_of_dead_keepers_are_tidied(start: Start, short_path: Path) -> None:
    folder = short_path / "run" / str(os.geteuid())
    folder.mkdir(parents=True, mode=0o700)
    for name in ("4194304-1.job", "4194304-1.job.sock", "4194304-1.job.new", "notes.txt"):
        (folder / name).touch()
        os.utime(folder / name, (1e9, 1e9))
    job = start(SLEEP)
    job.line()
    job.settle()
    assert {path.name.split(".", 1)[1] for path in folder.iterdir()} == {"job", "job.sock", "txt"}
    assert not (folder / "4194304-1.job").exists()
