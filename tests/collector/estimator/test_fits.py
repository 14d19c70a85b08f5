"""The verdict errs on the side of "does not fit"."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.estimator.gpus import CONTEXT_BYTES, GIB, GPU_TYPES, MIB, find_gpu, nccl_bytes
from tidegauge.estimator.largest_batch import ERROR_SHARE, fit, fitting_bytes
from tidegauge.estimator.results import FitVerdict, saving_note

H100 = find_gpu("H100-80")


def out_of_memory(total_bytes: int) -> None:
    return None


@given(st.integers(1, 300 * GIB))
def test_a_job_is_told_to_fit_only_where_it_would_with_the_whole_error_on_top(device_bytes: int) -> None:
    found = fit(device_bytes, H100, out_of_memory)
    if found.verdict is FitVerdict.FITS:
        assert device_bytes * (1 + ERROR_SHARE) <= H100.target.total_bytes + 1
    if device_bytes > H100.target.total_bytes:
        assert found.verdict is not FitVerdict.FITS
    if device_bytes <= fitting_bytes(H100.target.total_bytes):
        assert found.verdict is FitVerdict.FITS


def test_around_the_size_of_the_gpu_it_is_too_close_to_say() -> None:
    assert fit(H100.target.total_bytes, H100, out_of_memory).verdict is FitVerdict.TOO_CLOSE


def test_fit_is_too_close_to_call_within_the_estimates_error() -> None:
    small = H100._replace(target=replace(H100.target, total_bytes=9 * GIB))
    assert fit(10 * GIB, small, out_of_memory).verdict is FitVerdict.TOO_CLOSE
    assert fit(10 * GIB + 1, small, out_of_memory).verdict is FitVerdict.DOES_NOT_FIT


def test_a_job_that_runs_out_of_memory_far_above_the_gpu_does_not_fit() -> None:
    assert fit(2 * H100.target.total_bytes, H100, out_of_memory).verdict is FitVerdict.DOES_NOT_FIT


def test_a_job_that_lives_by_giving_back_its_cache_is_told_so() -> None:
    found = fit(2 * H100.target.total_bytes, H100, lambda _: 7)
    assert found.verdict is FitVerdict.TOO_CLOSE
    assert "7 releases" in found.note


def test_the_cache_is_not_asked_about_where_the_job_fits_as_it_is() -> None:
    def never(total_bytes: int) -> int:
        raise AssertionError("asked")

    assert fit(GIB, H100, never).margin == pytest.approx(1 - GIB / H100.target.total_bytes)


def test_gpu_types_go_from_large_to_small_and_have_names_of_their_own() -> None:
    sizes = [gpu.target.total_bytes for gpu in GPU_TYPES]
    assert sizes == sorted(sizes, reverse=True)
    assert len({gpu.name for gpu in GPU_TYPES}) == len(GPU_TYPES)


def test_an_unknown_gpu_is_answered_with_the_names() -> None:
    with pytest.raises(ValueError, match=r"unknown GPU 'h300': .* h200, "):
        find_gpu("h300")


def test_the_context_covers_every_recorded_single_gpu_job() -> None:
    recorded_mib = (742, 758, 762)  # NVML minus reserved in recordings/peaks.jsonl
    assert max(recorded_mib) << 20 == CONTEXT_BYTES


def test_two_ranks_hold_what_was_measured_and_one_rank_holds_nothing() -> None:
    measured_mib = 1586  # NVML minus reserved of the recorded ddp_steady, where the context takes 742
    assert nccl_bytes(2) == (measured_mib - 742) << 20
    assert nccl_bytes(1) == 0


def test_thirty_further_communicators_come_to_what_was_measured() -> None:
    measured_mib = 16138 - 1586  # the recorded ddp_comm_growth, whose 300 steps make 30
    assert nccl_bytes(2, communicators=31) - nccl_bytes(2) == pytest.approx(measured_mib << 20, rel=0.01)


@pytest.mark.parametrize(
    ("saved_mib", "lower_mib", "note"),
    [
        (700, 712, ""),
        (-20, 712, "peak allocated falls by 712.0 MiB, but the allocator reserves as much: fragmentation"),
        (-20, -16, ""),
    ],
)
def test_a_saving_far_below_what_is_allocated_less_says_why(saved_mib: int, lower_mib: int, note: str) -> None:
    assert saving_note(saved_mib * MIB, lower_mib * MIB) == note
