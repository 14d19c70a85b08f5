"""``torch.nn.LSTM``, ``GRU`` and ``RNN`` as they run on a GPU: through cuDNN, all steps and layers in one operator.

Follows ``aten/src/ATen/native/RNN.cpp`` and ``cudnn/RNN.cpp``. Packed sequences, and networks while cuDNN is switched
off, run step by step, as on the CPU. What cuDNN takes besides is in ``kernels/recurrent.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Optional

import torch

from tidegauge.estimator.kernels.recurrent import network, reserve_bytes
from tidegauge.estimator.shape_dependent_layers.autocast import without_autocast

RELU, TANH, LSTM, GRU = range(4)
"""``cudnnRNNMode_t``."""
ACCEPTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by operator, to be registered above PyTorch's."""
    modes = {"lstm": LSTM, "gru": GRU, "rnn_tanh": TANH, "rnn_relu": RELU}
    return {
        f"{name}.input": partial(_network, getattr(torch.ops.aten, name).input, mode) for name, mode in modes.items()
    }


def autocast_kernels() -> dict[str, Callable[..., Any]]:
    """Kernels for the key AutocastCUDA."""
    return {"_cudnn_rnn": _in_lower_precision}


def _network(
    step_by_step: Any,
    mode: int,
    values: Any,
    states: Any,
    weights: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """``lstm`` and the like: cuDNN where ``cudnn_is_acceptable`` says so."""
    if not torch.backends.cudnn.enabled or values.dtype not in ACCEPTED or values.device.type != "cuda":
        return step_by_step.decompose(
            values, states, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )
    hidden, cell = states if mode == LSTM else (states, None)
    hidden_size = weights[1].shape[1] if cell is None else cell.shape[2]
    projected = hidden.shape[2] if hidden.shape[2] != hidden_size else 0
    stride = (4 if has_biases else 2) + (1 if projected else 0)
    output, last_hidden, last_cell, _, _ = torch.ops.aten._cudnn_rnn(
        values, weights, stride, _buffer(weights), hidden, cell, mode, hidden_size, projected, num_layers, batch_first,
        dropout, train, bidirectional, (), None,
    )  # fmt: skip
    return (output, last_hidden, last_cell) if mode == LSTM else (output, last_hidden)


def _buffer(weights: Sequence[Any]) -> Optional[Any]:
    """``None`` where the weights lie in one buffer already, as ``flatten_parameters`` puts them; else a new one."""
    storages = {weight.untyped_storage()._cdata for weight in weights}
    return None if len(storages) == 1 else _flat(weights, weights[0].dtype)


def _flat(weights: Sequence[Any], dtype: Any) -> Any:
    return torch.empty(sum(weight.numel() for weight in weights), dtype=dtype, device=weights[0].device)


def _views(buffer: Any, weights: Sequence[Any]) -> list[Any]:
    """Parts of the buffer, one after the other in the shapes of the weights."""
    parts = buffer.split([weight.numel() for weight in weights])
    return [part.view(weight.shape) for part, weight in zip(parts, weights)]


class _Reflattened(torch.autograd.Function):
    """Weights as views of one buffer of another type; their gradients are cast back one by one, the last first."""

    @staticmethod
    def forward(context: Any, dtype: Any, *weights: Any) -> tuple[Any, ...]:
        context.dtypes = [weight.dtype for weight in weights]
        return tuple(_views(_flat(weights, dtype), weights))

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[Any, ...]:
        pairs = list(zip(gradients, context.dtypes))
        cast = [None if gradient is None else gradient.to(dtype) for gradient, dtype in reversed(pairs)]
        return (None, *reversed(cast))


def _in_lower_precision(values: Any, weights: Sequence[Any], stride: int, buffer: Any, *rest: Any) -> Any:
    """``_cudnn_rnn_cast_reflatten``: casts of weights are not kept, every call makes its own."""
    dtype = torch.get_autocast_dtype("cuda")
    hidden, cell, *others = rest
    with without_autocast():
        if weights[0].dtype is not dtype:
            weights, buffer = _Reflattened.apply(dtype, *weights), None
        cell = None if cell is None else cell.to(dtype)
        return torch.ops.aten._cudnn_rnn(values.to(dtype), weights, stride, buffer, hidden.to(dtype), cell, *others)


def _described(*args: Any) -> tuple[Any, ...]:
    """Output, last states, what backward needs, buffer of the weights. The output lies in memory step by step."""
    values, _, _, buffer, hidden, cell, mode, hidden_size, projected, _, batch_first = args[:11]
    dropout, train, bidirectional = args[11:14]
    found = network(values, hidden, mode, hidden_size, batch_first=batch_first, bidirectional=bidirectional)
    output = values.new_empty((found.time, found.batch, found.directions * (projected or hidden_size)))
    last_hidden, last_cell = torch.empty_like(hidden), values.new_empty(0) if cell is None else torch.empty_like(cell)
    kept = values.new_empty(reserve_bytes(found, dropout) if train else 0, dtype=torch.uint8)
    flat = values.new_empty(0) if buffer is None else buffer
    return output.transpose(0, 1) if batch_first else output, last_hidden, last_cell, kept, flat


def _described_backward(*args: Any) -> tuple[Any, ...]:
    """Gradients of input, first states and weights; those of the weights are views of one buffer."""
    values, weights, _, _, hidden, cell = args[:6]
    batch_first, wanted = args[14], args[-1]
    found = torch.empty_like(values.transpose(0, 1) if batch_first else values, memory_format=torch.contiguous_format)
    states = (torch.empty_like(hidden), None if cell is None else torch.empty_like(cell))
    parts = _views(_flat(weights, weights[0].dtype), weights) if wanted[3] else [None] * len(weights)
    return found.transpose(0, 1) if batch_first else found, *states, parts


RESULTS: dict[str, Callable[..., Any]] = {
    "aten._cudnn_rnn.default": _described,
    "aten._cudnn_rnn_backward.default": _described_backward,
}
"""What the operators give, for tensors without memory: by name."""


def flatten_parameters(module: Any) -> None:
    """Replaces ``RNNBase.flatten_parameters``, which compares addresses: one buffer for all weights."""
    weights = module._flat_weights
    if len(weights) != len(module._flat_weights_names) or not all(_can_be_flat(weight) for weight in weights):
        return
    if len({weight.dtype for weight in weights}) > 1 or len({id(weight) for weight in weights}) < len(weights):
        return
    with torch.no_grad():
        for weight, part in zip(weights, _views(_flat(weights, weights[0].dtype), weights)):
            weight.data = part


def _can_be_flat(weight: Any) -> bool:
    """``torch.backends.cudnn.is_acceptable``, which has no bfloat16."""
    return (
        isinstance(weight, torch.Tensor) and weight.device.type == "cuda" and torch.backends.cudnn.enabled
        and weight.dtype in ACCEPTED and weight.dtype is not torch.bfloat16
    )  # fmt: skip
