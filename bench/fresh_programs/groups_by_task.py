"""As in continual learning with adapters: each task's adapter gets a param group, and old groups are never removed."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["param_groups", ".state"], "cause": ["python_container", "optimizer_rebuilt"]}


class Learner:
    def __init__(self):
        self.body = nn.Linear(256, 256).cuda()
        self.adapter = nn.Identity()
        self.optimizer = torch.optim.Adam(self.body.parameters(), lr=1e-3)

    def begin_task(self):
        self.adapter = nn.Linear(256, 1024, device="cuda")  # LEAK
        self.optimizer.add_param_group({"params": list(self.adapter.parameters()), "lr": 1e-2})  # HELD

    def train_step(self, x):
        self.optimizer.zero_grad()
        self.adapter(self.body(x)).square().mean().backward()
        self.optimizer.step()  # LEAK


learner = Learner()
for step in steps():
    if step % 5 == 0:
        learner.begin_task()  # CALLER
    learner.train_step(torch.rand(96, 256, device="cuda"))  # CALLER
