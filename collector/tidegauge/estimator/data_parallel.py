"""DistributedDataParallel's memory without its C++ part: gradient buckets, and flat copies for broadcasts.

PyTorch's reducer reads the contents of tensors, which tensors without memory do not have. What it allocates is plain:
``torch/nn/parallel/distributed.py`` and ``torch/csrc/distributed/c10d/reducer.cpp``. Runs beside torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Optional

import torch
from torch import nn

from tidegauge.estimator.model_facts import Build, Step

MIB = 1 << 20
FIRST_BUCKET_BYTES = MIB
"""``dist._DEFAULT_FIRST_BUCKET_BYTES``: small, so that the first all-reduce starts early."""
BUCKET_BYTES = 25 * MIB
"""``bucket_cap_mb``."""
BROADCAST_BYTES = 250 * MIB
"""``broadcast_bucket_size``: parameters and buffers are sent from rank 0 in flat copies of this size, two at a time."""


class GradientBuckets:
    """The buckets of one module: one for each dtype at first, and after the first backward those of 25 MiB."""

    def __init__(
        self, module: nn.Module, *, bucket_bytes: Optional[int] = None, as_view: bool = False, unused: bool = False
    ) -> None:
        """``bucket_bytes``: of ``bucket_cap_mb`` where it was given; ``unused``: ``find_unused_parameters``."""
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        default = (FIRST_BUCKET_BYTES, BUCKET_BYTES)
        self._limits: tuple[int, ...] = default if bucket_bytes is None else (bucket_bytes,)
        self._as_view = as_view
        self._arrived: dict[int, torch.Tensor] = {}
        self._rebuilt = unused  # which parameters take part may change then, so that the first buckets stay
        self._views: dict[int, torch.Tensor] = {}
        self._buckets: list[torch.Tensor] = []
        first_limits = self._limits if unused else (1 << 62,)
        self._allocate(list(reversed(buckets_by_size(self._parameters, first_limits))))
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def before_forward(self) -> None:
        """Once, after the first backward: buckets in the order in which the gradients arrived."""
        if self._arrived and not self._rebuilt and torch.is_grad_enabled():
            self._rebuilt = True
            self._buckets.clear()
            self._views.clear()
            self._allocate(buckets_by_size(list(self._arrived.values()), self._limits))

    def _allocate(self, groups: Sequence[Sequence[torch.Tensor]]) -> None:
        for group in groups:
            bucket = torch.empty(sum(p.numel() for p in group), dtype=group[0].dtype, device=group[0].device)
            self._buckets.append(bucket)
            offset = 0
            for parameter in group:
                self._views[id(parameter)] = bucket[offset : offset + parameter.numel()].view(parameter.shape)
                offset += parameter.numel()

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        self._arrived.setdefault(id(parameter), parameter)
        if self._as_view and id(parameter) in self._views:
            parameter.grad = self._views[id(parameter)]


def buckets_by_size(tensors: Sequence[torch.Tensor], limits: Sequence[int]) -> list[list[torch.Tensor]]:
    """``compute_bucket_assignment_by_size``: by dtype, closed as soon as a limit is reached; the last limit repeats."""
    closed: list[list[torch.Tensor]] = []
    open_: dict[torch.dtype, list[torch.Tensor]] = {}
    reached: dict[torch.dtype, int] = {}
    for tensor in tensors:
        bucket = open_.setdefault(tensor.dtype, [])
        bucket.append(tensor)
        turn = min(reached.get(tensor.dtype, 0), len(limits) - 1)
        if sum(part.numel() * part.element_size() for part in bucket) >= limits[turn]:
            closed.append(open_.pop(tensor.dtype))
            reached[tensor.dtype] = turn + 1
    return closed + list(open_.values())


def broadcast(tensors: Sequence[torch.Tensor]) -> None:
    """``_broadcast_coalesced``: a flat copy of each group, two of them at a time."""
    in_flight: list[torch.Tensor] = []
    for group in buckets_by_size(tensors, (BROADCAST_BYTES,)):
        if len(in_flight) == 2:
            in_flight.pop(0)
        in_flight.append(torch.cat([part.detach().reshape(-1) for part in group]) if len(group) > 1 else group[0])


class DataParallel(nn.Module):
    """Stands in for ``DistributedDataParallel`` where FUNCTION wraps its model itself."""

    def __init__(
        self,
        module: nn.Module,
        *_devices: Any,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        bucket_cap_mb: Optional[float] = None,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        **_others: Any,
    ) -> None:
        """Of the arguments of the real one, those that decide about memory."""
        super().__init__()
        self.module = module
        if init_sync:
            broadcast([*module.parameters(), *module.buffers()])
        self._gradient_buckets = GradientBuckets(
            module,
            bucket_bytes=None if bucket_cap_mb is None else int(bucket_cap_mb * MIB),
            as_view=gradient_as_bucket_view,
            unused=find_unused_parameters and not static_graph,
        )
        self._broadcast_buffers = broadcast_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._gradient_buckets.before_forward()
        if self._broadcast_buffers:
            broadcast(list(self.module.buffers()))
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are summed up locally: no other memory."""
        yield


def with_ddp(build: Build) -> Build:
    """FUNCTION's model as in DistributedDataParallel with its default arguments."""

    def changed() -> tuple[Any, Any, Step]:
        model, optimizer, step = build()
        broadcast([*model.parameters(), *model.buffers()])
        buckets = GradientBuckets(model)

        def before_forward(module: nn.Module, _args: tuple[Any, ...]) -> None:
            buckets.before_forward()
            broadcast(list(module.buffers()))

        model.register_forward_pre_hook(before_forward)
        return model, optimizer, step

    return changed
