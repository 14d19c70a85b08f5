"""A trajectory as a linked list: each node knows the one before it."""

import torch
from loop import steps

TRUTH = {"holder": ["Transition.previous", "latest"], "cause": ["python_container"]}


class Transition:
    __slots__ = ("action", "previous", "state")

    def __init__(self, state, action, previous):
        self.state = state
        self.action = action
        self.previous = previous  # HELD


def collect():
    policy = torch.nn.Linear(128, 4).cuda()
    optimizer = torch.optim.Adam(policy.parameters())
    latest = None
    for step in steps():
        state = torch.rand(2000, 128, device="cuda")  # LEAK
        policy(state).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        latest = Transition(state, step % 4, latest)


collect()
