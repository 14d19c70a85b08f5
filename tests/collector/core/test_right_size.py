from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_views import GIB
from tidegauge.core.jobs.right_size import GpuUsage, SizedUsage, advice


def usage(**changes: Any) -> GpuUsage:
    """Eight GPUs of 80 GiB for ten hours a run, of which 9 GiB were needed."""
    told = GpuUsage(
        name="train", user_name="ada", runs=4, ooms=0, gpus=8, gpu_seconds=4 * 8 * 36_000.0,
        had_byte_seconds=4 * 8 * 36_000.0 * 80 * GIB, needed_byte_seconds=4 * 8 * 36_000.0 * 8 * GIB,
        limit_bytes=80 * GIB, highest_bytes=9 * GIB, mean_bytes=8.5 * GIB, gpu_bytes=80 * GIB,
    )  # fmt: skip
    return told._replace(**changes)


def test_advice_says_what_was_had_what_was_needed_and_what_would_do() -> None:
    assert advice(usage(), [24 * GIB, 40 * GIB, 80 * GIB]) == (
        "had 8 × 80.0 GiB, needed 9.0 GiB each at most in 4 runs; with a margin (9.9 GiB) a GPU of 24.0 GiB or 1/8 of "
        "this GPU (MIG, or --gpu-share 1/8) would do"
    )
    assert advice(usage(highest_bytes=8 * GIB, mean_bytes=8.0 * GIB), []) == (
        "had 8 × 80.0 GiB, needed 8.0 GiB each at most in 4 runs; with a margin (8.8 GiB) 1/8 of this GPU (MIG "
        "1g.10gb, or --gpu-share 1/8) would do"
    )


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({}, 8),
        ({"highest_bytes": 30 * GIB, "mean_bytes": 30 * GIB}, 2),
        ({"highest_bytes": 37 * GIB, "mean_bytes": 37 * GIB}, None),
        ({"highest_bytes": 18 * GIB, "mean_bytes": 18 * GIB}, 4),
        ({"highest_bytes": 18 * GIB, "mean_bytes": 10 * GIB}, 2),
        ({"highest_bytes": 18 * GIB, "mean_bytes": 10 * GIB, "runs": 2}, 4),
        ({"ooms": 1}, None),
        ({"limit_bytes": 0}, None),
        ({"gpu_bytes": 0}, None),
        ({"limit_bytes": 40 * GIB, "highest_bytes": 18 * GIB, "mean_bytes": 18 * GIB}, 4),
        ({"limit_bytes": 40 * GIB, "highest_bytes": 30 * GIB, "mean_bytes": 30 * GIB}, None),
    ],
)
def test_a_share_leaves_the_margin_that_earlier_runs_show(changes: dict[str, Any], share: int | None) -> None:
    assert usage(**changes).share == share


@pytest.mark.parametrize(
    ("gpu_gib", "need_gib", "profile"),
    [
        (79.1, 8.6, "1g.10gb"),
        (79.1, 8.7, None),  # 9.57 GiB with the margin: a slice has 9.5
        (79.65, 17.0, "2g.20gb"),
        (80.0, 34.0, "3g.40gb"),
        (39.38, 17.0, "3g.20gb"),
        (93.6, 20.0, "2g.24gb"),
        (139.8, 15.0, "1g.18gb"),
        (139.8, 60.0, "3g.71gb"),
        (178.35, 19.0, "1g.23gb"),
        (44.4, 18.0, None),  # an L40S has no MIG
        (95.0, 20.0, None),  # seven slices or four: nobody knows
        (80.0, 70.0, None),
    ],
)
def test_mig_profile_is_named_where_the_gpus_profiles_are_known(
    gpu_gib: float, need_gib: float, profile: str | None
) -> None:
    size, need = int(gpu_gib * GIB), int(need_gib * GIB)
    told = usage(gpu_bytes=size, limit_bytes=size, highest_bytes=need, mean_bytes=float(need))
    assert told.mig_profile == profile
    assert SizedUsage.of(told, []).mig_profile == profile


@pytest.mark.parametrize(
    ("changes", "fraction"),
    [({}, 0.13), ({"ooms": 1}, None), ({"gpu_bytes": 0}, None), ({"limit_bytes": 10 * GIB}, None)],
)
def test_fraction_has_the_margin_and_is_less_than_what_the_runs_had(
    changes: dict[str, Any], fraction: float | None
) -> None:
    assert usage(**changes).fraction == fraction


def test_there_is_no_advice_where_the_gpu_is_right_or_the_job_ran_out_of_memory() -> None:
    assert advice(usage(highest_bytes=70 * GIB, mean_bytes=70.0 * GIB), [80 * GIB]) is None
    assert advice(usage(ooms=1), [24 * GIB]) is None


def test_one_run_on_one_gpu_is_told_in_the_singular() -> None:
    told = advice(usage(runs=1, gpus=1))
    assert told is not None
    assert told.startswith("had 80.0 GiB, needed 9.0 GiB at most in the last run; ")


def test_a_run_that_had_a_part_of_its_gpu_is_told_a_smaller_part_of_the_gpu() -> None:
    capped = usage(limit_bytes=40 * GIB, highest_bytes=18 * GIB, mean_bytes=18.0 * GIB, gpus=1)
    assert advice(capped, [80 * GIB]) == (
        "had 40.0 GiB of a GPU of 80.0 GiB, needed 18.0 GiB at most in 4 runs; with a margin (19.8 GiB) 1/4 of this "
        "GPU (MIG, or --gpu-share 1/4) would do"
    )


def test_memory_outside_pytorch_that_is_not_known_has_room_in_the_need_and_the_sentence_says_so() -> None:
    run = GpuUsage.of_run(
        gpus=1, ran_s=600.0, limit_bytes=80 * GIB, gpu_bytes=80 * GIB, reserved_bytes=9 * GIB, nontorch_bytes=None
    )
    assert advice(run) == (
        "had 80.0 GiB, needed 11.0 GiB (2.0 GiB of it assumed for memory outside PyTorch) at most in the last run; "
        "with a margin (12.1 GiB) 1/4 of this GPU (MIG 2g.20gb, or --gpu-share 1/4) would do"
    )
    known = GpuUsage.of_run(
        gpus=1, ran_s=600.0, limit_bytes=80 * GIB, gpu_bytes=80 * GIB, reserved_bytes=9 * GIB, nontorch_bytes=GIB
    )
    assert (known.highest_bytes, known.assumed_bytes) == (10 * GIB, 0)


@given(
    runs=st.integers(1, 50), highest=st.integers(1, 200 * GIB), mean=st.floats(0.1, 1.0),
    limit=st.integers(1, 200 * GIB), cap=st.floats(0.05, 1.0), sizes=st.lists(st.integers(1, 200 * GIB)),
)  # fmt: skip
def test_whatever_is_advised_holds_the_highest_need_and_a_tenth_more(
    runs: int, highest: int, mean: float, limit: int, cap: float, sizes: list[int]
) -> None:
    had = int(cap * limit)
    told = usage(runs=runs, highest_bytes=highest, mean_bytes=mean * highest, limit_bytes=had, gpu_bytes=limit)
    assert told.safe_bytes >= int(1.1 * highest)
    assert told.share is None or (told.safe_bytes * told.share <= limit and limit / told.share < had)
    smaller = told.smaller_gpu(sizes)
    assert smaller is None or told.safe_bytes <= smaller < had
    sized = SizedUsage.of(told, sizes)
    assert (sized.advice is None) == (sized.share is None and smaller is None)
    assert told.unused_byte_seconds >= 0
