"""cuDNN's recurrent networks beside what they took on an H200 (``bench/gpu_recurrent.py``, November 2026)."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_calls import call
from tidegauge.estimator.kernels import scratch
from tidegauge.estimator.kernels.calls import OpCall
from tidegauge.estimator.kernels.recurrent import Network, reserve_bytes, workspace_bytes

LSTM, GRU = 2, 3
RESERVES = [
    (Network("LSTM", 4, 1, 1, 512, 32, 100), 0.0, 32_768_256),
    (Network("LSTM", 4, 3, 2, 1024, 24, 70), 0.0, 233_963_776),
    (Network("LSTM", 4, 2, 2, 512, 12, 160), 0.2, 86_999_296),
    (Network("LSTM", 2, 2, 1, 1024, 48, 64), 0.2, 69_599_488),
    (Network("GRU", 2, 2, 1, 512, 32, 100), 0.0, 42_598_656),
    (Network("GRU", 4, 2, 2, 512, 20, 160), 0.0, 170_393_856),
    (Network("RNN", 2, 2, 1, 512, 32, 100), 0.0, 9_830_656),
]


@pytest.mark.parametrize(("network", "dropout", "measured"), RESERVES)
def test_recurrent_reserve_bytes_match_the_measurement(network: Network, dropout: float, measured: int) -> None:
    assert reserve_bytes(network, dropout) == measured


def test_a_measured_workspace_is_given_as_it_was() -> None:
    assert workspace_bytes(Network("LSTM", 4, 2, 1, 1024, 24, 70)) == 127_140_288


@pytest.mark.parametrize(
    ("network", "measured"),
    [
        (Network("LSTM", 4, 2, 1, 1024, 24, 96), 151_912_896),
        (Network("LSTM", 2, 2, 1, 1024, 48, 64), 96_338_560),
        (Network("GRU", 4, 2, 2, 512, 20, 160), 157_909_408),
    ],
)
def test_other_workspaces_are_near_the_measured_ones(network: Network, measured: int) -> None:
    assert workspace_bytes(network) == pytest.approx(measured, rel=0.05)


def test_networks_larger_than_any_measured_take_more() -> None:
    largest = workspace_bytes(Network("LSTM", 4, 4, 1, 1024, 128, 128))
    assert workspace_bytes(Network("LSTM", 4, 4, 1, 2048, 128, 256)) > 2 * largest


def forward(values: str, *, batch_first: bool, dropout: float = 0.0) -> OpCall:
    states = "f32[2,24,1024]"
    rest: tuple[Any, ...] = (LSTM, 1024, 0, 2, batch_first, dropout, True, False, [], None)
    return call("_cudnn_rnn.default", values, [], 4, None, states, states, *rest)


def test_sequences_that_come_batch_first_are_copied() -> None:
    workspace = workspace_bytes(Network("LSTM", 4, 2, 1, 1024, 24, 96))
    assert scratch(forward("f32[24,96,1024]", batch_first=True)).before == (24 * 96 * 1024 * 4, workspace)
    assert scratch(forward("f32[96,24,1024]", batch_first=False)).before == (workspace,)


def test_the_state_of_dropout_is_kept_once() -> None:
    kept = scratch(forward("f32[96,24,1024]", batch_first=False, dropout=0.2)).keep
    assert [workspace.size_bytes for workspace in kept] == [6_488_064]
    assert scratch(forward("f32[96,24,1024]", batch_first=False)).keep == ()


def test_backward_makes_zeros_for_states_that_nobody_used() -> None:
    values, states = "f32[160,20,512]", "f32[4,20,512]"
    rest: tuple[Any, ...] = (GRU, 512, 0, 2, False, 0.0, True, True, [], None, "uint8[8]", [True] * 4)
    gradients: tuple[Any, ...] = ("f32[160,20,1024]", None, None)
    needs = scratch(
        call("_cudnn_rnn_backward.default", values, [], 4, "f32[8]", states, None, "f32[8]", *gradients, *rest)
    )
    workspace = workspace_bytes(Network("GRU", 4, 2, 2, 512, 20, 160))
    assert needs.before == (4 * 20 * 512 * 4,)
    assert needs.between == {2: (workspace,)}
    assert needs.after == (workspace,)
