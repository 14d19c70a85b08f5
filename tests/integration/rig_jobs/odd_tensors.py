"""Trains a model with tensors like few others until its stdin ends, and says which of its own code somebody else ran.

Prints ``training`` after its second step, and at the end one JSON object.
"""

from __future__ import annotations

import json
import select
import sys
from typing import Any

import torch
from torch import nn

calls: list[str] = []


class Wrapping(torch.Tensor):  # type: ignore[misc]  # torch is not installed here
    """Has another tensor, and code for every operation."""

    __slots__ = ["inner"]

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        calls.append(f"dispatch {func}")
        raise NotImplementedError

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        calls.append(f"function {func}")
        return super().__torch_function__(func, types, args, kwargs or {})


class Model(nn.Module):  # type: ignore[misc]  # torch is not installed here
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 64, sparse=True, device="cuda")
        self.linear = nn.Linear(64, 64, device="cuda")
        self.lazy = nn.LazyLinear(3)
        self.register_parameter("meta", nn.Parameter(torch.zeros(3, device="meta"), requires_grad=False))
        self.register_buffer("wrapped", Wrapping(torch.zeros(512, 1024, device="cuda")))
        self.register_buffer("part", torch.zeros(1 << 20, device="cuda")[1000:2000])
        self.rows = torch.eye(64, device="cuda").to_sparse_csr()
        self.copied_on_write = torch._lazy_clone(torch.ones(256, 1024, device="cuda"))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.linear(self.embed(tokens)).sum()


def main() -> None:
    model = Model()
    optimizers = [
        torch.optim.SGD(model.embed.parameters(), lr=0.1),
        torch.optim.AdamW(model.linear.parameters()),
    ]
    steps = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        model(torch.zeros(8, dtype=torch.long, device="cuda")).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        steps += 1
        if steps == 2:
            calls.clear()
            print("training", flush=True)
    print(json.dumps({"calls": calls, "is_copied": not torch._C._is_cow_tensor(model.copied_on_write)}), flush=True)


if __name__ == "__main__":
    main()
