"""A post-accumulate hook on each weight logs gradients for a histogram."""

import torch
from loop import steps

TRUTH = {"holder": ["gradients", "a default of log_gradient"], "cause": ["hook"]}


def watch_gradients(model):
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        gradients = []

        def log_gradient(p, gradients=gradients, name=name):
            gradients.append((name, p.grad.clone()))  # LEAK  # HELD

        parameter.register_post_accumulate_grad_hook(log_gradient)


model = torch.nn.Sequential(torch.nn.Linear(300, 900), torch.nn.ReLU(), torch.nn.Linear(900, 10)).cuda()
watch_gradients(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in steps():
    optimizer.zero_grad()
    model(torch.rand(128, 300, device="cuda")).logsumexp(-1).mean().backward()
    optimizer.step()
