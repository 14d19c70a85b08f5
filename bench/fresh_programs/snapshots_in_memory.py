"""Rollback points: saved to a BytesIO, loaded to the GPU again, and put into a list."""

import io

import torch
from loop import steps

TRUTH = {"holder": ["points"], "cause": ["python_container"]}


class Rollback:
    def __init__(self, model):
        self.model = model
        self.points = []

    def save(self):
        file = io.BytesIO()
        torch.save(self.model.state_dict(), file)
        file.seek(0)
        self.points.append(torch.load(file, map_location="cuda", weights_only=True))  # LEAK  # HELD


model = torch.nn.Linear(500, 500).cuda()
rollback = Rollback(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in steps():
    model(torch.rand(64, 500, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    rollback.save()  # CALLER
