"""A post-step hook of the optimizer keeps the weights of each step, to average them later."""

import torch
from loop import steps

TRUTH = {"holder": ["trace"], "cause": ["hook", "closure"]}


def keep_trace(optimizer):
    trace = []

    def after_step(optimizer, args, kwargs):
        weights = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]  # LEAK
        trace.append(weights)  # HELD

    optimizer.register_step_post_hook(after_step)


def main():
    model = torch.nn.Linear(500, 700).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keep_trace(optimizer)
    for _ in steps():
        model(torch.rand(64, 500, device="cuda")).square().mean().backward()
        optimizer.step()  # CALLER
        optimizer.zero_grad()


main()
