"""The NVML adapter against a library that answers as it is told. Against a real libnvidia-ml: tests/integration."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from fake_node import GIB, FakeClock
from tidegauge.agent.nvml import FIRST_RETRY_S, LAST_RETRY_S, RELIST_S, NvmlGpus, open_nvml
from tidegauge.agent.ports import GpuReading, GpuUnavailableError

ERRORS = [value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")]


class FakeLibrary:
    """pynvml's functions for two GPUs; ``answers`` replaces what a function says, by its name less ``nvml``."""

    def __init__(self) -> None:
        self.nvmlMemory_v2 = pynvml.nvmlMemory_v2
        self.answers: dict[str, Callable[..., Any] | int] = {}
        self.count = 2
        self.initialised = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            answer = self.answers.get(name.removeprefix("nvml"), getattr(self, "_" + name, None))
            if isinstance(answer, int):
                raise pynvml.NVMLError(answer)
            assert answer is not None, name
            return answer(*args)

        return call

    def _nvmlInit(self) -> None:
        self.initialised += 1

    def _nvmlShutdown(self) -> None:
        self.initialised -= 1

    def _nvmlDeviceGetCount(self) -> int:
        return self.count

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def _nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _nvmlDeviceGetNumaNodeId(self, handle: int) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _nvmlDeviceGetGpuInstanceId(self, handle: object) -> int:
        return 1

    def _nvmlDeviceGetGraphicsRunningProcesses(self, handle: object) -> list[SimpleNamespace]:
        return []

    def _nvmlDeviceGetMPSComputeRunningProcesses(self, handle: object) -> list[SimpleNamespace]:
        return []

    def _nvmlDeviceGetUUID(self, handle: object) -> str:
        return f"GPU-{handle}"

    def _nvmlDeviceGetName(self, handle: object) -> bytes:
        return b"H200"

    def _nvmlDeviceGetMemoryInfo(self, handle: object, version: int | None = None) -> SimpleNamespace:
        reserve = 0 if version is None else GIB
        return SimpleNamespace(total=80 * GIB, used=20 * GIB - reserve, free=60 * GIB)

    def _nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=7, usedGpuMemory=GIB), SimpleNamespace(pid=8, usedGpuMemory=None)]


class Bench:
    def __init__(self) -> None:
        self.library = FakeLibrary()
        self.clock = FakeClock()
        self.gpus = NvmlGpus(self.library, monotonic_s=self.clock.monotonic_s)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_reads_every_gpu(bench: Bench) -> None:
    first, second = bench.gpus.read()
    assert first == GpuReading(
        uuid=first.uuid, gpu=0, name="H200", total_bytes=80 * GIB, used_bytes=19 * GIB, free_bytes=60 * GIB,
        process_bytes={7: GIB, 8: None}, further_pids=frozenset(),
    )  # fmt: skip
    assert (first.uuid, second.uuid, second.gpu) == ("GPU-0", "GPU-1", 1)


def test_an_old_driver_tells_memory_the_old_way(bench: Bench) -> None:
    def memory(handle: object, version: int | None = None) -> SimpleNamespace:
        if version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(total=80 * GIB, used=20 * GIB, free=60 * GIB)

    bench.library.answers["DeviceGetMemoryInfo"] = memory
    assert bench.gpus.read()[0].used_bytes == 20 * GIB


def test_a_gpu_cut_into_mig_instances_is_told_by_instance(bench: Bench) -> None:
    def instance(parent: int, place: int) -> str:
        if place not in (0, 2):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return f"mig-{parent}-{place}"

    def mode(handle: int) -> list[int]:
        return [handle, handle]  # GPU 1 is cut

    bench.library.answers |= {
        "DeviceGetMigMode": mode,
        "DeviceGetMaxMigDeviceCount": lambda _handle: 7,
        "DeviceGetMigDeviceHandleByIndex": instance,
        "DeviceGetUUID": lambda handle: str(handle).upper(),
    }
    assert [(r.uuid, r.gpu) for r in bench.gpus.read()] == [("0", 0), ("MIG-1-0", 1), ("MIG-1-2", 1)]


