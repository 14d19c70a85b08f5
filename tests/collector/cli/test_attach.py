"""``tidegauge attach``: whom it means, and what it says where it cannot. Real jobs: tests/integration/attach."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tidegauge.cli.attach.command import FINDING_WORDS, attach, detach, obstacle
from tidegauge.cli.attach.process import AttachTarget, NoTargetError, SeenProcess, see, socket_of, targets_of
from tidegauge.cli.main import main
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat
from tidegauge.core.run_dirs import socket_name
from tidegauge.launch import remote_script
from tidegauge.osproc.processes import identity_of
from tidegauge.probe.run_files.command_socket import CommandSocket
from tidegauge.probe.run_files.run_folder import open_run_folder

TORCH = frozenset({"/v/lib/libtorch_python.so", "/v/lib/libtorch_cpu.so", "/v/lib/libtorch_cuda.so"})
CUDA = TORCH | {"/usr/lib/libcuda.so.1"}


def seen_process(*mapped: str, **environ: str) -> SeenProcess:
    """Of this user, in no container."""
    return SeenProcess(
        stat=ProcStat(ProcessId(4711, 99), "python", "S", 1, 1, 4, 1000),
        uid=os.geteuid(), gid=os.getegid(), groups=(), inner_pid=4711, command="python\0train.py\0",
        environ=environ, mapped=frozenset(mapped), mount_namespace=1, elsewhere=False,
    )  # fmt: skip


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "100"], env={"TIDEGAUGE_JOB_ID": "attach-unit-test"})
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("path", "release"),
    [
        ("/usr/bin/python3.12", (3, 12)),
        ("/opt/conda/bin/python3.14t", (3, 14)),
        ("/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0", (3, 11)),
        ("/usr/lib/python3.9/lib-dynload/_json.cpython-39-x86_64-linux-gnu.so", (3, 9)),
        ("/home/me/python3.12/bin/train", None),
        ("/usr/bin/python2.7", None),
        ("/usr/bin/sleep", None),
    ],
)
def test_the_python_is_told_by_what_is_mapped(path: str, release: tuple[int, int] | None) -> None:
    assert seen_process(path, *TORCH).python == release


def test_a_living_process_is_seen_with_its_environment_and_interpreter() -> None:
    code = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={"RANK": "3", "WORLD_SIZE": "8"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seen = see(process.pid)
        process.kill()
    assert seen is not None
    assert (seen.rank, seen.uid, seen.elsewhere) == (3, os.geteuid(), False)
    assert seen.python == sys.version_info[:2]
    assert not seen.torch


def test_a_process_that_ended_is_not_seen(sleeper: subprocess.Popen[bytes]) -> None:
    assert see(sleeper.pid) is not None
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    assert see(sleeper.pid) is None


OLD = ("/usr/bin/python3.12", *CUDA)
NEW = ("/usr/bin/python3.14", *CUDA)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (seen_process("/usr/bin/sleep"), "not a Python process"),
        (seen_process("/usr/bin/python3.12"), "has not loaded PyTorch"),
        (seen_process("/usr/bin/python3.14", *TORCH - {"/v/lib/libtorch_cuda.so"}), "a build without CUDA"),
        (seen_process(*OLD), "Python 3.12 cannot be attached to from outside (PEP 768 needs 3.14)"),
        (seen_process(*OLD), "tidegauge run --memory-profile=dormant -- CMD"),
        (seen_process(*OLD), "py-spy dump --pid 4711"),
        (
            seen_process("/usr/bin/python3.12", *TORCH, TIDEGAUGE_PROFILE="dormant"),
            "takes no commands until the process initialises CUDA",
        ),
        (seen_process(*NEW, TIDEGAUGE_PROFILE="off"), "which rules out a probe"),
        (replace(seen_process(*NEW), elsewhere=True, inner_pid=7), "run `tidegauge attach 7` there"),
        (replace(seen_process(*NEW), mapped=None), "the kernel denies access to the process"),
    ],
)
def test_attach_says_why_a_process_cannot_be_attached_to(seen: SeenProcess, words: str) -> None:
    because = obstacle(seen)
    assert because is not None
    assert words in because
    outcome = attach(AttachTarget(seen, None), "stats", wait_s=1.0, environ={}, say=pytest.fail)
    assert (outcome.good, outcome.said) == (False, because)


def test_python_3_14_with_cuda_can_be_tried() -> None:
    assert obstacle(seen_process(*NEW)) is None


def test_a_process_without_a_probe_cannot_be_detached() -> None:
    assert detach(AttachTarget(seen_process(*OLD), None)).said == "no probe to detach"


def test_whatever_the_script_finds_there_are_words_for_it() -> None:
    assert {*FINDING_WORDS, "waiting", "failed"} == set(remote_script.FINDINGS)


class Rank:
    """This process, as a rank whose probe answers what it is told to."""

    def __init__(self, run_dir: Path, answers: Mapping[str, Mapping[str, object]]) -> None:
        process = identity_of(os.getpid())
        assert process is not None
        self.folder = open_run_folder(str(run_dir), uid=os.geteuid())
        self.asked: list[dict[str, object]] = []
        self.socket = CommandSocket(
            self.folder, socket_name(process), self._answer, allowed_uids=frozenset({os.geteuid()})
        )
        self._answers = answers

    def _answer(self, request: dict[str, object]) -> Mapping[str, object]:
        self.asked.append(request)
        return self._answers[str(request["command"])]


def test_a_socket_is_found_where_the_environment_says(tmp_path: Path) -> None:
    seen = see(os.getpid())
    assert seen is not None
    assert socket_of(seen, {"TIDEGAUGE_RUN_DIR": str(tmp_path / "none")}) is None
    rank = Rank(tmp_path / "run", {})
    try:
        found = socket_of(seen, {"TIDEGAUGE_RUN_DIR": str(tmp_path / "run")})
        theirs = socket_of(replace(seen, environ={"TIDEGAUGE_RUN_DIR": str(tmp_path / "run")}), {})
        assert found is not None
        assert theirs is not None
        assert {found.process, theirs.process} == {seen.process}
        assert (found.uid, found.name) == (os.geteuid(), socket_name(seen.process))
    finally:
        rank.socket.close(unlink=True)
        rank.folder.close()


def test_another_file_in_the_sockets_place_is_no_probe(tmp_path: Path) -> None:
    seen = see(os.getpid())
    assert seen is not None
    folder = open_run_folder(str(tmp_path / "run"), uid=os.geteuid())
    Path(folder.path, socket_name(seen.process)).symlink_to("/dev/log")
    folder.close()
    assert socket_of(seen, {"TIDEGAUGE_RUN_DIR": str(tmp_path / "run")}) is None


@pytest.mark.parametrize("words", [["4194303999"], ["no-such-job"], ["--job", "4194303999"]])
def test_a_word_that_names_nothing_is_an_error_with_what_to_do(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attach", *words]) == 3
    said = capsys.readouterr().err
    assert words[-1] in said
    assert "srun --jobid=ID --overlap tidegauge COMMAND ID" in said


def test_a_zombie_is_named_so(sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]) -> None:
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert main(["attach", str(sleeper.pid)]) == 3
    assert f"pid {sleeper.pid} has ended" in capsys.readouterr().err


def test_a_process_that_is_no_python_is_refused_in_a_table_and_in_json(
    sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attach", str(sleeper.pid)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["pid", "rank", "user", "state"]
    assert "refused" in lines[1]
    assert lines[2] == f"pid {sleeper.pid}: it is not a Python process"
    assert main(["attach", str(sleeper.pid), "--json"]) == 3
    (said,) = json.loads(capsys.readouterr().out)["processes"]
    assert (said["pid"], said["state"], said["way"]) == (sleeper.pid, "refused", None)


def test_a_process_that_a_job_merely_started_is_none_of_its_ranks(
    sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attach", "attach-unit-test"]) == 3
    assert "no job 'attach-unit-test' with PyTorch processes" in capsys.readouterr().err


def test_a_data_loader_worker_names_the_rank_to_attach_to(capsys: pytest.CaptureFixture[str]) -> None:
    code = "open('/proc/self/comm', 'w').write('pt_data_worker'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        assert main(["attach", str(worker.pid)]) == 3
        worker.send_signal(signal.SIGKILL)
    assert f"is a DataLoader worker; attach to its parent instead: pid {os.getpid()}" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_another_users_process_is_refused(sleeper: subprocess.Popen[bytes]) -> None:
    os.seteuid(54321)
    try:
        with pytest.raises(
            NoTargetError, match=f"pid {sleeper.pid} belongs to another user .uid 0.: only that user or root"
        ):
            targets_of(str(sleeper.pid), {}, is_job=False)
    finally:
        os.seteuid(0)
