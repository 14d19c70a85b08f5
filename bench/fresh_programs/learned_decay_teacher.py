"""A teacher that is averaged without no_grad, with a decay that is a parameter: its graph becomes ever longer."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["teacher"], "cause": ["retained_graph"]}


def main():
    student = nn.Linear(512, 512).cuda()
    decay = nn.Parameter(torch.full((512, 512), 3.0, device="cuda"))
    optimizer = torch.optim.SGD(student.parameters(), lr=1e-2)
    teacher = student.weight.detach().clone()
    for _ in steps():
        x = torch.rand(64, 512, device="cuda")
        loss = nn.functional.mse_loss(student(x), x @ teacher.detach().T)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keep = decay.sigmoid()  # LEAK
        teacher = keep * teacher + (1 - keep) * student.weight.detach()  # LEAK  # HELD


main()