@pytest.mark.parametrize("question", ["DeviceGetMemoryInfo", "DeviceGetComputeRunningProcesses"])
@pytest.mark.parametrize("error", ERRORS)
def test_every_error_of_a_question_is_unknown_or_unavailable_and_counted(
    bench: Bench, question: str, error: int
) -> None:
    bench.library.answers[question] = error
    try:
        reading = bench.gpus.read()[0]
    except GpuUnavailableError:
        assert bench.library.initialised == 0
    else:
        assert None in (reading.total_bytes, reading.process_bytes)
    assert sum(bench.gpus.errors.values()) > 0


@pytest.mark.parametrize(
    "question", ["Init", "DeviceGetCount", "DeviceGetHandleByIndex", "DeviceGetUUID", "DeviceGetName"]
)
@pytest.mark.parametrize("error", ERRORS)
def test_every_error_of_listing_is_ours(bench: Bench, question: str, error: int) -> None:
    bench.library.answers[question] = error
    with suppress(GpuUnavailableError):
        assert len(bench.gpus.read()) in (0, 2)
    assert sum(bench.gpus.errors.values()) > 0


def test_nvml_reading_of_a_lost_gpu_does_not_hide_other_gpus(bench: Bench) -> None:
    def lost(handle: int, version: int | None = None) -> SimpleNamespace:
        if handle == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return SimpleNamespace(total=80 * GIB, used=20 * GIB, free=60 * GIB)

    bench.library.answers["DeviceGetMemoryInfo"] = lost
    first, second = bench.gpus.read()
    assert (first.total_bytes, second.total_bytes) == (None, 80 * GIB)


def test_a_reloaded_driver_is_taken_up_again_with_growing_patience(bench: Bench) -> None:
    bench.gpus.read()
    bench.library.answers["DeviceGetMemoryInfo"] = pynvml.NVML_ERROR_UNINITIALIZED
    bench.library.answers["Init"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    tries = 0
    for _ in range(600):
        before = sum(bench.gpus.errors.values())
        with pytest.raises(GpuUnavailableError):
            bench.gpus.read()
        tries += sum(bench.gpus.errors.values()) - before
        bench.clock.pass_s(0.5)
    assert tries == 10  # after 1, 2, 4 … 32, 60, 60, 60 s
    del bench.library.answers["DeviceGetMemoryInfo"], bench.library.answers["Init"]
    bench.clock.pass_s(LAST_RETRY_S)
    assert len(bench.gpus.read()) == 2
    bench.library.answers["DeviceGetCount"] = pynvml.NVML_ERROR_UNKNOWN
    bench.clock.pass_s(RELIST_S)
    with pytest.raises(GpuUnavailableError):
        bench.gpus.read()
    del bench.library.answers["DeviceGetCount"]
    bench.clock.pass_s(FIRST_RETRY_S)
    assert len(bench.gpus.read()) == 2
    assert bench.library.initialised == 1


def test_gpus_that_come_or_are_cut_anew_are_seen_within_a_minute(bench: Bench) -> None:
    bench.gpus.read()
    bench.library.count = 3
    assert len(bench.gpus.read()) == 2
    bench.clock.pass_s(RELIST_S)
    assert len(bench.gpus.read()) == 3


def test_close_lets_the_driver_go_once(bench: Bench) -> None:
    bench.gpus.close()
    bench.gpus.read()
    bench.gpus.close()
    bench.gpus.close()
    assert bench.library.initialised == 0


def test_no_driver_is_no_source_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    library = FakeLibrary()
    library.answers["Init"] = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    with caplog.at_level("INFO"):
        assert open_nvml(library) is None
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_driver_that_is_not_up_yet_is_tried_again() -> None:
    library = FakeLibrary()
    library.answers["Init"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    gpus = open_nvml(library)
    assert gpus is not None
    with pytest.raises(GpuUnavailableError):
        gpus.read()
