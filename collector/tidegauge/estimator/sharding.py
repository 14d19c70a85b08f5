"""Runs one rank of a job of several: with a process group that talks to nobody, and FSDP2. Beside torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from tidegauge.estimator import data_parallel
from tidegauge.estimator.fakes.patches import Patches
from tidegauge.estimator.model_facts import Build, Step, optimizers_of, repeated_blocks
from tidegauge.estimator.recording import EstimateError

RANKS_ON_A_NODE = 8


@contextmanager
def lone_rank(world_size: int) -> Iterator[None]:
    """This process as rank 0 of ``world_size``; collectives return at once. Needs torch 2.4 for a fake backend.

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
            patches.replace(dist, "init_process_group", _already_there)
            # What a mesh without a device type is made for; a CPU build would say "cpu".
            patches.replace_known(torch._C, "_get_accelerator", lambda *_: torch.device("cuda"))
            # C++ believes that tensors without memory are on "meta"; a tensor of shards asks C++.
            patches.replace(DTensor, "device", property(lambda tensor: tensor._local_tensor.device))
            for owner, names in ((ShardingPropagator, _WHOLE_SHAPES), (DeviceMesh, _TABLES_OF_RANKS)):
                for name in (name for name in names if name in vars(owner)):
                    patches.replace(owner, name, _for_real(vars(owner)[name]))
            for module in (nn.parallel, nn.parallel.distributed):
                patches.replace(module, "DistributedDataParallel", data_parallel.DataParallel)
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


def _already_there(*_args: Any, **_options: Any) -> None:
    """``init_process_group`` of FUNCTION: the group is the one of ``lone_rank``."""


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
