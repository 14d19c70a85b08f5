"""Workspaces of convolutions, measured or told from the nearest, and the copies around them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import fewer
from kernel_calls import call
from tidegauge.estimator.kernels import scratch
from tidegauge.estimator.kernels.calls import Scratch
from tidegauge.estimator.kernels.convolutions import Geometry, workspaces

VGG = Geometry(64, 64, 64, 224, 224, (3, 3), (1, 1), (1, 1), (1, 1), 1, "float32", False)


def forward(values: str, weight: str, stride: int = 1, padding: int = 0, groups: int = 1, **more: Any) -> Scratch:
    pair = [[number] * (values.count(",") - 1) for number in (stride, padding, 1)]
    none = [0] * len(pair[0])
    transposed = more.get("transposed", False)
    return scratch(call("convolution.default", values, weight, None, *pair, transposed, none, groups))


def backward(gradient: str, values: str, weight: str, mask: list[bool], stride: int = 1, padding: int = 0,
             groups: int = 1) -> Scratch:  # fmt: skip
    pair = [[number] * (values.count(",") - 1) for number in (stride, padding, 1)]
    arguments = (gradient, values, weight, None, *pair, False, [0] * len(pair[0]), groups, mask)
    return scratch(call("convolution_backward.default", *arguments, outputs=["f32[1]"] * 3))


def test_a_measured_case_is_given_back() -> None:
    assert workspaces(VGG) == (1_644_314_771, 1_644_314_771, 1_646_379_687)


def test_a_case_that_was_not_measured_is_scaled_from_the_nearest() -> None:
    """Input and output once more, as at the measured sizes."""
    found = workspaces(VGG._replace(batch=48, height=200, width=200))
    assert found is not None
    both = 2 * 48 * 64 * 200 * 200 * 4
    assert found.forward == pytest.approx(both, rel=0.01)


@fewer(2)
@given(
    st.integers(1, 512), st.integers(1, 2048), st.integers(1, 2048), st.integers(1, 512), st.sampled_from([1, 3, 5, 7]),
    st.sampled_from([1, 2, 4]), st.sampled_from(["float32", "bfloat16", "float16", "float64"]), st.booleans(),
)  # fmt: skip
def test_any_convolution_has_an_answer_in_proportion(
    batch: int, channels: int, out_channels: int, side: int, kernel: int, stride: int, dtype: str, last: bool
) -> None:
    wanted = Geometry(
        batch,
        channels,
        out_channels,
        side,
        side,
        (kernel,) * 2,
        (stride,) * 2,
        (kernel // 2,) * 2,
        (1, 1),
        1,
        dtype,
        last,
    )
    found = workspaces(wanted)
    assert found is not None
    most = 256 * (wanted.input_bytes + wanted.output_bytes + wanted.weight_bytes) + (64 << 20)
    assert all(0 <= size <= most for size in found)


def test_pytorchs_own_depthwise_kernel_takes_none_and_makes_the_weights_gradient_first() -> None:
    assert forward("f32[16,96,56,56]", "f32[96,1,3,3]", padding=1, groups=96) == Scratch()
    gradient = "f32[16,96,56,56]"
    found = backward(gradient, gradient, "f32[96,1,3,3]", [True, True, False], padding=1, groups=96)
    assert found == Scratch(between={2: ()}, order=(1, 0, 2))


def test_weights_in_another_layout_than_the_input_are_copied_after_the_result() -> None:
    found = forward("f32[64,96,56,56]@cl", "f32[192,96,2,2]", stride=2)
    assert found.after[0] == 192 * 96 * 2 * 2 * 4
    assert not found.before


def test_an_input_with_gaps_is_copied_before_the_result() -> None:
    found = forward("f32[16,58,28,28]@(90944,784,28,1)", "f32[58,58,1,1]")
    assert found.before == (16 * 58 * 28 * 28 * 4,)


def test_a_gradient_in_another_layout_is_copied_for_the_whole_operator() -> None:
    found = backward("f32[64,768,7,7]", "f32[64,384,14,14]@cl", "f32[768,384,2,2]", [True, True, True], stride=2)
    assert found.before == (64 * 768 * 7 * 7 * 4,)


def test_a_gradient_with_gaps_is_copied_for_each_of_the_results() -> None:
    gradient = "f32[16,32,56,56]@(802816,3136,56,1)"
    found = backward(gradient, "f32[16,128,56,56]", "f32[32,128,3,3]", [True, True, False], padding=1)
    size = 16 * 32 * 56 * 56 * 4
    assert not found.before
    assert found.between == {0: (size, 32_260_243), 1: (36_520_671,), 2: ()}
    assert found.ahead == {1: (size,)}, "the weight's own copy is there before the weight's gradient"


def test_a_transposed_convolution_copies_a_gradient_with_gaps_once() -> None:
    """Of a U-Net's way up, measured: the copy lives until both gradients are made."""
    pair = [[number] * 2 for number in (2, 0, 1)]
    gradient = "f32[12,96,80,80]@(1228800,6400,80,1)"
    arguments = (gradient, "f32[12,192,40,40]", "f32[192,96,2,2]", [96], *pair, True, [0, 0], 1, [True, True, True])
    found = scratch(call("convolution_backward.default", *arguments, outputs=["f32[1]"] * 3))
    assert found.before == (12 * 96 * 80 * 80 * 4,)
    assert not found.ahead
    assert sum(found.between[0]) == pytest.approx(44_531_859, rel=0.01)
    assert sum(found.between[1]) == pytest.approx(52_920_975, rel=0.01)


def test_without_a_gradient_of_the_input_its_workspace_is_not_taken() -> None:
    gradient, values, weight = "f32[64,64,112,112]", "f32[64,3,224,224]", "f32[64,3,7,7]"
    found = backward(gradient, values, weight, [False, True, False], stride=2, padding=3)
    assert found.between == {0: (), 1: (262_972_560,), 2: ()}


def test_a_transposed_input_of_one_dimension_does_not_count_as_channels_last() -> None:
    found = forward("f32[4,1024,256]@(524288,1,2048)", "f32[1024,1,4]", padding=3, groups=1024)
    assert found == Scratch(before=(4 * 1024 * 256 * 4,))


def test_a_transposed_convolution_is_the_gradient_of_the_other_way_round() -> None:
    straight = backward("f32[64,64,224,224]", "f32[64,64,224,224]", "f32[64,64,3,3]", [True, False, False], padding=1)
    turned = forward("f32[64,64,224,224]", "f32[64,64,3,3]", padding=1, transposed=True)
    assert turned.after == straight.between[0] == (1_644_314_771,)
