from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_views import rank_summary, uuid_of
from tidegauge.core.jobs.fraction import (
    CONTEXT_BYTES,
    MIN_CAP_BYTES,
    cap_of_job,
    derive_cap,
    fraction_of_settings,
    start_fraction,
)

MIB = 1 << 20
GIB = 1 << 30
H200_BYTES = 150_109_880_320
"""``cudaDeviceProp.totalGlobalMem`` of an H200."""

shares = st.floats(0, 1, exclude_min=True)
sizes = st.integers(1 * GIB, 300 * GIB)
ranks = st.integers(1, 16)


@given(shares, sizes, st.none() | st.integers(0, 100 * GIB), ranks, st.integers(0, 300 * GIB))
def test_derived_cap_keeps_allocators_and_contexts_within_the_share(
    share: float, usable_bytes: int, nontorch_bytes: int | None, ranks_on_gpu: int, reserved_bytes: int
) -> None:
    cap = derive_cap(
        share=share, usable_bytes=usable_bytes, nontorch_bytes=nontorch_bytes, ranks_on_gpu=ranks_on_gpu,
        reserved_bytes=reserved_bytes, shared_gpu=True,
    )  # fmt: skip
    assert cap.explanation
    if cap.fraction is None:
        return
    assert 0 < cap.fraction < 1
    allowed_bytes = int(cap.fraction * usable_bytes)  # as torch counts it
    outside_bytes = CONTEXT_BYTES if nontorch_bytes is None else nontorch_bytes
    assert ranks_on_gpu * (allowed_bytes + outside_bytes) <= share * usable_bytes + ranks_on_gpu
    assert allowed_bytes >= MIN_CAP_BYTES - usable_bytes / 1e6 - 1


@given(sizes, st.integers(0, 300 * GIB), ranks)
def test_without_a_share_a_cap_leaves_a_rank_what_it_has(usable_bytes: int, reserved_bytes: int, on_gpu: int) -> None:
    cap = derive_cap(
        share=None, usable_bytes=usable_bytes, nontorch_bytes=None, ranks_on_gpu=on_gpu,
        reserved_bytes=reserved_bytes, shared_gpu=True,
    )  # fmt: skip
    if cap.fraction is not None:
        assert 0 < cap.fraction < 1
        assert reserved_bytes <= int(cap.fraction * usable_bytes) <= 1.1 * reserved_bytes
    else:
        assert reserved_bytes < MIN_CAP_BYTES or reserved_bytes * 1.1 >= usable_bytes


@given(shares, st.none() | sizes, ranks)
def test_a_start_fraction_is_a_fraction_within_the_share_or_a_refusal(
    share: float, usable_bytes: int | None, ranks_on_gpu: int
) -> None:
    try:
        fraction = start_fraction(share, usable_bytes=usable_bytes, ranks_on_gpu=ranks_on_gpu)
    except ValueError:
        assert usable_bytes is not None
        assert share / ranks_on_gpu * usable_bytes < CONTEXT_BYTES + MIN_CAP_BYTES + 1
    else:
        assert 0 < fraction <= 1
        assert fraction <= max(share / ranks_on_gpu, 1e-6)


def test_half_an_h200_with_a_measured_context() -> None:
    cap = derive_cap(share=0.5, usable_bytes=H200_BYTES, nontorch_bytes=742 * MIB, ranks_on_gpu=1)
    assert cap.fraction == 0.494816
    assert cap.explanation == (
        "0.5 of 139.8 GiB is 69.9 GiB; 742.0 MiB outside the allocator (measured: CUDA context, NCCL, libraries) "
        "leave 69.2 GiB"
    )


def test_ranks_of_one_job_divide_its_share_of_a_gpu() -> None:
    alone = derive_cap(share=0.5, usable_bytes=80 * GIB, nontorch_bytes=1 * GIB, ranks_on_gpu=1)
    cap = derive_cap(share=0.5, usable_bytes=80 * GIB, nontorch_bytes=1 * GIB, ranks_on_gpu=4)
    assert (alone.fraction, cap.fraction) == (39 / 80, 9 / 80)
    assert "10.0 GiB for each of its 4 ranks" in cap.explanation


def test_derived_cap_explains_an_unmeasured_overhead_as_assumed() -> None:
    cap = derive_cap(share=0.25, usable_bytes=80 * GIB, nontorch_bytes=None, ranks_on_gpu=1)
    assert cap.fraction == 0.240625
    assert "768.0 MiB outside the allocator (taken for granted:" in cap.explanation


