"""A copy of the model every second step, by name, for an ensemble that nobody asked to end."""

import copy

import torch
from loop import steps

TRUTH = {"holder": ["ensemble"], "cause": ["python_container"]}


def main():
    model = torch.nn.Sequential(torch.nn.Linear(400, 800), torch.nn.ReLU(), torch.nn.Linear(800, 400)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ensemble = {}
    for step in steps():
        model(torch.rand(64, 400, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 2 == 0:
            ensemble[f"member-{step}"] = copy.deepcopy(model).eval()  # LEAK  # HELD


main()
