"""Several processes on the same fake GPUs: they compete for bytes, NVML answers for all, the dead give theirs back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig

pytestmark = pytest.mark.rig

JOBS = Path(__file__).parent / "rig_jobs"
MIB = 1 << 20
GIB = 1 << 30
TOTAL_BYTES = 4 * GIB
CONTEXT_BYTES = 256 * MIB


class Program:
    """A job that answers lines; every wait is a read from its pipe."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, verb: str = "look", argument: int = 0) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([verb, argument]) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=20)


class Machine:
    """Fake GPUs of their own, and programs on them that end with the test."""

    def __init__(self, rig: Rig, state: Path, ending: ExitStack) -> None:
        self.rig = rig
        self.state = state
        self.ending = ending

    def start(self, python: Path | str, script: str, **more: str) -> Program:
        environ = self.rig.environ(
            devices=2, total_bytes=TOTAL_BYTES, context_bytes=CONTEXT_BYTES, state=self.state, events="ready"
        )
        process = subprocess.Popen(
            [python, JOBS / script],
            env={**environ, "PYTHONPATH": str(self.rig.inside), **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        program = Program(process)
        self.ending.callback(self.close, program)
        return program

    @staticmethod
    def close(program: Program) -> None:
        program.kill()
        for pipe in (program.process.stdin, program.process.stdout):
            if pipe is not None:
                pipe.close()

    def holder(self, **more: str) -> Program:
        return self.start(self.rig.python, "holder.py", **more)

    def nvml(self) -> Program:
        return self.start(sys.executable, "nvml_reader.py")


@pytest.fixture
def machine(rig: Rig, tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as ending:
        yield Machine(rig, tmp_path / "gpus", ending)


def test_two_processes_compete_and_a_killed_one_gives_its_memory_back(machine: Machine) -> None:
    first, second = machine.holder(), machine.holder()
    assert "out_of_memory" not in first.ask("hold", 3 * GIB)
    refused = second.ask("hold", 1 * GIB)["out_of_memory"]
    assert f"Process {first.process.pid} has 3.25 GiB memory in use" in refused
    assert "this process has 256.00 MiB memory in use" in refused
    first.kill()
    answer = second.ask("hold", 3 * GIB)
    assert "out_of_memory" not in answer
    assert answer["free_bytes"] == TOTAL_BYTES - CONTEXT_BYTES - 3 * GIB


def test_nvml_agrees_with_the_allocator_plus_context_plus_outside_memory(machine: Machine) -> None:
    job, nvml = machine.holder(), machine.nvml()
    reserved_bytes = job.ask("hold", 700 * MIB)["reserved_bytes"]
    job.ask("outside", 100 * MIB)
    device, idle = nvml.ask()["devices"]
    expected_bytes = reserved_bytes + CONTEXT_BYTES + 100 * MIB
    assert device["processes"] == {str(job.process.pid): expected_bytes}
    assert device["used_bytes"] == device["used_bytes_v2"] == expected_bytes
    assert idle["used_bytes"] == 0
    assert idle["processes"] == {}

    assert job.ask("drop")["reserved_bytes"] == 0
    assert nvml.ask()["devices"][0]["used_bytes"] == CONTEXT_BYTES
    job.kill()
    assert nvml.ask()["devices"][0]["processes"] == {}


def test_nvml_knows_devices_by_every_name_and_says_what_it_cannot(machine: Machine) -> None:
    answer = machine.nvml().ask()
    assert answer["driver"].split(".")[0].isdigit()
    for index, device in enumerate(answer["devices"]):
        assert device["uuid"] == f"GPU-fa6e0000-0000-4000-8000-{index:012x}"
        assert device["name"] == "Fake GPU (Tidegauge rig)"
        assert device["found_by_uuid"] == device["found_by_pci"] == index
        assert device["total_bytes"] == TOTAL_BYTES
        assert device["graphics"] == 0
        assert device["mig"] is None
        assert device["missing_function"] is None


@pytest.mark.parametrize("visible", ["1", "GPU-fa6e0000-0000-4000-8000-000000000001"])
def test_visible_devices_renumber_the_job_but_not_nvml(machine: Machine, visible: str) -> None:
    job, nvml = machine.holder(CUDA_VISIBLE_DEVICES=visible), machine.nvml()
    answer = job.ask("hold", 64 * MIB)
    assert answer["device_count"] == 1
    assert answer["uuid"] == "fa6e0000-0000-4000-8000-000000000001"
    first, second = nvml.ask()["devices"]
    assert first["processes"] == {}
    assert second["processes"] == {str(job.process.pid): 64 * MIB + CONTEXT_BYTES}


def test_the_state_file_is_the_owners_alone(machine: Machine) -> None:
    machine.nvml().ask()
    assert machine.state.stat().st_mode & 0o777 == 0o600


NVML_ERRORS = """
import os, sys
import pynvml as nvml
part = sys.argv[1]
try:
    if part == "init":
        os.environ["FAKEGPU_NVML_FAIL"] = part
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    os.environ["FAKEGPU_NVML_FAIL"] = part  # turned while the library is in use
    nvml.nvmlDeviceGetMemoryInfo(handle)
    nvml.nvmlDeviceGetComputeRunningProcesses(handle)
except nvml.NVMLError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("part", "error"),
    [("init", "DriverNotLoaded"), ("memory", "GpuIsLost"), ("processes", "NoPermission")],
)
def test_nvml_fails_where_it_is_told_to(rig: Rig, tmp_path: Path, part: str, error: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NVML_ERRORS, part],
        env=rig.environ(state=tmp_path / "gpus"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"NVMLError_{error}\n", done.stderr


def test_nvml_can_hide_the_bytes_of_processes(machine: Machine) -> None:
    job, nvml = machine.holder(), machine.start(sys.executable, "nvml_reader.py", FAKEGPU_NVML_HIDE_BYTES="1")
    job.ask("hold", 64 * MIB)
    device = nvml.ask()["devices"][0]
    assert device["processes"] == {str(job.process.pid): None}
    assert device["used_bytes"] == 64 * MIB + CONTEXT_BYTES


def test_device_allocations_can_be_made_to_fail_after_the_first_few(machine: Machine) -> None:
    job = machine.holder(FAKEGPU_FAIL_AFTER_MALLOCS="2")
    assert "out_of_memory" not in job.ask("hold", 64 * MIB)
    assert "out_of_memory" not in job.ask("hold", 64 * MIB)
    assert "out_of_memory" in job.ask("hold", 64 * MIB)


def test_numbers_that_make_no_sense_end_the_program_with_a_message(rig: Rig, tmp_path: Path) -> None:
    environ = rig.environ(total_bytes=-1, state=tmp_path / "gpus")
    done = subprocess.run(
        [sys.executable, JOBS / "nvml_reader.py"], env=environ, input="\n", capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "fakegpu: FAKEGPU_TOTAL_BYTES=-1 is not a number from" in done.stderr
