"""The formulas, against figures worked out by hand."""

from __future__ import annotations

from tidegauge.estimator.closed_forms import ModelFacts, closed_forms, model_states

GPT = ModelFacts(
    parameters=1000, bytes_per_parameter=4.0, optimizer="AdamW", states_kept=2, autocast=False, checkpointed=False,
    layers=16, hidden=64, heads=4, batch=2, sequence=128,
)  # fmt: skip


def test_adam_in_32_bits_takes_16_bytes_a_parameter() -> None:
    form = model_states(GPT, 17_000)
    assert form.bytes == 16_000
    assert form.estimate_bytes == 17_000
    assert form.formula == "16 bytes a parameter (4 + 4 + 8)"


def test_autocast_is_said_to_add_two_bytes_a_parameter() -> None:
    assert "18 with autocast's" in model_states(GPT._replace(autocast=True), 0).formula


def test_sgd_with_momentum_takes_12_bytes_and_bfloat16_halves_them() -> None:
    sgd = GPT._replace(optimizer="SGD", states_kept=1)
    assert model_states(sgd, 0).bytes == 12_000
    assert model_states(sgd._replace(bytes_per_parameter=2.0), 0).bytes == 6_000


def test_activations_of_a_transformer_in_16_bits_are_the_papers() -> None:
    _, fused, full = closed_forms(GPT._replace(bytes_per_parameter=2.0), 0, 0)
    assert fused.bytes == 16 * 34 * 128 * 2 * 64
    assert full.bytes == fused.bytes + 16 * 5 * 4 * 128**2 * 2


def test_in_32_bits_all_but_the_dropout_masks_doubles() -> None:
    _, fused, full = closed_forms(GPT, 0, 0)
    assert fused.bytes == 16 * (2 * 32 + 2) * 128 * 2 * 64
    assert full.bytes - fused.bytes == 16 * (2 * 4 + 1) * 4 * 128**2 * 2


def test_a_model_that_is_no_transformer_has_the_model_states_alone() -> None:
    forms = closed_forms(GPT._replace(sequence=None, hidden=None, layers=None), 0, 0, 5)
    assert [form.name for form in forms] == ["model states, AdamW"]


def test_checkpointing_is_held_against_the_root_of_the_layers() -> None:
    form = closed_forms(GPT, 0, 1600, 300)[-1]
    assert (form.bytes, form.estimate_bytes) == (400, 300)


def test_a_job_that_checkpoints_already_has_no_activations_to_hold_formulas_against() -> None:
    forms = closed_forms(GPT._replace(checkpointed=True), 0, 1600, 300)
    assert len(forms) == 1
