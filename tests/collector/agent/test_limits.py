from __future__ import annotations

from dataclasses import replace

import pytest

from fake_node import GIB, UUID0, UUID1, gpu_reading
from tidegauge.agent.node_agent import unwatched_bytes
from tidegauge.agent.ranks.rank import cap_bytes, others_bytes, place, process_limit_bytes
from tidegauge.core.ids import DeviceUuid


@pytest.mark.parametrize(
    ("total", "fraction", "cap"),
    [(80 * GIB, 0.5, 40 * GIB), (1001, 0.3333, 333), (80 * GIB, 1.0, None), (80 * GIB, None, None), (None, 0.5, None)],
)
def test_the_cap_is_counted_as_pytorch_counts_it(total: int | None, fraction: float | None, cap: int | None) -> None:
    assert cap_bytes(total_bytes=total, fraction=fraction) == cap


def test_others_are_all_that_is_neither_free_nor_ours() -> None:
    gpu = gpu_reading(total_bytes=80 * GIB, free_bytes=50 * GIB, processes={1: 20 * GIB, 2: 9 * GIB})
    assert others_bytes(gpu, 1) == 10 * GIB  # process 2 and 1 GiB of the driver
    assert others_bytes(gpu, 3) is None
    assert others_bytes(gpu_reading(free_bytes=None, processes={1: 1}), 1) is None
    assert others_bytes(gpu_reading(processes={1: None}), 1) is None


@pytest.mark.parametrize(
    ("total", "others", "cap", "nontorch", "limit"),
    [
        (80, 10, None, None, 70),
        (80, 10, 40, 5, 45),
        (80, 60, 40, 5, 20),
        (80, None, 40, None, 40),
        (None, None, 40, 5, 45),
        (80, None, None, None, 80),
        (None, None, None, 5, None),
    ],
)
def test_the_nearer_of_card_and_cap_is_the_limit(
    total: int | None, others: int | None, cap: int | None, nontorch: int | None, limit: int | None
) -> None:
    assert process_limit_bytes(total_bytes=total, others=others, cap=cap, nontorch_bytes=nontorch) == limit


def test_unwatched_bytes_leave_out_the_ranks() -> None:
    gpu = gpu_reading(processes={1: 5, 2: 7, 3: 11})
    assert unwatched_bytes(gpu, frozenset({1})) == 18
    assert unwatched_bytes(gpu_reading(processes={1: None, 2: 7}), frozenset({1})) == 7
    assert unwatched_bytes(gpu_reading(processes={1: None, 2: 7}), frozenset({2})) is None


@pytest.mark.parametrize("claim", [UUID1, DeviceUuid(UUID1.removeprefix("GPU-").upper())])
def test_a_claim_that_the_driver_does_not_contradict_stands(claim: DeviceUuid) -> None:
    gpus = [gpu_reading(UUID0, 0, processes={7: 1}), gpu_reading(UUID1, 1, processes={7: 2})]
    assert place(claim, 7, gpus) == (gpus[1], False)
    assert place(claim, 8, gpus) == (gpus[1], False)


def test_the_driver_overrules_a_claim() -> None:
    gpus = [gpu_reading(UUID0, 0, processes={7: 1}), gpu_reading(UUID1, 1)]
    assert place(UUID1, 7, gpus) == (gpus[0], True)
    assert place(DeviceUuid("GPU-of-another-node"), 7, gpus) == (gpus[0], True)


def test_without_a_claim_the_driver_says_where_most_of_it_is() -> None:
    gpus = [gpu_reading(UUID0, 0, processes={7: 1}), gpu_reading(UUID1, 1, processes={7: 2})]
    assert place(None, 7, gpus) == (gpus[1], False)
    assert place(None, 8, gpus) == (None, False)
    assert place(UUID0, 7, []) == (None, False)


def test_a_fraction_is_one_of_what_cuda_calls_the_total() -> None:
    # An H200 as NVML and torch told it: the driver's reserve is not CUDA's to give.
    gpu = replace(gpu_reading(), total_bytes=150_754_820_096, reserve_bytes=644_939_776)
    assert gpu.usable_bytes == 150_109_880_320
    assert cap_bytes(total_bytes=gpu.usable_bytes, fraction=0.05) == 7_505_494_016
    assert replace(gpu, reserve_bytes=None).usable_bytes == gpu.total_bytes
    assert replace(gpu, total_bytes=None).usable_bytes is None
