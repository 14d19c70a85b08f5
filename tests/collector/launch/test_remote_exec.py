"""PEP 768 without a Python 3.14: folder, script, and what stands in the way. For real: tests/integration/attach."""

from __future__ import annotations

import inspect
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegauge.core.ids import ProcessId
from tidegauge.launch import remote_exec, remote_script
from tidegauge.launch.remote_exec import (
    MAX_OUTCOME_BYTES,
    OUTCOME,
    NotExecutedError,
    RemoteTarget,
    SharedFolder,
    begin_probe,
)
from tidegauge.osproc.processes import identity_of

PACKAGE = str(Path(inspect.getfile(remote_script)).parents[1])
TORCH = """
import sys, types
class Optimizer: pass
Optimizer.__module__ = "torch.optim.optimizer"
optimizers = types.SimpleNamespace(_global_optimizer_post_hooks=dict.fromkeys(range(HOOKS)),
    register_optimizer_step_post_hook=None)
torch = types.SimpleNamespace(__version__="2.13.0",
    optim=types.SimpleNamespace(Optimizer=Optimizer), __spec__=types.SimpleNamespace(_initializing=INITIALIZING))
sys.modules.update({"torch": torch, "torch.optim.optimizer": optimizers})
"""


@pytest.fixture
def shared() -> Iterator[SharedFolder]:
    with SharedFolder(os.geteuid(), os.getegid()) as folder:
        yield folder


def test_shared_folder_script_is_readable_by_its_owner_only(shared: SharedFolder) -> None:
    script = shared.write("pass\n")
    assert stat.S_IMODE(shared.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    shared.write("1\n")
    assert script.read_text() == "1\n"


def test_the_folder_is_gone_afterwards_and_stays_if_it_is_left() -> None:
    with SharedFolder(os.geteuid(), os.getegid()) as gone:
        gone.write("pass\n")
        (gone.path / OUTCOME).write_text("watching")
    assert not gone.path.exists()
    with SharedFolder(os.geteuid(), os.getegid()) as left:
        script = left.write("pass\n")
        left.leave()
    assert script.exists()
    script.unlink()
    left.path.rmdir()


def test_shared_folder_leaves_files_of_others_in_place(tmp_path: Path) -> None:
    with SharedFolder(os.geteuid(), os.getegid()) as folder:
        folder.write("pass\n")
        (folder.path / "mine").symlink_to(tmp_path)
    assert (folder.path / "mine").is_symlink()
    (folder.path / "mine").unlink()
    folder.path.rmdir()


def test_an_outcome_is_a_short_plain_file_of_its_user(shared: SharedFolder, tmp_path: Path) -> None:
    assert shared.outcome() is None
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    (shared.path / OUTCOME).symlink_to(secret)
    assert shared.outcome() is None
    (shared.path / OUTCOME).unlink()
    os.mkfifo(shared.path / OUTCOME)
    assert shared.outcome() is None
    (shared.path / OUTCOME).unlink()
    (shared.path / OUTCOME).write_text("x" * 2 * MAX_OUTCOME_BYTES)
    assert shared.outcome() == "x" * MAX_OUTCOME_BYTES


def outcome_of(code: str, tmp_path: Path, **variables: str) -> str:
    """What the script says in a process that has run ``code``."""
    outcome = tmp_path / "outcome"
    program = (
        f"{code}\nimport os, time\n"
        f"exec({inspect.getsource(remote_script)!r}, space := {{'__builtins__': __builtins__}})\n"
        f"space['begin']({PACKAGE!r}, 'stats', {str(outcome)!r})\n"
        f"while not os.path.exists({str(outcome)!r}): time.sleep(0.005)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return outcome.read_text()


@pytest.mark.parametrize(
    ("code", "variables", "finding"),
    [
        ("", {}, "no_torch"),
        ("", {"TIDEGAUGE_PROFILE": "off"}, "off"),
        (TORCH.replace("HOOKS", "0").replace("INITIALIZING", "True"), {}, "importing"),
        (TORCH.replace("HOOKS", "2").replace("INITIALIZING", "False"), {}, "many_hooks"),
    ],
)
def test_the_script_sees_what_stands_in_its_way(
    code: str, variables: dict[str, str], finding: str, tmp_path: Path
) -> None:
    assert outcome_of(code, tmp_path, **variables) == finding
    assert finding in remote_script.FINDINGS


def test_an_error_in_the_process_is_said_and_not_raised_there(tmp_path: Path) -> None:
    said = outcome_of(TORCH.replace("HOOKS", "0").replace("INITIALIZING", "False"), tmp_path)
    assert said.startswith("failed AttributeError(")


def remote_target(process: ProcessId) -> RemoteTarget:
    return RemoteTarget(process, os.geteuid(), os.getegid(), (), (3, 14), os.environ)


@pytest.mark.skipif(
    hasattr(sys, "remote_exec"), reason="this Python has it: tests/integration/attach tries it for real"
)
def test_an_interpreter_without_remote_debugging_is_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    make, made = tempfile.mkdtemp, list[str]()

    def remembered(**where: str) -> str:
        made.append(make(**where))  # by itself: other tests have folders in /tmp at the same time
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", remembered)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        target = identity_of(process.pid)
        assert target is not None
        with pytest.raises(NotExecutedError, match="built without remote debugging"):
            begin_probe(remote_target(target), "stats", timeout_s=1.0, asked=pytest.fail)
        process.kill()
    assert not [folder for folder in made if os.path.exists(folder)]


@pytest.mark.skipif(os.geteuid() != 0, reason="Yama lets root alone do more")
@pytest.mark.parametrize(("python", "callers"), [(sys.version_info[:2], ["its", "our own"]), ((3, 99), ["its"])])
def test_remote_exec_retries_as_root_with_an_interpreter_of_the_same_release(
    python: tuple[int, int], callers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def refused(_target: RemoteTarget, _script: Path, *, own: bool) -> tuple[str, str]:
        called.append("our own" if own else "its")
        return "PermissionError", "Operation not permitted"

    monkeypatch.setattr(remote_exec, "_call", refused)
    us = identity_of(os.getpid())
    assert us is not None
    with pytest.raises(NotExecutedError, match="the kernel lets nobody reach into it"):
        begin_probe(remote_target(us)._replace(python=python), "stats", timeout_s=1.0, asked=pytest.fail)
    assert called == callers


def test_a_program_that_is_no_python_does_not_answer_as_one() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        target = identity_of(process.pid)
        assert target is not None
        with pytest.raises(NotExecutedError, match="does not answer as a Python does"):
            begin_probe(remote_target(target), "stats", timeout_s=1.0, asked=pytest.fail)


def test_a_pid_that_is_another_process_by_now_is_not_spoken_to() -> None:
    before = identity_of(os.getpid())
    assert before is not None
    with pytest.raises(NotExecutedError, match="it has ended"):
        begin_probe(
            remote_target(ProcessId(before.pid, before.start_ticks - 1)), "stats", timeout_s=1.0, asked=pytest.fail
        )
