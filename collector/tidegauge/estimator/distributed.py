"""Runs one rank of a job of several: a process group that talks to nobody, DDP and FSDP2. Runs beside torch.

DDP is here without its C++ part, whose reducer reads the contents of tensors. What that allocates is plain: gradient
buckets, and flat copies for broadcasts (``torch/nn/parallel/distributed.py``,
``torch/csrc/distributed/c10d/reducer.cpp``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Optional

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from tidegauge.estimator.fakes.patches import Patches
from tidegauge.estimator.model_facts import Build, Step, optimizers_of, repeated_blocks
from tidegauge.estimator.recording import EstimateError

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
        """The arguments of the real class that decide about memory; others are ignored."""
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


RANKS_ON_A_NODE = 8


@contextmanager
def lone_rank(world_size: int) -> Iterator[None]:
    """Make this process rank 0 of ``world_size``; collectives return at once. Needs torch 2.4 for a fake backend.

    FUNCTION may call ``init_process_group`` and wrap its model in ``DistributedDataParallel`` as on the cluster. Raises
    ``EstimateError`` where the process is part of a group already.
    """
    import torch.distributed as dist
    from torch.distributed._tensor import DTensor  # also tells optimizers that they may treat it like a tensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise EstimateError("a process group already exists: run the estimate in a separate process")
    dist.init_process_group(backend="fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        with Patches() as patches, _environ(rank_environ(world_size)):
            patches.replace(dist, "init_process_group", lambda *_, **__: None)  # it is the one from above
            # What a mesh without a device type is made for; a CPU build would say "cpu".
            patches.replace_known(torch._C, "_get_accelerator", lambda *_: torch.device("cuda"))
            # C++ believes that tensors without memory are on "meta"; a tensor of shards asks C++.
            patches.replace(DTensor, "device", property(lambda tensor: tensor._local_tensor.device))
            for owner, names in ((ShardingPropagator, _WHOLE_SHAPES), (DeviceMesh, _TABLES_OF_RANKS)):
                for name in (name for name in names if name in vars(owner)):
                    patches.replace(owner, name, _for_real(vars(owner)[name]))
            for module in (nn.parallel, nn.parallel.distributed):
                patches.replace(module, "DistributedDataParallel", DataParallel)
            yield
    finally:
        dist.destroy_process_group()


_WHOLE_SHAPES = ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta")
"""To learn a result's shape, DTensor runs the operator on fake tensors of the whole size: they are no allocations."""
_TABLES_OF_RANKS = ("__init__", "__getitem__", "_flatten")
"""A mesh is a tensor of rank numbers, which PyTorch reads."""


def _for_real(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of PyTorch's own that works with values, or whose tensors are not the job's."""

    def outside_the_pretence(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return method(*args, **kwargs)

    return outside_the_pretence


def rank_environ(world_size: int) -> dict[str, str]:
    """The environment variables that torchrun sets for rank 0."""
    local = str(min(world_size, RANKS_ON_A_NODE))
    return {
        "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": local,
        "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
    }  # fmt: skip


@contextmanager
def _environ(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def with_fsdp2(build: Build, world_size: int) -> Build:
    """FUNCTION's model under ``fully_shard``: each repeated block, then the rest; the optimizer works on the shards."""

    def changed() -> tuple[Any, Any, Step]:
        from torch.distributed.device_mesh import init_device_mesh

        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:
            from torch.distributed._composable.fsdp import fully_shard  # before torch 2.6
        model, optimizer, step = build()
        mesh = init_device_mesh("cuda", (world_size,))
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for block in repeated_blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        sharded = dict(model.named_parameters())
        for group in (group for one in optimizers_of(optimizer) for group in one.param_groups):
            group["params"] = [sharded[names[id(p)]] if id(p) in names else p for p in group["params"]]
        return model, optimizer, step

    return changed
