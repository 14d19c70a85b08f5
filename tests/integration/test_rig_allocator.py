"""The rig under one process: numbers are those of PyTorch's own allocator, and programs run on it unchanged."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig

pytestmark = pytest.mark.rig

JOBS = Path(__file__).parent / "rig_jobs"
MIB = 1 << 20
GIB = 1 << 30
CONTEXT_BYTES = 300 * MIB
KERNEL_S = 0.001


@pytest.fixture(scope="module")
def seen(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one run of allocator_tour.py saw: importing torch takes seconds, so all tests here share it."""
    state = tmp_path_factory.mktemp("rig") / "gpus"
    environ = rig.environ(
        devices=2, total_bytes=8 * GIB, context_bytes=CONTEXT_BYTES, state=state,
        kernel_delay_us=round(KERNEL_S * 1e6),
    )  # fmt: skip
    done = subprocess.run(
        [rig.python, JOBS / "allocator_tour.py"],
        env={**environ, "PYTHONPATH": str(rig.inside)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_torch_sees_the_devices_with_their_names_and_identities(seen: dict[str, Any]) -> None:
    assert seen["available"] is True
    assert seen["device_count"] == 2
    assert seen["accelerator"] == "cuda"
    assert seen["device_1"] == {
        "name": "Fake GPU (Tidegauge rig)",
        "uuid": "fa6e0000-0000-4000-8000-000000000001",
        "total_bytes": 8 * GIB,
        "capability": [8, 0],
    }


def test_a_context_takes_its_bytes_before_the_first_tensor(seen: dict[str, Any]) -> None:
    assert seen["free_and_total_at_start"] == [8 * GIB - CONTEXT_BYTES, 8 * GIB]


def test_statistics_are_the_caching_allocators(seen: dict[str, Any]) -> None:
    """30 MiB get a segment of their own; 100 bytes become 512 in a small segment of 2 MiB."""
    after = seen["after_two_blocks"]
    assert after["allocated_bytes.all.current"] == 30 * MIB + 512
    assert after["reserved_bytes.all.current"] == 32 * MIB
    assert seen["after_empty_cache"]["reserved_bytes.all.current"] == 0


def test_out_of_memory_is_pytorchs_own_error_with_nvmls_process_line(seen: dict[str, Any]) -> None:
    text = seen["oom"]
    assert (
        "CUDA out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 5.71 GiB"
        in text
    )
    assert "Including non-PyTorch memory, this process has 2.29 GiB memory in use." in text
    assert "2.00 GiB is allocated by PyTorch" in text


def test_a_memory_fraction_caps_the_process(seen: dict[str, Any]) -> None:
    assert "2.00 GiB allowed" in seen["oom_under_a_cap"]


def test_memory_taken_outside_the_allocator_is_gone_from_the_device(seen: dict[str, Any]) -> None:
    assert seen["free_after_giving_them_back"] - seen["free_with_512_mib_outside"] == 512 * MIB


def test_held_events_keep_recorded_blocks_active(seen: dict[str, Any]) -> None:
    assert seen["active_while_events_are_held"] >= 32 * MIB
    assert seen["active_when_they_are_ready"] < 1 * MIB


def test_a_program_can_make_its_next_device_allocations_fail(seen: dict[str, Any]) -> None:
    assert "CUDA out of memory" in seen["oom_when_told_to_fail"]
    assert seen["retries_when_told_to_fail"] == 1


def test_kernels_take_the_time_that_they_are_told_to_take(seen: dict[str, Any]) -> None:
    assert seen["seconds_of_ten_kernels"] >= 10 * KERNEL_S


def test_copies_really_copy(seen: dict[str, Any]) -> None:
    assert [name for name, equal in seen["round_trips"].items() if not equal] == []
    assert seen["pinned"] == [True, False]


def test_constant_fills_are_carried_out(seen: dict[str, Any]) -> None:
    assert seen["fills"] == [False, [7, 7, 7], [1.0, 1.0]]


def test_layers_losses_scalers_and_optimizers_run_unchanged(seen: dict[str, Any]) -> None:
    assert seen["optimizer_states_foreach"] == seen["optimizer_states_fused"] == seen["parameters"]
    assert seen["elapsed_ms"] >= 0


def test_history_and_snapshots_work(seen: dict[str, Any]) -> None:
    assert seen["traced"] == {"size": 3 * MIB, "file": "allocator_tour.py"}
    assert seen["snapshot_agrees"] is True


def test_expandable_segments_map_and_unmap_on_their_own_device(seen: dict[str, Any]) -> None:
    expandable = seen["expandable"]
    assert set(expandable["segments"]) == {True}
    assert expandable["taken_bytes"] == expandable["reserved_bytes"] == 260 * MIB  # in pages of 20 MiB
    assert expandable["taken_after_unmapping_bytes"] < 260 * MIB - 80 * MIB
    assert expandable["copied"] == expandable["kept"] == 5
    assert expandable["taken_at_the_end_bytes"] == 0
