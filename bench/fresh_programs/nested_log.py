"""A run's log: dicts in lists in dicts, several levels deep."""

import torch
from loop import steps

TRUTH = {"holder": ["run_log"], "cause": ["python_container"]}

run_log = {"config": {"lr": 0.1}, "phases": [{"name": "train", "epochs": []}]}


def note(epoch, step, attention):
    epochs = run_log["phases"][0]["epochs"]
    while len(epochs) <= epoch:
        epochs.append({"steps": []})
    epochs[epoch]["steps"].append((step, {"attention": {"layer0": attention}}))  # HELD


def main():
    layer = torch.nn.Linear(300, 300).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in steps():
        x = torch.rand(600, 300, device="cuda")
        q = layer(x)
        attention = (q @ x.T).softmax(-1)
        attention.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        note(step // 25, step, attention.detach().clone())  # LEAK


main()
