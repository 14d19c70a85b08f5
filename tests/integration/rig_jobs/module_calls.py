"""Prints what the probe's module hook saw of torch's own calls: one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tidegauge.probe.runtime.backend import register_module_hook


class Block(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where mypy runs
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.inner(batch)


@contextmanager
def listening() -> Iterator[list[object]]:
    called: list[object] = []
    remove = register_module_hook(torch, called.append)
    assert remove is not None
    yield called
    remove()


def of_backward(run: Callable[..., Any], **how: bool) -> list[int]:
    """Calls by the forward pass, and by the end of the backward pass."""
    model, batch = Block(), torch.ones(2, 4, requires_grad=True)
    with listening() as called:
        out = run(model, batch, **how)
        forward = len(called)
        out.sum().backward()
        return [forward, len(called)]


def of_the_compiler() -> dict[str, object]:
    """A graph that must be whole is compiled for the first time beside the hook; and then there is none any more."""
    model, graphs = Block(), []

    def backend(graph: Any, _examples: object) -> Any:
        graphs.append(graph)
        return graph.forward

    with listening() as called:

        @torch.compile(backend=backend, fullgraph=True)  # type: ignore[untyped-decorator]  # as above
        def infer(batch: torch.Tensor) -> torch.Tensor:
            return model(batch)

        infer(torch.ones(2, 4))
    return {"graphs": len(graphs), "calls": len(called), "hook": register_module_hook(torch, called.append) is not None}


def main() -> None:
    found = {
        "plain": of_backward(lambda model, batch: model(batch)),
        "checkpoint": of_backward(checkpoint, use_reentrant=False),
        "reentrant": of_backward(checkpoint, use_reentrant=True),
        "compiler": of_the_compiler(),
        "hooks": len(sys.modules["torch.nn.modules.module"]._global_forward_pre_hooks),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
