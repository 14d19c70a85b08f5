"""Jobs that a GPU-less machine has reason to stumble over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from integration.estimate.small_jobs import BATCH, WIDTH, Job, batch, model


def looks_at_values() -> Job:
    """Branches on a loss, selects by a mask, counts what differs."""
    net = model(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        inputs, classes = batch()
        kept = inputs[inputs[:, 0] > 0]
        loss = functional.cross_entropy(net(kept), classes[: len(kept)])
        if torch.isfinite(loss) and loss.item() < 100:
            loss.backward()
        assert not torch.isnan(loss).any()
        assert inputs.nonzero().shape[1] == inputs.dim()
        assert len(classes.unique()) > 0
        optimizer.step()
        optimizer.zero_grad()

    return net, optimizer, step


def names_no_device() -> Job:
    net = nn.Linear(WIDTH, 7)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        functional.cross_entropy(net(torch.randn(BATCH, WIDTH)), torch.randint(0, 7, (BATCH,))).backward()
        optimizer.step()

    return net, optimizer, step


def asks_first() -> Job:
    """Chooses the device as scripts do, loads data with a DataLoader, compiles, reads statistics."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = torch.compile(nn.Linear(WIDTH, 7).to(device))
    optimizer = torch.optim.AdamW(net.parameters())
    loader = DataLoader(TensorDataset(torch.randn(64, WIDTH), torch.arange(64) % 7), batch_size=32, pin_memory=False)
    assert next(net.parameters()).is_cuda
    assert torch.cuda.get_device_properties(0).total_memory > 1 << 30

    def step() -> None:
        for inputs, classes in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(inputs.to(device, non_blocking=True)), classes.to(device))
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() > 0

    return net, optimizer, step


def attends() -> Job:
    """Attention in half precision, where the GPU decides which kernel, and normalisation, dropout and tied weights."""
    net = nn.TransformerEncoderLayer(64, 4, 96, batch_first=True, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        net(torch.randn(4, 32, 64, device="cuda", dtype=torch.bfloat16)).sum().backward()
        optimizer.step()

    return net, optimizer, step


def is_built_by_numbers() -> Job:
    """Widths worked out with tensors on the CPU, as RegNet and stochastic depth do."""
    widths = (torch.linspace(10, 30, 3) * 2 + torch.arange(3)).int().tolist()
    net = nn.Sequential(*[nn.Linear(before, after) for before, after in zip(widths, widths[1:])]).cuda()

    def step() -> None:
        net(torch.randn(4, widths[0], device="cuda")).sum().backward()

    return net, None, step


def _recurrent(lower: bool) -> Job:
    net = nn.LSTM(64, 64, num_layers=2, batch_first=True).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=lower):
            result = net(torch.randn(8, 20, 64, device="cuda"))[0]
        optimizer.zero_grad()
        result.sum().backward()
        optimizer.step()

    return net, optimizer, step


def remembers() -> Job:
    """A recurrent network, which is one operator on a GPU and hundreds without."""
    return _recurrent(lower=False)


def remembers_in_half_precision() -> Job:
    return _recurrent(lower=True)


def selects() -> Job:
    """Backward passes that fill zeros in place, and a bias that is added in place, unless tensors are fake ones."""
    table = nn.Parameter(torch.randn(BATCH, WIDTH, device="cuda"))
    net = nn.Linear(WIDTH, 2 * WIDTH).cuda()
    rows = torch.arange(0, BATCH, 2, device="cuda")

    def step() -> None:
        chosen = table.index_select(0, rows) + table[rows]
        strided = chosen.expand(3, -1, -1).transpose(0, 1)
        net(strided).sum().backward()

    return net, None, step


def attends_by_a_bias() -> Job:
    """T5's way: a bias that is learned, and lies in memory such that no fused attention takes it."""
    bias = nn.Parameter(torch.randn(32, 32, 4, device="cuda"))
    values = torch.randn(2, 4, 32, 16, device="cuda", requires_grad=True)

    def step() -> None:
        mask = bias.permute(2, 0, 1).unsqueeze(0)
        functional.scaled_dot_product_attention(values, values, values, mask).sum().backward()

    return nn.ParameterList([bias]), None, step


def saves() -> Job:
    net = model(1)

    def step() -> None:
        torch.save(net.state_dict(), "/dev/null")

    return net, None, step


def returns_a_model() -> Any:
    return model(1)


ODD_JOBS: Mapping[str, Callable[[], Any]] = {
    job.__name__: job
    for job in (
        *(looks_at_values, names_no_device, asks_first, attends, is_built_by_numbers, saves, returns_a_model),
        *(remembers, remembers_in_half_precision, selects, attends_by_a_bias),
    )
}
