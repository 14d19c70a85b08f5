"""cuDNN's recurrent networks: workspaces, and the reserve that the forward pass keeps for the backward pass.

The reserve follows a rule that gives all 225 cases of ``bench/gpu_recurrent.py`` (H200, torch 2.11, cuDNN 9.15,
November 2026) but for its alignment. The workspaces follow none that we found: ``h200_recurrent.csv`` has them, and
other sizes are scaled from the nearest of the same kind (telling one size from the others: 9 % off in the median).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from math import log2
from typing import Any, NamedTuple

from tidegauge.estimator.kernels.calls import (
    Layout,
    OpCall,
    Scratch,
    Workspace,
    is_contiguous,
    layout,
    rounded_up,
    size_bytes,
)

TABLE = "h200_recurrent.csv"
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_KEPT = {"LSTM": 5, "GRU": 6, "RNN": 1}
"""Results of a layer that its backward pass needs, each as large as its output in one direction."""
_ALIGNMENT = 256
_MIN_WORKSPACE_BYTES = 16 << 20
"""What no workspace was much below."""
_DROPOUT_STATE = Workspace("cudnn dropout", 6_488_064)
"""``cudnnDropoutGetStatesSize`` of an H200."""


class Network(NamedTuple):
    """A recurrent network and a batch of sequences of the same length."""

    kind: str
    """LSTM, GRU or RNN."""
    item_bytes: int
    layers: int
    directions: int
    hidden: int
    batch: int
    time: int

    @property
    def state_bytes(self) -> int:
        """Bytes of the hidden states of all steps, in one direction."""
        return self.time * self.batch * self.hidden * self.item_bytes

    @property
    def expected_bytes(self) -> float:
        """A rough model of the workspaces: they grow with the gates at every step and with one layer's weights."""
        gates, directions = _GATES[self.kind], self.directions
        steps = self.state_bytes * directions * (gates * (1.3 + 0.3 * self.layers) + 0.5)
        weights = 2 * gates * self.hidden**2 * self.item_bytes * directions
        return steps + weights * (self.layers if directions > 1 else 1) + _MIN_WORKSPACE_BYTES


def network(
    values: Any, hidden: Any, mode: int, hidden_size: int, *, batch_first: bool, bidirectional: bool
) -> Network:
    """The network in the arguments of ``_cudnn_rnn``. ``mode`` is a ``cudnnRNNMode_t``: two plain kinds, LSTM, GRU."""
    time, batch = values.shape[:2] if not batch_first else (values.shape[1], values.shape[0])
    directions = 2 if bidirectional else 1
    layers = int(hidden.shape[0]) // directions
    kind = {2: "LSTM", 3: "GRU"}.get(mode, "RNN")
    return Network(kind, int(values.dtype.itemsize), layers, directions, int(hidden_size), int(batch), int(time))


def reserve_bytes(found: Network, dropout: float) -> int:
    """Bytes that the forward pass of a training step keeps (``cudnnGetRNNTempSpaceSizes``)."""
    between = (found.layers - 1) * found.directions
    results = found.layers * found.directions * _KEPT[found.kind] + between
    mask = between * found.directions * found.time * found.batch * found.hidden // 8 if dropout else 0
    return rounded_up(results * found.state_bytes + mask, _ALIGNMENT) + _ALIGNMENT


@lru_cache(maxsize=1024)
def workspace_bytes(wanted: Network) -> int:
    """Measured, or scaled from the nearest that was."""
    nearest = min(_table(), key=lambda known: _distance(wanted, known))
    return int(_table()[nearest] * wanted.expected_bytes / nearest.expected_bytes)


def _distance(wanted: Network, known: Network) -> float:
    """The kind, the type and the directions first; then sizes in doublings."""
    unlike = (wanted.kind != known.kind) + (wanted.item_bytes != known.item_bytes)
    sizes = zip(wanted[2:], known[2:], (3.0, 100.0, 2.0, 1.0, 1.0))
    return 1000.0 * unlike + sum(weight * abs(log2(mine / other)) for mine, other, weight in sizes)


@lru_cache(maxsize=1)
def _table() -> dict[Network, int]:
    lines = resources.files(__package__).joinpath(TABLE).read_text("ascii").splitlines()
    rows = [line.split(",") for line in lines]
    return {Network(kind, *map(int, sizes)): int(size) for kind, *sizes, size in rows}


def _forward(call: OpCall) -> Scratch:
    values, hidden = call.args[0], call.args[4]
    mode, size, _, _, batch_first, dropout, train, bidirectional = call.args[6:14]
    found = network(values, hidden, mode, size, batch_first=batch_first, bidirectional=bidirectional)
    keep = (_DROPOUT_STATE,) if dropout and train else ()
    return Scratch(before=(*_time_first(values, batch_first), workspace_bytes(found)), keep=keep)


def _backward(call: OpCall) -> Scratch:
    """Gradients of the input and of the states first, then those of the weights, each with a workspace."""
    values, _, _, _, hidden, cell, _, gradient, last_hidden, last_cell = call.args[:10]
    mode, size, _, _, batch_first, _, _, bidirectional = call.args[10:18]
    found = network(values, hidden, mode, size, batch_first=batch_first, bidirectional=bidirectional)
    zeros = [
        size_bytes(state)
        for state, known in ((hidden, last_hidden), (cell, last_cell))
        if known is None and state is not None
    ]
    arriving = () if gradient is None else _time_first(gradient, batch_first)
    copy, workspace = _time_first(values, batch_first), workspace_bytes(found)
    return Scratch(before=tuple(zeros), between={2: (*copy, *arriving, workspace)}, after=(*copy, workspace))


def _time_first(tensor: Any, batch_first: bool) -> tuple[int, ...]:
    """The copy that it takes to have all sequences' first steps, then all second ones, and so on."""
    shape, strides = layout(tensor)
    if batch_first:
        shape, strides = (shape[1], shape[0], shape[2]), (strides[1], strides[0], strides[2])
    return () if is_contiguous(Layout(shape, strides)) else (size_bytes(tensor),)


KERNELS: dict[str, Callable[[OpCall], Scratch]] = {
    "aten._cudnn_rnn.default": _forward,
    "aten._cudnn_rnn_backward.default": _backward,
}
