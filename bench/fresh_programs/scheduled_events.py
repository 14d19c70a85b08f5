"""Reports are scheduled for an hour later with sched, each with its tensor."""

import sched
import time

import torch
from loop import steps

TRUTH = {"holder": ["_queue"], "cause": ["python_container"]}


class Reports:
    def __init__(self):
        self.later = sched.scheduler(time.monotonic, time.sleep)

    def plan(self, tensor):
        self.later.enter(3600.0, 1, self.write, (tensor,))  # HELD

    def write(self, tensor):
        print(tensor.shape)


reports = Reports()
model = torch.nn.Linear(320, 840).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in steps():
    out = model(torch.rand(320, 320, device="cuda"))
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    reports.plan(out.detach().sqrt())  # LEAK
    reports.later.run(blocking=False)
