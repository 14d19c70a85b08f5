"""Evidence from real training processes: the real allocators of several releases of torch, and a loop that leaks."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.allocator.recordings import rig_of
from matrix import FIRST_TORCH, torches
from tidegauge.core.evidence.owners import CodeLine, asking_line
from tidegauge.core.evidence.rank_evidence import RankEvidence
from tidegauge.core.snapshot_columns import PackedSnapshot, unpack
from tidegauge.core.wire import from_wire
from tidegauge.probe.activation.launch import activation_environ

pytestmark = pytest.mark.rig

SCRIPT = Path(__file__).parents[1] / "rig_jobs" / "leaking.py"
RELEASES = ("2.9.1", "2.11.0", FIRST_TORCH, "2.15.0")
OLDEST_AND_FIRST = ("2.9.1", FIRST_TORCH)
KEPT_BYTES = 2 << 20
WINDOW: dict[str, Any] = {
    "command": "evidence",
    "id": "e1",
    "reason": "a test",
    "warm_up_steps": 2,
    "window_steps": 8,
    "most_s": 60,
}
LONG_WINDOW = {**WINDOW, "window_steps": 10_000, "most_s": 600}
"""It lasts longer than any test."""
GIVE_UP_S = 60.0


class Leaking:
    """The running job, and its socket. A connection for each question: the probe closes one that is silent for 5 s."""

    def __init__(self, process: subprocess.Popen[str], run_dir: Path) -> None:
        self.process = process
        self.run_dir = run_dir
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        (self._socket,) = run_dir.glob("*/*.sock")

    def ask(self, command: str, **more: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(GIVE_UP_S)
            client.connect(str(self._socket))
            client.sendall(json.dumps({"command": command, **more}).encode() + b"\n")
            with client.makefile() as replies:
                return json.loads(replies.readline())

    def state(self) -> str:
        return str(self.ask("evidence_status", id="e1")["state"])

    def wait_for(self, state: str) -> None:
        give_up_s = time.monotonic() + GIVE_UP_S
        while self.state() != state:
            assert time.monotonic() < give_up_s
            time.sleep(0.05)

    def gather(self) -> RankEvidence:
        assert self.ask(**WINDOW)["ok"]
        self.wait_for("done")
        (path,) = self.run_dir.glob("*/*.evidence.json")
        return from_wire(RankEvidence, json.loads(path.read_text()))

    def snapshot(self, name: str | None) -> PackedSnapshot:
        assert name is not None
        (path,) = self.run_dir.glob(f"*/{name}")
        return unpack(zlib.decompress(path.read_bytes()))

    def end(self) -> dict[str, Any]:
        """The job ends by itself, and says what it found."""
        out, _ = self.process.communicate(timeout=GIVE_UP_S)
        assert self.process.returncode == 0
        found: dict[str, Any] = json.loads(out)
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


Start = Callable[..., Leaking]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    jobs: list[Leaking] = []

    def start(rig: Rig, *arguments: str, level: str = "auto") -> Leaking:
        environ = rig.environ(devices=1, state=tmp_path / "gpus")  # 80 GiB: the job leaks for many minutes
        environ.pop("PYTHONPATH", None)
        environ |= activation_environ(level, environ, pythonpath=True)
        environ["TIDEGAUGE_RUN_DIR"] = str(tmp_path / "run")
        process = subprocess.Popen(
            [str(rig.python), str(SCRIPT), *arguments],
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        jobs.append(Leaking(process, tmp_path / "run"))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


def lines_of_kept_blocks(snapshot: PackedSnapshot) -> list[int]:
    """The line of leaking.py for each live block of the size that is kept, if it has a stack."""
    ends, at = [], 0
    for depth in snapshot.stacks["depth"]:
        at += depth
        ends.append((at - depth, at))
    lines = []
    for state, size_bytes, stack in zip(*(snapshot.devices[0].blocks[key] for key in ("state", "size_bytes", "stack"))):
        if (state, size_bytes) == (1, KEPT_BYTES) and stack >= 0:
            first, last = ends[stack]
            frames = [
                CodeLine(
                    snapshot.texts[snapshot.frames["filename"][index]],
                    snapshot.frames["line"][index],
                    snapshot.texts[snapshot.frames["name"][index]],
                )
                for index in snapshot.stack_frames[first:last]
            ]
            line = asking_line(frames)
            assert line is not None
            assert line.filename == str(SCRIPT)
            lines.append(line.line)
    return lines


def leaking_line() -> int:
    (line,) = [number for number, text in enumerate(SCRIPT.read_text().splitlines(), 1) if text.endswith("# LEAK")]
    return line


@pytest.mark.parametrize("release", torches(RELEASES))
def test_the_line_and_the_holder_are_named_and_the_job_is_as_before(release: str, start: Start) -> None:
    job = start(rig_of(release))
    evidence = job.gather()
    assert evidence.problem is None
    assert evidence.early_step == evidence.began_step + 2
    assert evidence.late_step == evidence.early_step + 8
    early, late = job.snapshot(evidence.early_file), job.snapshot(evidence.late_file)
    assert early.facts["recording"] == late.facts["recording"] == "ours"
    assert len(late.devices[0].events["action"]) > 8
    lines = lines_of_kept_blocks(late)
    assert set(lines) == {leaking_line()}
    assert len(lines) == len(lines_of_kept_blocks(early)) + 8
    assert evidence.search is not None
    assert "Trainer.history (list" in evidence.search.holders[0].path
    assert evidence.search.holders[0].held_bytes == 7 * KEPT_BYTES, "all but that of the step in progress"
    found = job.end()
    assert not found["recording"]
    assert found["recorder_is_native"]
    assert found["threads"] == ["MainThread", "tidegauge"]
    assert (found["kept_elsewhere"], found["collects"], found["compiler_was_loaded"]) == (0, True, False)


@pytest.mark.parametrize("release", torches(OLDEST_AND_FIRST))
def test_a_recording_of_the_jobs_own_is_used_and_untouched(release: str, start: Start) -> None:
    job = start(rig_of(release), "--record", "python")
    evidence = job.gather()
    assert "the job itself records allocation history" in (evidence.problem or "")
    assert set(lines_of_kept_blocks(job.snapshot(evidence.late_file))) == {leaking_line()}
    found = job.end()
    assert (found["recording"], found["events"], found["recorder_is_native"]) == (True, 300, True)


@pytest.mark.parametrize("release", torches(OLDEST_AND_FIRST))
def test_a_recording_that_the_job_begins_meanwhile_is_its_own(release: str, start: Start) -> None:
    job = start(rig_of(release), "--record", "python", "--record-after", "20")
    assert job.ask(**{**WINDOW, "window_steps": 60})["ok"]
    job.wait_for("done")
    assert "the job started to record allocation history itself" in job.ask("evidence_status", id="e1")["problem"]
    found = job.end()
    assert (found["recording"], found["events"], found["recorder_is_native"]) == (True, 300, True)


def test_a_job_that_ends_in_the_middle_of_a_window_leaves_no_evidence(rig: Rig, start: Start) -> None:
    job = start(rig)
    assert job.ask(**LONG_WINDOW)["ok"]
    job.wait_for("recording")
    assert job.end()["recording"]
    assert [path.suffix for path in job.run_dir.glob("*/*")] == [".ring"]


def test_detaching_ends_a_window_and_its_recording(rig: Rig, start: Start) -> None:
    job = start(rig)
    assert job.ask(**LONG_WINDOW)["ok"]
    job.wait_for("recording")
    assert job.ask("detach")["recording"] == "none"
    found = job.end()
    assert (found["recording"], found["recorder_is_native"]) == (False, True)
    assert [path.suffix for path in job.run_dir.glob("*/*")] == [".ring"]


@pytest.mark.parametrize("release", torches(OLDEST_AND_FIRST))
def test_at_level_trace_a_snapshot_on_demand_has_stacks_and_events(release: str, start: Start) -> None:
    job = start(rig_of(release), level="trace")
    reply = job.ask("snapshot", reason="a test")
    assert reply["ok"]
    snapshot = job.snapshot(reply["file"])
    assert set(lines_of_kept_blocks(snapshot)) == {leaking_line()}
    assert len(snapshot.devices[0].events["action"]) > 20
    found = job.end()
    assert found["recording"]
    assert not found["recorder_is_native"]  # it would give way


def test_recording_and_holders_on_demand(rig: Rig, start: Start) -> None:
    job = start(rig)
    assert job.ask("record", on=True, max_entries=200, stacks="python")["recording"] == "ours"
    holders = job.ask("holders")["holders"]
    assert any("Trainer.history (list" in one["path"] for one in holders)
    assert job.ask("record", on=False)["recording"] == "none"
    assert not job.end()["recording"]
