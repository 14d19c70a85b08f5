"""A full /dev/shm costs a training process nothing: no SIGBUS through the ring's map, no exception, no stall.

The file system is a real tmpfs, the torch is the rig's; nothing of the probe is replaced.
"""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.small_disks import fill, free_bytes, make_room, small_disk
from probe_fakes import Ring, rings_below
from tidegauge.core.samples import EventCode, RecordKind
from tidegauge.probe.activation.launch import activation_environ

pytestmark = [pytest.mark.rig, pytest.mark.timeout(300)]

GIB = 1 << 30
SHM_BYTES = 24 << 20
"""Of which a ring takes 256 KiB for a device (``ring_writer``): 1024 records."""

TRAINING = """
import json, sys, time, torch
parameters = [torch.nn.Linear(64, 64, device="cuda:0")]
def train(steps, device=0):
    model = torch.nn.Linear(64, 64, device=f"cuda:{device}")
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(steps):
        model(torch.zeros(8, 64, device=f"cuda:{device}")).sum().backward()
        optimizer.step()
        time.sleep(0.011)  # steps closer than 10 ms share a record
def said(what):
    print(what, flush=True)
    return sys.stdin.readline()
"""


class Job:
    """One training process that says where it is and waits for a line."""

    def __init__(self, rig: Rig, scratch: Path, run_dir: Path, code: str) -> None:
        script = scratch / "job.py"
        script.write_text(TRAINING + textwrap.dedent(code))
        environ = rig.environ(devices=2, total_bytes=8 * GIB, state=scratch / "gpus")
        for name in ("PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environ.pop(name, None)
        environ |= activation_environ("stats", environ, pythonpath=True)
        environ["TIDEGAUGE_RUN_DIR"] = str(run_dir)
        self.errors = scratch / "errors"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [str(rig.python), str(script)], env=environ, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip

    def waits(self) -> str:
        """What it says; fails when it has ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the job ended with {self.process.wait(30)}: {self.errors.read_text()[-2000:]}"
        return line.strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends_well(self) -> list[str]:
        """What the probe said, of a job that ended by itself without an error."""
        self.process.communicate(timeout=200)
        assert self.process.returncode == 0, (self.process.returncode, self.errors.read_text()[-2000:])
        return [line for line in self.errors.read_text().splitlines() if line.startswith("tidegauge:")]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "shm", size_bytes=SHM_BYTES) as folder:
        yield folder


@pytest.fixture
def jobs(rig: Rig, tmp_path: Path, shm: Path) -> Iterator[Any]:
    started: list[Job] = []

    def start(code: str) -> Job:
        started.append(Job(rig, tmp_path, shm, code))
        return started[-1]

    yield start
    for job in started:
        job.close()


def ring_of(shm: Path) -> Ring:
    (path,) = rings_below(str(shm))
    return Ring(path)


def test_records_go_on_after_the_last_byte_of_shm_is_gone(jobs: Any, shm: Path) -> None:
    """The pages that the ring's map writes to were reserved: none is asked of the file system any more."""
    job = jobs(
        """
        train(20)
        said("trains")
        train(1100)  # more than the ring holds: every page is written to, and again
        """
    )
    assert job.waits() == "trains"
    fill(shm)
    job.go_on()
    assert job.ends_well() == []
    steps = [sample.step for sample in ring_of(shm).samples() if sample.kind is RecordKind.STEP]
    assert max(steps) > 1100


def test_a_device_without_room_is_said_and_left_alone_the_others_go_on(jobs: Any, shm: Path) -> None:
    job = jobs(
        """
        train(20)
        said("trains")
        train(100, device=1)
        train(100, device=0)
        """
    )
    job.waits()
    fill(shm)
    job.go_on()
    (said,) = job.ends_well()
    assert "no space for records of device 1" in said
    ring = ring_of(shm)
    assert ring.samples(1) == []
    assert max(sample.step for sample in ring.samples(0)) > 200


def test_a_rank_that_starts_on_a_full_shm_trains_unwatched_and_says_so_once(jobs: Any, shm: Path) -> None:
    fill(shm)
    job = jobs("train(100)")
    (said,) = job.ends_well()
    assert "nothing is recorded" in said
    make_room(shm)
    assert rings_below(str(shm)) == []


def test_rank_on_a_full_shm_refuses_requests_with_an_error(jobs: Any, shm: Path) -> None:
    """A snapshot and evidence want files there; training goes on, and the next one works once there is room."""
    job = jobs(
        """
        import os, socket
        import tidegauge
        def ask(**request):
            from glob import glob
            (path,) = glob(os.environ["TIDEGAUGE_RUN_DIR"] + "/*/*.sock")
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(60)
                probe.connect(path)
                probe.sendall(json.dumps(request).encode() + b"\\n")
                return json.loads(probe.makefile().readline())
        train(20)
        said("trains")
        full = ask(command="snapshot", now=True)
        said("full " + json.dumps(full))
        train(20)
        said("roomy " + json.dumps(ask(command="snapshot", now=True)))
        """
    )
    job.waits()
    fill(shm)
    job.go_on()
    full = json.loads(job.waits().removeprefix("full "))
    assert "error" in full, full
    make_room(shm)
    job.go_on()
    roomy = json.loads(job.waits().removeprefix("roomy "))
    assert "error" not in roomy, roomy
    job.go_on()
    job.ends_well()
    assert EventCode.ATTACHED in [sample.event for sample in ring_of(shm).samples()]


def test_filling_takes_every_byte(shm: Path) -> None:
    fill(shm)
    assert free_bytes(shm) == 0
    with pytest.raises(OSError, match="No space left"):
        (shm / "one_more").write_bytes(b"x" * 4096)
