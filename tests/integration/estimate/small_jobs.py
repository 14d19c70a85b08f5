"""Training jobs for the estimate's tests, each with a habit that decides about memory. For the rig and without GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH = 192
BATCH = 40
Job = tuple[Any, Any, Callable[[], object]]


class Residual(nn.Module):  # type: ignore[misc]  # torch has no types where mypy runs
    """Adds what two branches make to its input: gradients meet in autograd's buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 3 * WIDTH)
        self.narrow = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, value: Any) -> Any:
        return value + self.narrow(functional.gelu(self.wide(self.norm(value))))


def model(layers: int = 3) -> Any:
    return nn.Sequential(*[Residual() for _ in range(layers)], nn.Linear(WIDTH, 7)).cuda()


def batch() -> tuple[Any, Any]:
    return torch.randn(BATCH, WIDTH).cuda(), torch.randint(0, 7, (BATCH,), device="cuda")


def adamw() -> Job:
    """The loop of every tutorial."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        inputs, classes = batch()
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(net(inputs), classes).backward()
        optimizer.step()

    return net, optimizer, step


def accumulated() -> Job:
    """Gradients of three batches in one, clipped; momentum."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        for _ in range(3):
            inputs, classes = batch()
            (functional.cross_entropy(net(inputs), classes) / 3).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return net, optimizer, step


def autocast() -> Job:
    """Lower precision with casts of weights, kept until autocast ends."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)

    def step() -> None:
        inputs, classes = batch()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(net(inputs), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return net, optimizer, step


def scaled() -> Job:
    """float16 with a GradScaler, whose flags the step reads."""
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    scaler = torch.amp.GradScaler("cuda")

    def step() -> None:
        inputs, classes = batch()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = functional.cross_entropy(net(inputs), classes)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return net, optimizer, step


class Attending(nn.Module):  # type: ignore[misc]
    """Attention written out: a matrix of weights, which autocast wants in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, value: Any) -> Any:
        query, key, content = self.inlet(value).chunk(3, dim=-1)
        return value + (query @ key.transpose(-2, -1)).softmax(dim=-1) @ content


def attends_by_hand() -> Job:
    """float16 with a GradScaler; the loss is one of squares."""
    net = nn.Sequential(Attending(), Attending()).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler("cuda")

    def step() -> None:
        wanted = torch.randn(4, BATCH, WIDTH, device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            found = net(torch.randn(4, BATCH, WIDTH, device="cuda"))
            loss = functional.mse_loss(found, wanted) + functional.smooth_l1_loss(found, wanted)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return net, optimizer, step


def _checkpointed(reentrant: bool) -> Job:
    net = model(4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        inputs, classes = batch()
        value = inputs.requires_grad_() if reentrant else inputs
        for block in net[:-1]:
            value = checkpoint(block, value, use_reentrant=reentrant)
        functional.cross_entropy(net[-1](value), classes).backward()
        optimizer.step()
        optimizer.zero_grad()

    return net, optimizer, step


def checkpointed() -> Job:
    """Blocks run again in the backward pass."""
    return _checkpointed(reentrant=False)


def checkpointed_reentrant() -> Job:
    """The same in the older way, inside a node of the backward pass."""
    return _checkpointed(reentrant=True)


JOBS: Mapping[str, Callable[[], Job]] = {
    job.__name__: job
    for job in (adamw, accumulated, autocast, scaled, attends_by_hand, checkpointed, checkpointed_reentrant)
}
