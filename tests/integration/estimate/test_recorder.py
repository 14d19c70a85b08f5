"""What the recorder says of small jobs, beside what PyTorch's own allocator was asked for on the fake-GPU rig."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from integration.estimate.warm_python import WarmPython
from matrix import in_turns

HERE = Path(__file__).parent
STEPS = 2
JOBS = ("adamw", "accumulated", "autocast", "scaled", "attends_by_hand", "checkpointed", "checkpointed_reentrant")
Recorded = Callable[[str], Any]
"""What ``small_job_estimated.py`` says of a job."""


@pytest.fixture(scope="module")
def estimated(laptop: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Each job is recorded once."""
    folder = tmp_path_factory.mktemp("estimated")

    @cache
    def record(job: str) -> Any:
        return laptop.told(HERE / "small_job_estimated.py", job, STEPS, out=folder / f"{job}.json")

    return record


def in_order(events: list[Any]) -> list[Any]:
    """Frees that follow each other by size: autocast drops its casts in the order of a hash table."""
    runs = [list(run) for _, run in groupby(events, key=lambda event: event[0])]
    return [event for run in runs for event in (sorted(run) if run[0][0] == "free_requested" else run)]


def refusal(laptop: WarmPython, job: str, tmp_path: Path) -> str:
    """The last line of what a job says that cannot be estimated."""
    done = laptop.run(HERE / "small_job_estimated.py", job, 1, tmp_path / "none.json")
    assert done.code != 0
    return done.errors.strip().splitlines()[-1]


@pytest.mark.rig
@pytest.mark.parametrize("job", in_turns(JOBS))
def test_asks_for_the_same_in_the_same_order_as_on_the_rig(
    gpu_node: WarmPython, estimated: Recorded, job: str, tmp_path: Path
) -> None:
    real = gpu_node.told(HERE / "small_job_on_the_rig.py", job, STEPS, out=tmp_path / "real.json")
    ours = in_order([[action, size] for action, size, _, _ in estimated(job)["events"]])
    rest = iter(in_order(real))  # kernels take temporaries of their own between what the program asks for
    missed = [(position, event) for position, event in enumerate(ours) if not any(event == other for other in rest)]
    assert not missed, missed[:3]
    assert len(ours) > len(real) / 2


@pytest.mark.parametrize("job", ["adamw", "scaled"])
def test_leaves_pytorch_as_it_was(estimated: Recorded, job: str) -> None:
    assert estimated(job)["changed"] == []


def test_says_what_every_block_was_for(estimated: Recorded) -> None:
    by_kind = estimated("adamw")["by_kind"]
    parameters = 4 * (3 * (192 * 2 + 192 * 576 * 2 + 576 + 192) + 192 * 7 + 7)
    assert by_kind["PARAMETER"] == parameters
    assert by_kind["OPTIMIZER_STATE"] == 2 * parameters
    assert by_kind["GRADIENT"] == STEPS * parameters
    assert by_kind["INPUT"] == STEPS * (40 * 192 * 4 + 40 * 8)
    assert by_kind["ACTIVATION"] > 0


def test_values_that_are_not_there_are_assumed_and_reported(estimated: Recorded) -> None:
    found = estimated("looks_at_values")
    assert any("reads a value" in assumption for assumption in found["assumptions"])
    assert any("as large as it can be" in assumption for assumption in found["assumptions"])
    assert found["by_kind"]["GRADIENT"] > 0


def test_a_job_that_names_no_device_is_run_on_the_gpu(estimated: Recorded) -> None:
    found = estimated("names_no_device")
    assert found["by_kind"]["PARAMETER"] == 4 * (192 * 7 + 7)
    assert any("does not use a GPU" in assumption for assumption in found["assumptions"])


def test_a_script_that_looks_for_a_gpu_finds_one(estimated: Recorded) -> None:
    found = estimated("asks_first")
    assert found["by_kind"]["OPTIMIZER_STATE"] == 2 * 4 * (192 * 7 + 7)
    assert any("torch.compile" in assumption for assumption in found["assumptions"])


def test_small_tensors_on_the_cpu_keep_their_values(estimated: Recorded) -> None:
    found = estimated("is_built_by_numbers")  # widths 20, 41, 62
    assert found["by_kind"]["PARAMETER"] == 4 * (20 * 41 + 41 + 41 * 62 + 62)
    assert found["assumptions"] == []


def test_fused_attention_keeps_no_matrix_of_weights(estimated: Recorded) -> None:
    sizes = [size for action, size, _, _ in estimated("attends")["events"] if action == "alloc"]
    assert 4 * 4 * 32 * 32 * 2 not in sizes


def asked_for(recorded: Any) -> list[int]:
    return [size for action, size, _, _ in recorded["events"] if action == "alloc"]


def test_a_recurrent_network_is_one_operator_with_its_weights_in_one_buffer(estimated: Recorded) -> None:
    sizes = asked_for(estimated("remembers"))
    weights = 2 * (2 * 256 * 64 + 2 * 256) * 4
    results = 8 * 20 * 64 * 4
    assert sizes.count(weights) == 1 + STEPS, "the parameters, and the gradients of each step"
    assert sizes.count((2 * 5 + 1) * results + 256) == STEPS, "what forward keeps for backward"
    assert len(sizes) < 60


def test_autocast_makes_a_recurrent_network_a_buffer_of_lower_weights_each_time(estimated: Recorded) -> None:
    sizes = asked_for(estimated("remembers_in_half_precision"))
    lower = 2 * (2 * 256 * 64 + 2 * 256) * 2
    assert sizes.count(lower) == 2 * STEPS, "the casts and their gradients"
    assert sizes.count(256 * 64 * 4) == 4 + 4 * STEPS, "matrices as they are made, and their gradients"


def test_recorder_counts_no_memory_for_operations_in_place_on_a_gpu(estimated: Recorded) -> None:
    sizes = asked_for(estimated("selects"))
    table = 40 * 192 * 4
    product = 20 * 3 * 384 * 4
    assert sizes.count(table) == 1 + 2 * STEPS, "the table and zeros for two ways of indexing"
    assert sizes.count(product) == STEPS


def test_attention_in_parts_adds_its_mask_in_place(estimated: Recorded) -> None:
    events = estimated("attends_by_a_bias")["events"]
    matrix = 2 * 4 * 32 * 32 * 4
    made = [size for action, size, _, phase in events if action == "alloc" and phase != "BACKWARD"]
    assert made.count(matrix) == 2 * STEPS, "the product and its softmax"


def test_softmax_of_float16_gives_float32_in_one_kernel_and_a_loss_keeps_its_elements(estimated: Recorded) -> None:
    sizes = asked_for(estimated("attends_by_hand"))
    scores = 2 * 4 * 40 * 40
    assert sizes.count(2 * scores) == 2 * 2 * STEPS, "the softmax and its gradient, of two layers"
    losses = 4 * 4 * 40 * 192
    assert sizes.count(losses) >= 2 * STEPS


def test_a_job_that_needs_its_gpu_is_refused_in_words(laptop: WarmPython, tmp_path: Path) -> None:
    assert "leave saving out of the step" in refusal(laptop, "saves", tmp_path)


def test_a_function_that_returns_something_else_is_told_what_is_expected(laptop: WarmPython, tmp_path: Path) -> None:
    assert "must return (model, optimizer, step)" in refusal(laptop, "returns_a_model", tmp_path)
