"""``tidegauge attach`` by PEP 768: real jobs under Python 3.14 that know nothing of Tidegauge, on fake GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.attach.attached_jobs import ROOT, WITHIN_S, AttachedJob, attach
from integration.attach.conftest import rig_of
from integration.needs import missing
from matrix import in_matrix
from tidegauge.core.samples import EventCode, RecordKind, Sample

pytestmark = [pytest.mark.rig, pytest.mark.timeout(600), in_matrix("python-3.14")]

SOMEBODY = 54321
"""A uid that nobody on this machine has."""


@pytest.fixture(scope="module")
def rig() -> Rig:
    return rig_of("3.14")


@pytest.fixture
def for_somebody() -> Iterator[Path]:
    """A folder of another user's."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        missing("starting a job as another user needs root and setpriv (util-linux)")
    with tempfile.TemporaryDirectory(prefix="tidegauge-test-", dir="/tmp") as folder:
        os.chown(folder, SOMEBODY, SOMEBODY)
        yield Path(folder)


def events_of(samples: list[Sample]) -> list[EventCode]:
    """A step that was just being recorded may come behind the last of them."""
    return [sample.event for sample in samples if sample.kind is RecordKind.EVENT]


def left_in_tmp() -> set[str]:
    return {name for name in os.listdir("/tmp") if name.startswith("tidegauge-attach-")}


def test_a_job_that_knows_nothing_of_tidegauge_is_watched_and_left_alone_again(
    rig: Rig, start: Callable[..., AttachedJob], capsys: pytest.CaptureFixture[str]
) -> None:
    before = left_in_tmp()
    job = start(rig, level=None)
    pids = job.pids()
    code, said = attach(capsys, job.process.pid, "--level", "stats")
    assert (code, [(one["pid"], one["rank"], one["state"], one["way"]) for one in said]) == (
        0,
        [(pids[0], 0, "watched", "remote_exec"), (pids[1], 1, "watched", "remote_exec")],
    )
    # A ring is there a moment before its first record.
    job.wait_for(lambda: [bool(samples) and samples[-1].step > 5 for _, samples in job.rings()] == [True, True])
    code, said = attach(capsys, job.process.pid, "--detach")
    assert (code, [(one["state"], one["way"]) for one in said]) == (0, [("dormant", "probe")] * 2)
    results = job.finish()
    assert {events_of(samples)[-1] for _, samples in job.rings()} == {EventCode.DETACHED}
    assert {one["digest"] for one in results} == {job.digest_without(results[0]["steps"])}
    assert "tidegauge" not in job.said()
    assert left_in_tmp() == before


def test_a_job_that_initialises_cuda_later_is_watched_from_then_on(
    rig: Rig, start: Callable[..., AttachedJob], capsys: pytest.CaptureFixture[str]
) -> None:
    job = start(rig, level=None, ranks=1, arguments=["--no-cuda-before", "go"])
    job.wait_for(lambda: (job.folder / "loaded").exists())
    code, (one,) = attach(capsys, job.process.pid, "--level", "stats")
    assert (code, one["state"]) == (0, "waiting")
    assert not job.rings()
    (job.output.parent / "go").touch()
    job.pids()
    assert [identity.profile for identity, _ in job.rings()] == ["stats"]
    job.finish()


@pytest.mark.parametrize(
    ("variable", "value", "because"),
    [
        ("PYTHON_DISABLE_REMOTE_DEBUG", "1", "PYTHON_DISABLE_REMOTE_DEBUG, -X disable-remote-debug"),
        ("TIDEGAUGE_PROFILE", "off", "which rules out a probe"),
    ],
)
def test_a_job_that_lets_nobody_in_is_left_alone(
    variable: str,
    value: str,
    because: str,
    rig: Rig,
    start: Callable[..., AttachedJob],
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = start(rig, level=None, ranks=1, variables={variable: value})
    job.pids()
    before = left_in_tmp()
    code, (one,) = attach(capsys, job.process.pid)
    assert (code, one["state"]) == (3, "refused")
    assert because in one["said"]
    assert left_in_tmp() == before
    job.finish()
    assert not job.rings()


def test_a_process_that_does_not_come_to_it_is_told_to_leave_it(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = left_in_tmp()
    environ = rig.environ(state=tmp_path / "gpus") | {"TIDEGAUGE_RUN_DIR": str(tmp_path / "run")}
    code = "import os, torch; print(1, flush=True); os.read(0, 1); print(2, flush=True); os.read(0, 1)"
    with subprocess.Popen(
        [rig.python, "-c", code], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        exit_code, (one,) = attach(capsys, process.pid, "--wait", "0.2")
        assert (exit_code, one["state"]) == (3, "refused")
        assert "the request was withdrawn" in one["said"]
        process.stdin.write(b"x")
        process.stdin.flush()
        assert process.stdout.readline() == b"2\n"
        assert left_in_tmp() == before, "it found nothing to do, and took the script away"
        _, said = process.communicate(b"x", timeout=60)
    assert (process.returncode, said) == (0, b"")
    assert not (tmp_path / "run").exists()


def test_a_user_attaches_to_their_own_job_and_to_nobody_elses(
    rig: Rig, start: Callable[..., AttachedJob], for_somebody: Path
) -> None:
    job = start(rig, level=None, ranks=1, uid=SOMEBODY, scratch=for_somebody)
    (pid,) = job.pids()

    def attach_as_somebody(pid: int) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [*job.as_user, rig.python, "-m", "tidegauge", "attach", str(pid)]
        environ = {"PYTHONPATH": str(ROOT / "collector"), "PATH": os.defpath}
        return subprocess.run(
            command, env=environ, cwd="/", capture_output=True, text=True, timeout=WITHIN_S, check=False
        )

    own = attach_as_somebody(pid)
    assert own.returncode == 0, (own.stderr, job.said())
    assert "attached at step" in own.stdout or "already watched" in own.stdout
    others = attach_as_somebody(os.getpid())
    assert others.returncode == 3
    assert (
        f"pid {os.getpid()} belongs to another user (uid 0): only that user or root can attach to it" in others.stderr
    )
    job.finish()


def test_root_attaches_to_a_users_dormant_job(
    rig: Rig,
    start: Callable[..., AttachedJob],
    for_somebody: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = start(rig, level="dormant", ranks=1, uid=SOMEBODY, scratch=for_somebody)
    (pid,) = job.pids()
    monkeypatch.setenv("TIDEGAUGE_RUN_DIR", str(job.run_dir))  # root without CAP_SYS_PTRACE cannot see the job's own
    code, (one,) = attach(capsys, pid)
    assert (code, one["state"], one["uid"]) == (0, "watched", SOMEBODY), one
    job.finish()