def test_a_share_that_the_context_eats_up_is_refused_with_what_to_do() -> None:
    cap = derive_cap(share=0.1, usable_bytes=16 * GIB, nontorch_bytes=1586 * MIB, ranks_on_gpu=1)
    assert cap.fraction is None
    assert "needs a larger share, or fewer ranks on a GPU" in cap.explanation


def test_a_rank_that_is_over_its_cap_is_told_that_it_keeps_what_it_has() -> None:
    cap = derive_cap(share=0.5, usable_bytes=80 * GIB, nontorch_bytes=1 * GIB, ranks_on_gpu=1, reserved_bytes=50 * GIB)
    assert cap.fraction == 39 / 80
    assert "50.0 GiB that it has reserved already stay" in cap.explanation


def test_a_whole_gpu_of_its_own_needs_no_cap() -> None:
    assert derive_cap(share=1, usable_bytes=80 * GIB, nontorch_bytes=None, ranks_on_gpu=1).fraction is None
    assert derive_cap(share=None, usable_bytes=80 * GIB, nontorch_bytes=None, ranks_on_gpu=2).fraction is None
    assert start_fraction(1.0) == start_fraction(1.0, usable_bytes=80 * GIB) == 1.0


def test_a_neighbour_without_a_share_is_held_where_it_is() -> None:
    cap = derive_cap(
        share=None, usable_bytes=80 * GIB, nontorch_bytes=None, ranks_on_gpu=1, reserved_bytes=40 * GIB, shared_gpu=True
    )
    assert cap.fraction == 0.55
    assert "40.0 GiB reserved now and 10% to spare" in cap.explanation


def test_before_the_start_the_context_is_declared() -> None:
    assert start_fraction(0.5, usable_bytes=24 * GIB) == 0.46875
    assert start_fraction(0.5) == 0.46875, "the part for an unseen GPU is the same there"


@pytest.mark.parametrize(("share", "on_gpu"), [(0, 1), (-1, 1), (1.5, 1), (0.5, 0)])
def test_a_share_that_is_none_is_an_error(share: float, on_gpu: int) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        start_fraction(share, ranks_on_gpu=on_gpu)


def test_a_job_gets_the_smallest_fraction_of_its_living_ranks() -> None:
    usable_bytes = {uuid_of(0): 80 * GIB, uuid_of(1): 80 * GIB}
    ranks = [
        rank_summary(0, nontorch_bytes=1 * GIB),
        rank_summary(1, nontorch_bytes=3 * GIB),
        rank_summary(2, nontorch_bytes=20 * GIB, uuid=uuid_of(1), alive=False),
        rank_summary(3, nontorch_bytes=30 * GIB),
    ]
    cap = cap_of_job(ranks, share=0.5, shared_gpu=True, usable_bytes=usable_bytes)
    assert cap.fraction == 37 / 80
    both = cap_of_job([rank_summary(n, uuid=uuid_of(0), nontorch_bytes=GIB) for n in (0, 1)],
                      share=0.5, shared_gpu=True, usable_bytes=usable_bytes)  # fmt: skip
    assert both.fraction == 19 / 80, "two ranks on one GPU"


def test_a_rank_for_which_nothing_is_left_makes_it_no_cap_for_the_job() -> None:
    usable_bytes = {uuid_of(0): 80 * GIB, uuid_of(1): 80 * GIB}
    ranks = [rank_summary(0), rank_summary(1, nontorch_bytes=40 * GIB)]
    cap = cap_of_job(ranks, share=0.5, shared_gpu=True, usable_bytes=usable_bytes)
    assert cap.fraction is None
    assert "40.0 GiB outside the allocator" in cap.explanation


def test_a_job_on_unknown_gpus_gets_no_cap() -> None:
    cap = cap_of_job([rank_summary(0)], share=0.5, shared_gpu=True, usable_bytes={})
    assert cap == (None, "the size of its GPUs is not known")


@pytest.mark.parametrize(
    ("conf", "torch_version", "fraction"),
    [
        ("expandable_segments:True,per_process_memory_fraction:0.25", "2.13.0", 0.25),
        ("per_process_memory_fraction:0.25", "2.9.1", None),
        ("per_process_memory_fraction:1.0", "2.13.0", None),
        ("per_process_memory_fraction:half", "2.13.0", None),
        ("expandable_segments:True", "2.13.0", None),
        ("per_process_memory_fraction:0.25", None, None),
        (None, "2.13.0", None),
    ],
)
def test_a_fraction_in_the_settings_is_read_back(
    conf: str | None, torch_version: str | None, fraction: float | None
) -> None:
    assert fraction_of_settings(conf, torch_version) == fraction
