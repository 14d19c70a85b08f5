from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import tidegauge
from fake_tensors import Module, Optimizer, Parameter, Tensor, fake_tensor_torch
from probe_fakes import MIB, block, torch_snapshot
from tidegauge.cli.profile.block import BlockTensors, ProfiledBlock, lost_events
from tidegauge.cli.profile.given import sorted_out
from tidegauge.core.profile.categories import Category
from tidegauge.probe.evidence.snapshot_packing import pack_columns
from tidegauge.probe.pacing import Pacer
from tidegauge.probe.runtime.rank_snapshot import RawSnapshot

MODEL, OPTIMIZER = Module(), Optimizer()
A_MODEL = "not a torch.nn.Module; give the model itself"
AN_OPTIMIZER = "not a torch.optim.Optimizer; give the optimizer itself"


@pytest.mark.parametrize(
    ("model", "optimizer", "words"),
    [
        ((one for one in [Parameter(0, 1)]), None, f"`model` is left out: it is of type generator, {A_MODEL}, not its"),
        (3, None, f"`model` is left out: it is of type int, {A_MODEL}"),
        ("net", None, f"`model` is left out: it is of type str, {A_MODEL}"),
        ({"net": MODEL}, None, f"`model` is left out: it is of type dict, {A_MODEL}"),
        ([MODEL, None], None, f"`model[1]` is left out: it is None, {A_MODEL}"),
        (OPTIMIZER, None, f"`model` is left out: it is of type Optimizer, {A_MODEL}, and the optimizer behind it"),
        (MODEL, "adam", f"`optimizer` is left out: it is of type str, {AN_OPTIMIZER}"),
        (MODEL, MODEL, f"`optimizer` is left out: it is of type Module, {AN_OPTIMIZER}, behind the model"),
    ],
)
def test_an_argument_that_is_neither_model_nor_optimizer_is_named_with_what_to_give(
    model: Any, optimizer: Any, words: str
) -> None:
    models, optimizers, problems = sorted_out(fake_tensor_torch(), model, optimizer)
    assert len(problems) == 1
    assert problems[0].startswith(words)
    assert problems[0].endswith("(of several, a list)")
    assert set(models) <= {MODEL}
    assert not optimizers


@pytest.mark.parametrize("optimizer", [OPTIMIZER, SimpleNamespace(param_groups=[]), SimpleNamespace(optim=OPTIMIZER)])
def test_models_and_optimizers_are_taken_alone_and_in_lists(optimizer: Any) -> None:
    torch = fake_tensor_torch()
    assert sorted_out(torch, MODEL, optimizer) == ([MODEL], [optimizer], [])
    assert sorted_out(torch, [MODEL, MODEL], (optimizer,)) == ([MODEL, MODEL], [optimizer], [])
    assert sorted_out(torch, None, None) == ([], [], [])


def test_a_printed_profile_begins_with_its_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    block = tidegauge.profile()
    monkeypatch.setattr(ProfiledBlock, "profiles", {0: object()})
    monkeypatch.setattr(ProfiledBlock, "problem", "`model` is left out")
    monkeypatch.setattr("tidegauge.cli.profile.page.profile_page", lambda *_: None)
    monkeypatch.setattr("tidegauge.cli.profile.page.text_of", lambda _: "Device 0")
    assert str(block) == "`model` is left out\n\nDevice 0"


def test_tensors_are_read_before_the_block_as_well_for_they_may_move_in_it() -> None:
    model, optimizer, weight = Module(), Optimizer(), Parameter(1 << 30, 256)
    model._parameters["weight"] = weight
    state: Any = optimizer.state
    state[weight] = {"exp_avg": Tensor(2 << 30, 256)}
    tensors = BlockTensors(fake_tensor_torch(), [model], [optimizer])
    model._parameters["weight"] = Parameter(3 << 30, 256)
    assert {(one.address, one.category) for one in tensors.before()} == {
        (1 << 30, Category.PARAMETERS),
        (2 << 30, Category.OPTIMIZER_STATE),
    }


def test_a_block_of_more_events_than_the_ring_has_says_that_its_peak_may_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegauge.cli.profile.block.MAX_ENTRIES", 1_000)
    raw = [RawSnapshot(torch_snapshot([block(1 << 30, MIB)], events=events), {}, 0.0) for events in (999, 1_000)]
    whole, lost = (lost_events(pack_columns(one, Pacer())) for one in raw)
    assert whole is None
    assert lost == (
        "the block has more allocator events than the 1,000 that are recorded: the profile is of the last ones, and "
        "the peak may have come before them; profile fewer steps"
    )
