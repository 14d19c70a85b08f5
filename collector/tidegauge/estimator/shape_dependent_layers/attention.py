"""``scaled_dot_product_attention`` as PyTorch would run it on the target GPU.

Which kernel is taken follows ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``, what surrounds it
``attention.cpp``: padding of the head dimension and of the mask allocates, too. The one that attention falls back to
keeps the whole matrix of weights, so the choice decides most of a transformer's activations.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, NamedTuple, Optional

import torch

from tidegauge.core.torch_version import torch_at_least
from tidegauge.estimator.gpus import Target

HALF = (torch.float16, torch.bfloat16)
FLASH_HEAD_ALIGNMENT = 8
MASK_ALIGNMENT = 8
"""Elements; ``pad_bias`` of the memory-efficient kernel."""
EFFICIENT_TAKES_GROUPS = (2, 14)
"""From which release the memory-efficient kernel takes grouped heads (2.13 and 2.15 tried on the fake-GPU rig)."""
CUDNN_DROPOUT_IN_SIXTEENTHS = (2, 12)
"""From which release cuDNN's attention is refused other probabilities (2.11 and 2.12 tried on the rig)."""


class AttentionBackend(Enum):
    """Names as in ``torch.nn.attention.SDPBackend``."""

    FLASH = "flash"
    CUDNN = "cudnn"
    EFFICIENT = "efficient"
    MATH = "math"


class Attention(NamedTuple):
    """The arguments of one call."""

    query: Any
    key: Any
    value: Any
    mask: Optional[Any]
    dropout: float
    causal: bool
    scale: Optional[float]
    grouped: bool

    @property
    def trains(self) -> bool:
        """``input_requires_grad`` with gradients switched on."""
        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def scaled_dot_product_attention(
    target: Target,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Optional[Any] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Any:
    """The same signature as PyTorch's after the target; stands in for it for the key AutogradCUDA."""
    call = Attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    backend = choose(call, target)
    call = call._replace(mask=_additive(attn_mask, query.dtype))
    return {
        AttentionBackend.FLASH: _flash,
        AttentionBackend.CUDNN: _cudnn,
        AttentionBackend.EFFICIENT: _efficient,
        AttentionBackend.MATH: _math,
    }[backend](call)


def choose(call: Attention, target: Target) -> AttentionBackend:
    """The first of the target's order that takes these tensors and is not switched off."""
    usable = (backend for backend in _order(target) if _CAN_USE[backend](call, target))
    return next(usable, AttentionBackend.MATH)


def _order(target: Target) -> tuple[AttentionBackend, ...]:
    """``check_prefer_cudnn_attention``: Hopper and data-centre Blackwell put cuDNN first since its 9.15.1."""
    if target.capability[0] in (9, 10) and target.cudnn_attention_first:
        return (AttentionBackend.CUDNN, AttentionBackend.FLASH, AttentionBackend.EFFICIENT)
    return (AttentionBackend.FLASH, AttentionBackend.EFFICIENT, AttentionBackend.CUDNN)


def _can_use_flash(call: Attention, target: Target) -> bool:
    head = call.query.shape[-1]
    same_head = call.key.shape[-1] == head == call.value.shape[-1]
    square = not call.causal or call.query.shape[-2] == call.key.shape[-2]
    narrow = call.trains and target.capability in ((8, 6), (8, 9), (12, 0), (12, 1))
    trainable = not narrow or head <= 192 or (not call.dropout and head > 224)
    return (
        torch.backends.cuda.flash_sdp_enabled() and _is_plain(call) and call.mask is None and same_head
        and head <= 256 and target.capability >= (8, 0) and trainable and square and call.query.dtype in HALF
    )  # fmt: skip


def _can_use_cudnn(call: Attention, target: Target) -> bool:
    heads = (call.query.shape[-1], call.value.shape[-1])
    version = target.torch_version or torch.__version__
    dropout = (call.dropout * 16).is_integer() or not torch_at_least(version, *CUDNN_DROPOUT_IN_SIXTEENTHS)
    bias = call.mask is None or not call.mask.requires_grad
    length, keys = call.query.shape[-2], call.key.shape[-2]
    return (
        torch.backends.cuda.cudnn_sdp_enabled() and _is_plain(call) and target.capability >= (8, 0)
        and call.query.dtype in HALF and dropout and bias
        and all(head <= 128 and head % 8 == 0 for head in heads) and keys != 1 and not (call.dropout and length == 1)
        and not torch.are_deterministic_algorithms_enabled()
    )  # fmt: skip


def _can_use_efficient(call: Attention, target: Target) -> bool:
    half = call.query.dtype in HALF
    alignment = _gemm_alignment(half, target)
    same_head = call.query.shape[-1] == call.key.shape[-1]
    aligned = all(size > 0 and size % alignment == 0 for size in (call.query.shape[-1], call.value.shape[-1]))
    types = (torch.float32, torch.float16, *((torch.bfloat16,) if target.capability >= (8, 0) else ()))
    grouped = call.query.shape[1] != call.key.shape[1]
    version = target.torch_version or torch.__version__
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled() and _is_plain(call) and same_head and aligned
        and call.query.dtype in types and (not grouped or torch_at_least(version, *EFFICIENT_TAKES_GROUPS))
    )  # fmt: skip


