"""Buffers of reductions, in words that hold for any shape; measured ones are in test_measured_calls.py."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from kernel_calls import strides
from tidegauge.estimator.kernels.calls import Layout
from tidegauge.estimator.kernels.reductions import buffer_bytes

H200_MULTIPROCESSORS = 132
SHAPES = st.lists(st.integers(1, 300), min_size=1, max_size=4)


def dense(shape: list[int]) -> Layout:
    return Layout(tuple(shape), strides(shape, None))


@given(SHAPES, st.sets(st.integers(0, 3)))
def test_a_buffer_holds_a_few_partial_results_for_each_output(shape: list[int], dims: set[int]) -> None:
    reduced = [dim for dim in dims if dim < len(shape)]
    found = buffer_bytes(dense(shape), reduced, H200_MULTIPROCESSORS)
    if found:
        buffer, semaphores = found
        outputs = math.prod(size for dim, size in enumerate(shape) if reduced and dim not in reduced)
        assert buffer >= 2 * 4 * outputs
        assert semaphores % 4 == 0


@given(SHAPES, st.integers(0, 3))
def test_dimensions_of_one_element_change_nothing(shape: list[int], position: int) -> None:
    position = min(position, len(shape))
    with_one = [*shape[:position], 1, *shape[position:]]
    first = 0 if position > 0 else 1
    assert buffer_bytes(dense(with_one), [first], 132) == buffer_bytes(dense(shape), [0], 132)


def test_short_reductions_need_no_buffer() -> None:
    assert buffer_bytes(dense([4096, 768]), [1], H200_MULTIPROCESSORS) == ()


def test_all_dimensions_are_meant_where_none_is_named() -> None:
    assert buffer_bytes(dense([512, 512]), None, 132) == buffer_bytes(dense([512, 512]), [0, 1], 132) != ()


def test_more_multiprocessors_share_the_work_among_more_blocks() -> None:
    rows = dense([1 << 17, 96])
    assert sum(buffer_bytes(rows, [0], 132)) > sum(buffer_bytes(rows, [0], 66))


def test_wider_sums_take_wider_partial_results() -> None:
    rows = dense([1 << 17, 96])
    assert buffer_bytes(rows, [0], 132, 8)[0] == 2 * buffer_bytes(rows, [0], 132)[0]
