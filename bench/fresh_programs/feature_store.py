"""A feature store with versions: every update is a new version, and old ones are for reproducibility."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["versions", "FeatureStore"], "cause": ["python_container"]}


class FeatureStore:
    def __init__(self):
        self._versions = {}

    def __setitem__(self, name, value):
        history = self._versions.setdefault(name, {})
        history[f"v{len(history) + 1}"] = {"value": value, "tags": ("train", name)}  # HELD

    def __getitem__(self, name):
        return list(self._versions[name].values())[-1]["value"]


def update(store, name, out):
    store[name] = store[name] * 0.9 + out.detach() * 0.1  # LEAK


NAMES = ["user", "item", "context"]
store = FeatureStore()
for name in NAMES:
    store[name] = torch.zeros(400, 200, device="cuda")
model = nn.ModuleDict({name: nn.Linear(64, 200) for name in NAMES}).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in steps():
    for name in NAMES:
        out = model[name](torch.rand(400, 64, device="cuda"))
        (out - store[name]).square().mean().backward()
        update(store, name, out)  # CALLER
    optimizer.step()
    optimizer.zero_grad()
