"""Takes gradients by torch.func.grad, keeps their graph, and profiles that: python func_gradients.py OUT.json.

Without somebody who keeps the graph, here an outer derivative, it depends on autograd's thread how long it lives.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import nn
from torch.func import functional_call, grad, vjp

import tidegauge

WIDTH, LAYERS, BATCH = 1024, 4, 2560


def main() -> dict[str, object]:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).cuda()
    weights = {name: value.detach() for name, value in model.named_parameters()}
    batch = torch.zeros(BATCH, WIDTH, device="cuda")

    def loss_of(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(model, values, (batch,)).relu().pow(2).mean()

    torch.cuda.reset_peak_memory_stats()
    with tidegauge.profile(model) as p:
        kept = vjp(grad(loss_of), weights)
        scratch = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")  # so that the peak is here
        del scratch
    del kept
    return {
        "by_category": {category.value: held for category, held in p.peak.by_category.items()},
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "parameter_bytes": sum(one.untyped_storage().nbytes() for one in model.parameters()),
    }


with open(sys.argv[1], "w") as file:
    json.dump(main(), file)
