"""A mean teacher, in place and without gradients."""

import copy

import torch
from loop import steps

TRUTH = None


@torch.no_grad()
def average(teacher, student, decay=0.99):
    for ours, theirs in zip(teacher.parameters(), student.parameters()):
        ours.mul_(decay).add_(theirs, alpha=1 - decay)


student = torch.nn.Linear(800, 800).cuda()
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.Adam(student.parameters())
for _ in steps():
    x = torch.rand(256, 800, device="cuda")
    torch.nn.functional.mse_loss(student(x), teacher(x)).backward()
    optimizer.step()
    optimizer.zero_grad()
    average(teacher, student)