_CAN_USE = {
    AttentionBackend.FLASH: _can_use_flash,
    AttentionBackend.CUDNN: _can_use_cudnn,
    AttentionBackend.EFFICIENT: _can_use_efficient,
}


def _is_plain(call: Attention) -> bool:
    """Four dimensions, nothing empty, contiguous last dimensions (mask included), heads that match or are grouped."""
    tensors = (call.query, call.key, call.value)
    if any(tensor.dim() != 4 or tensor.numel() == 0 for tensor in tensors):
        return False
    heads = [tensor.shape[1] for tensor in tensors]
    grouped = call.grouped and heads[1] == heads[2] and heads[0] % heads[1] == 0
    contiguous = [tensor.stride(-1) == 1 for tensor in (*tensors, *(() if call.mask is None else (call.mask,)))]
    return (len(set(heads)) == 1 or grouped) and all(contiguous)


def _gemm_alignment(half: bool, target: Target) -> int:
    """``minimum_gemm_alignment``, in elements."""
    tensor_cores = target.capability >= (8, 0) or (target.capability >= (7, 0) and half)
    least = 4 if target.capability >= (8, 0) else 1
    return max(least, 8 if half else 4) if tensor_cores else least


def _flash(call: Attention) -> Any:
    head = call.query.shape[-1]
    query, key, value = (_padded(tensor, FLASH_HEAD_ALIGNMENT) for tensor in (call.query, call.key, call.value))
    scale = call.scale if call.scale is not None else 1 / math.sqrt(head)
    out = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, call.dropout, call.causal, False, scale=scale
    )[0]
    return out if out.shape[-1] == head else out[..., :head]


def _cudnn(call: Attention) -> Any:
    return torch.ops.aten._scaled_dot_product_cudnn_attention(
        call.query, call.key, call.value, call.mask, call.trains, call.dropout, call.causal, False, scale=call.scale
    )[0]


def _efficient(call: Attention) -> Any:
    mask = call.mask
    if mask is not None:
        length = mask.shape[-1]
        mask = _padded(mask, MASK_ALIGNMENT)[..., :length] if length % MASK_ALIGNMENT else mask
        mask = mask.expand(*call.query.shape[:3], call.key.shape[2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        call.query, call.key, call.value, mask, call.trains, call.dropout, call.causal, scale=call.scale
    )[0]


def _math(call: Attention) -> Any:
    if call.mask is not None:
        return _math_with_mask(call, call.mask)
    return torch.ops.aten._scaled_dot_product_attention_math(
        call.query, call.key, call.value, None, call.dropout, call.causal, scale=call.scale, enable_gqa=call.grouped
    )[0]


def _math_with_mask(call: Attention, mask: Any) -> Any:
    """``_scaled_dot_product_attention_math``, which adds a mask in place unless tensors are fake ones."""
    query, key, value = call.query, call.key, call.value
    if query.dtype in HALF and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = query.float(), key.float(), value.float()
    scale = call.scale if call.scale is not None else 1 / math.sqrt(query.shape[-1])
    factor = math.sqrt(abs(scale))
    query = query * math.copysign(factor, scale)
    if call.grouped and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    weights = torch.matmul(query, key.transpose(-2, -1) * factor).add_(mask)
    weights = torch.ops.aten._safe_softmax(weights, -1)
    if call.dropout:
        weights = torch.dropout(weights, call.dropout, True)
    weights.to(call.query.dtype)  # the second result, which nobody takes
    return torch.matmul(weights, value).to(call.query.dtype)


def _padded(tensor: Any, alignment: int) -> Any:
    rest = -tensor.shape[-1] % alignment
    return torch.nn.functional.pad(tensor, (0, rest)) if rest else tensor


def _additive(mask: Optional[Any], dtype: Any) -> Optional[Any]:
    """``convert_boolean_attn_mask``: a boolean mask becomes a tensor of the query's type."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, torch.full((), -math.inf, dtype=dtype, device=mask.device))
