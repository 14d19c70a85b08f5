"""What kernels take besides their results, beside what they took in training jobs on an H200.

``kernel_calls.jsonl`` is drawn from the operators that ``bench/gpu_peaks.py`` recorded with torch 2.11; ``exact`` says
that every request above 4 KiB has to be the same, else only the sum has to be about right.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kernel_calls import call, on_the_cpu
from tidegauge.estimator.kernels import scratch
from tidegauge.estimator.kernels.calls import NOTHING, OpCall, Scratch

LINES = Path(__file__).parents[3] / "data" / "estimate" / "kernel_calls.jsonl"
SMALL_BYTES = 4096
CLOSE = 0.35


def by_operator() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in LINES.read_text().splitlines():
        row = json.loads(line)
        found[row["op"]].append(row)
    return found


def as_call(row: dict[str, Any]) -> OpCall:
    name = row["op"].removeprefix("aten.")
    outputs: list[Any] = ["f32[1]"] * 4
    if "efficient_attention_backward" in name and row["args"][4] is None:
        outputs[3] = None
    return call(name, *row["args"], outputs=outputs, backward=row["phase"] == "backward")


def temporaries(found: Scratch) -> list[int]:
    between = [size for sizes in found.between.values() for size in sizes]
    ahead = [size for sizes in found.ahead.values() for size in sizes]
    return sorted([*found.before, *ahead, *between, *found.after])


MEASURED = by_operator()


@pytest.mark.parametrize("operator", sorted(MEASURED))
def test_temporaries_are_those_that_were_measured(operator: str) -> None:
    for row in MEASURED[operator]:
        took = sorted(row["temporaries"])
        told = temporaries(scratch(as_call(row)))
        if row["exact"]:
            large = [[size for size in sizes if size > SMALL_BYTES] for sizes in (told, took)]
            assert large[0] == large[1], (row["job"], row["args"])
        else:
            assert abs(sum(told) - sum(took)) <= CLOSE * sum(took), (row["job"], row["args"], told)


def test_measured_call_needs_no_scratch_on_the_cpu_or_without_values() -> None:
    softmax = call("_softmax_backward_data.default", "f32[64,512]", "f32[64,512]", -1, outputs=["f32[64,512]"])
    assert scratch(softmax) != NOTHING
    assert scratch(on_the_cpu(softmax)) == NOTHING
    empty = call("_softmax_backward_data.default", "f32[0,512]", "f32[0,512]", -1, outputs=["f32[0,512]"])
    assert scratch(empty) == NOTHING


def test_operators_that_are_not_known_take_nothing() -> None:
    assert scratch(call("relu.default", "f32[64,512]")) == NOTHING


def test_cudnn_attention_makes_the_seeds_first_and_efficient_attention_leaves_them_on_the_cpu() -> None:
    heads = "bf16[8,12,512,64]"
    cudnn = scratch(call("_scaled_dot_product_cudnn_attention.default", heads, heads, heads))
    assert cudnn.order[:2] == (6, 7)
    efficient = scratch(call("_scaled_dot_product_efficient_attention.default", heads, heads, heads))
    assert efficient.elsewhere == (2, 3)


def test_flash_attention_adds_gradients_of_queries_up_in_float32() -> None:
    heads = "bf16[8,16,512,64]"
    found = scratch(call("_scaled_dot_product_flash_attention_backward.default", heads, heads, heads, heads))
    assert 8 * 16 * 512 * 64 * 4 in found.after
    grouped = "bf16[8,4,512,64]"
    more = scratch(call("_scaled_dot_product_flash_attention_backward.default", heads, heads, grouped, grouped))
    assert sum(more.after) - sum(found.after) == 2 * 8 * 16 * 512 * 64 * 2


def test_a_loss_of_squares_takes_one_for_each_element_and_the_buffer_of_their_mean() -> None:
    pictures = "f32[24,3,64,64]"
    assert scratch(call("mse_loss.default", pictures, pictures, outputs=["f32[]"])).after == (1_179_648, 144, 4)
    assert scratch(call("mse_loss.default", pictures, pictures, 0, outputs=[pictures])) == NOTHING


def test_dropout_makes_its_mask_first() -> None:
    assert scratch(call("native_dropout.default", "f32[64,512]", 0.1, True)).order == (1, 0)
