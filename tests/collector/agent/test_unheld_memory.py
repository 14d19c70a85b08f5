"""GPU memory that nobody holds: what the agent can tell of it, and for how long it has been so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_node import GIB, MIB, PID, UUID0, FakeNode, gpu_reading
from tidegauge.agent.nvml import NvmlGpus
from tidegauge.agent.ports import GpuReading
from tidegauge.agent.processes.procfs import ProcFs
from tidegauge.core.detector.unheld import (
    MIN_UNHELD_BYTES,
    UNHELD_FOR_S,
    MemoryInUse,
    UnheldMemory,
    UnheldMemoryWatch,
)
from tidegauge.core.ids import ProcessId

LEFT = 2 * GIB


def in_use(used: int, listed: int = 0, *, processes: bool = False) -> MemoryInUse:
    return MemoryInUse(UUID0, used, listed, processes)


class Watch:
    def __init__(self) -> None:
        self.watch = UnheldMemoryWatch()
        self.now_s = 0.0

    def sees(self, gpu: MemoryInUse | None, after_s: float = 1.0) -> UnheldMemory | None:
        self.now_s += after_s
        return self.watch.look([] if gpu is None else [gpu], self.now_s).get(UUID0)


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_memory_without_a_process_is_told_with_the_time_that_it_has_been_so(watch: Watch) -> None:
    assert watch.sees(in_use(LEFT)) == UnheldMemory(LEFT, 0.0)
    assert watch.sees(in_use(LEFT), UNHELD_FOR_S) == UnheldMemory(LEFT, UNHELD_FOR_S)
    assert watch.sees(in_use(0)) == UnheldMemory(0, None)
    assert watch.sees(in_use(LEFT)) == UnheldMemory(LEFT, 0.0)


def test_what_a_driver_keeps_of_a_gpu_in_use_is_none(watch: Watch) -> None:
    """As measured on an H200: 8.8 MiB beside a process, whatever it holds."""
    assert watch.sees(in_use(2575 * MIB, 2566 * MIB, processes=True)) == UnheldMemory(9 * MIB, None)
    assert watch.sees(in_use(MIN_UNHELD_BYTES - 1)) == UnheldMemory(MIN_UNHELD_BYTES - 1, None)


def test_managed_memory_of_a_process_is_not_nobodys(watch: Watch) -> None:
    """2 GiB of it, as measured on an H200: 2575 MiB in use, 518 MiB listed."""
    for _ in range(2):
        assert watch.sees(in_use(2575 * MIB, 518 * MIB, processes=True), UNHELD_FOR_S) is None


def test_job_that_starts_on_such_a_gpu_does_not_hide_what_was_there_before(watch: Watch) -> None:
    watch.sees(in_use(LEFT))
    assert watch.sees(in_use(40 * GIB, 30 * GIB, processes=True)) == UnheldMemory(LEFT, 1.0)
    assert watch.sees(in_use(32 * GIB, 30 * GIB + GIB // 2, processes=True)) == UnheldMemory(3 * GIB // 2, 2.0)
    assert watch.sees(in_use(30 * GIB, 30 * GIB, processes=True)) == UnheldMemory(0, None)


def test_driver_that_does_not_answer_for_a_moment_ends_nothing(watch: Watch) -> None:
    watch.sees(in_use(LEFT))
    assert watch.sees(None, UNHELD_FOR_S / 2) is None
    assert watch.sees(in_use(LEFT), UNHELD_FOR_S / 2) == UnheldMemory(LEFT, UNHELD_FOR_S)
    watch.sees(None, UNHELD_FOR_S + 1)
    assert watch.sees(in_use(LEFT), 1.0) == UnheldMemory(LEFT, 0.0)


@given(st.lists(st.tuples(st.integers(0, 80 * GIB), st.integers(0, 80 * GIB), st.booleans())))
def test_nothing_begins_beside_a_process_and_no_more_is_told_than_is_left(
    moments: list[tuple[int, int, bool]],
) -> None:
    watch = Watch()
    before: float | None = None
    for used, listed, processes in moments:
        told = watch.sees(in_use(used, listed, processes=processes))
        assert told is None or told.size_bytes <= max(0, used - listed)
        for_s = None if told is None else told.for_s
        assert not (processes and before is None and for_s is not None)
        before = for_s


# The agent


def idle(*, used: int = LEFT, processes: dict[int, int | None] | None = None, **changes: Any) -> GpuReading:
    reading = gpu_reading(total_bytes=80 * GIB, free_bytes=80 * GIB - used, processes=processes)
    return replace(reading, **{"reserve_bytes": GIB, "further_pids": frozenset(), **changes})


def told(tmp_path: Path, reading: GpuReading, *, alive: tuple[int, ...] = ()) -> tuple[int | None, float | None]:
    node = FakeNode(tmp_path, readings=[reading])
    node.procs.others = {ProcessId(pid, 1) for pid in alive}
    node.poll()
    (gpu,) = node.agent.view().gpus
    return gpu.unheld_bytes, gpu.unheld_for_s


def looked_at(tmp_path: Path, reading: GpuReading, *, alive: tuple[int, ...]) -> tuple[int | None, int | None]:
    """Bytes of other processes, and of nobody."""
    node = FakeNode(tmp_path, readings=[reading])
    node.procs.others = {ProcessId(pid, 1) for pid in alive}
    node.poll()
    (gpu,) = node.agent.view().gpus
    return gpu.other_processes_bytes, gpu.unheld_bytes


def test_agent_tells_memory_that_no_process_is_listed_for(tmp_path: Path) -> None:
    assert told(tmp_path, idle()) == (LEFT, 0.0)


def test_process_that_is_gone_holds_nothing_although_the_driver_lists_it(tmp_path: Path) -> None:
    assert told(tmp_path, idle(processes={7: LEFT})) == (LEFT, 0.0)
    assert told(tmp_path, idle(processes={7: LEFT}), alive=(7,)) == (0, None)


@pytest.mark.parametrize(
    ("reading", "alive", "counted"),
    [
        (idle(processes={7: LEFT}), (), (0, LEFT)),
        (idle(used=3 * GIB, processes={7: LEFT, 8: GIB}), (8,), (LEFT + GIB, None)),
        (idle(processes={7: LEFT}, further_pids=None), (), (LEFT, None)),
    ],
    ids=["gone", "gone beside one that lives", "of a pid namespace that is not seen"],
)
def test_memory_of_a_process_that_is_gone_counts_once(
    tmp_path: Path, reading: GpuReading, alive: tuple[int, ...], counted: tuple[int, int | None]
) -> None:
    assert looked_at(tmp_path, reading, alive=alive) == counted


@pytest.mark.parametrize(
    "missing", [{"used_bytes": None}, {"reserve_bytes": None}, {"process_bytes": None}, {"further_pids": None}]
)
def test_agent_tells_nothing_of_a_gpu_whose_processes_or_reserve_it_cannot_know(
    tmp_path: Path, missing: dict[str, None]
) -> None:
    reading: Any = replace(idle(), **missing)  # type: ignore[arg-type] # SAFETY: each of these may be None
    assert told(tmp_path, reading) == (None, None)


def test_processes_of_another_kind_may_hold_it(tmp_path: Path) -> None:
    reading = replace(idle(), further_pids=frozenset({7}))
    assert told(tmp_path, reading, alive=(7,)) == (None, None)
    assert told(tmp_path, reading) == (LEFT, 0.0)


def test_process_that_cannot_be_looked_at_counts_as_one_that_lives(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, readings=[idle(processes={7: LEFT})])
    node.procs.failing = True
    node.poll()
    assert [gpu.unheld_bytes for gpu in node.agent.view().gpus] == [0]


def test_watched_rank_holds_its_memory(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, readings=[idle(processes={PID.pid: LEFT})])
    node.start_rank().tick()
    node.poll()
    assert [gpu.unheld_bytes for gpu in node.agent.view().gpus] == [0]


# The kernel


def test_process_is_gone_when_it_has_ended_and_not_where_proc_hides_it(tmp_path: Path) -> None:
    procs = ProcFs()
    assert not procs.is_gone(os.getpid())
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert procs.is_gone(child.pid), "a zombie"
    assert procs.is_gone(child.pid)
    assert not ProcFs(tmp_path).is_gone(os.getpid()), "as with hidepid"


# NVML


class Library:
    """A GPU, or one in MIG instances, as NVML tells of it; ``answers`` by the name of the question."""

    def __init__(self, **answers: Any) -> None:
        self.nvmlMemory_v2 = pynvml.nvmlMemory_v2
        self._answers: dict[str, Any] = {
            "Init": None, "DeviceGetCount": 1, "DeviceGetHandleByIndex": 0, "DeviceGetName": "H200",
            "DeviceGetUUID": lambda handle: f"GPU-{handle}",
            "DeviceGetMigMode": pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED),
            "DeviceGetNumaNodeId": pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED),
            "DeviceGetMemoryInfo": SimpleNamespace(total=80 * GIB, used=LEFT, free=77 * GIB, reserved=GIB),
            "DeviceGetComputeRunningProcesses": [], "DeviceGetGraphicsRunningProcesses": [],
            "DeviceGetMPSComputeRunningProcesses": [],
            **answers,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            answer = self._answers[name.removeprefix("nvml")]
            if isinstance(answer, Exception):
                raise answer
            return answer(*given) if callable(answer) else answer

        return call


def processes(*pids: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=MIB) for pid in pids]


def further(library: Library, *, sees_all: bool = True) -> list[frozenset[int] | None]:
    return [reading.further_pids for reading in NvmlGpus(library, sees_all=sees_all).read()]


def test_graphics_processes_and_mps_clients_are_listed_apart() -> None:
    library = Library(
        DeviceGetComputeRunningProcesses=processes(7),
        DeviceGetGraphicsRunningProcesses=processes(5),
        DeviceGetMPSComputeRunningProcesses=processes(6),
    )
    assert further(library) == [frozenset({5, 6})]


def test_nobody_else_is_asked_for_where_lists_explain_what_is_in_use() -> None:
    def asked(*_: object) -> list[SimpleNamespace]:
        pytest.fail("two questions more for each GPU, twice a second")

    used = SimpleNamespace(total=80 * GIB, used=LEFT, free=77 * GIB, reserved=GIB)
    library = Library(
        DeviceGetMemoryInfo=used,
        DeviceGetComputeRunningProcesses=[SimpleNamespace(pid=7, usedGpuMemory=LEFT - MIB)],
        DeviceGetGraphicsRunningProcesses=asked,
        DeviceGetMPSComputeRunningProcesses=asked,
    )
    assert further(library) == [frozenset()]


@pytest.mark.parametrize("question", ["DeviceGetGraphicsRunningProcesses", "DeviceGetMPSComputeRunningProcesses"])
def test_list_that_cannot_be_had_may_have_anybody_in_it(question: str) -> None:
    assert further(Library(**{question: pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)})) == [None]
    assert further(Library(**{question: pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)})) == [frozenset()]


def test_processes_of_other_pid_namespaces_are_not_listed_and_not_nobody() -> None:
    assert further(Library(), sees_all=False) == [None]


def test_gpu_whose_memory_the_kernel_gives_to_anybody_is_left_out() -> None:
    assert further(Library(DeviceGetNumaNodeId=1)) == [None]


def test_compute_instances_of_one_mig_instance_share_their_processes() -> None:
    library = Library(
        DeviceGetMigMode=[1, 1],
        DeviceGetMaxMigDeviceCount=4,
        DeviceGetMigDeviceHandleByIndex=lambda _gpu, place: place,
        DeviceGetGpuInstanceId=lambda place: 1 if place < 2 else place,
        DeviceGetComputeRunningProcesses=lambda place: processes(*([7] if place == 1 else [])),
    )
    assert further(library) == [frozenset({7}), frozenset({7}), frozenset(), frozenset()]
    assert further(Library(
        DeviceGetMigMode=[1, 1],
        DeviceGetMaxMigDeviceCount=1,
        DeviceGetMigDeviceHandleByIndex=0,
        DeviceGetGpuInstanceId=pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION),
    )) == [None]  # fmt: skip
