"""As in prioritised replay buffers on numpy: transitions lie in an object array that is doubled whenever it is full."""

import numpy as np
import torch
from loop import steps

TRUTH = {"holder": ["storage"], "cause": ["python_container"]}


class ReplayBuffer:
    def __init__(self):
        self.storage = np.empty(16, dtype=object)
        self.priorities = np.zeros(16)
        self.size = 0

    def add(self, transition, priority):
        if self.size == len(self.storage):  # should wrap around
            self.storage = np.concatenate([self.storage, np.empty_like(self.storage)])
            self.priorities = np.concatenate([self.priorities, np.zeros_like(self.priorities)])
        self.storage[self.size] = transition  # HELD
        self.priorities[self.size] = priority
        self.size += 1


def main():
    replay = ReplayBuffer()
    q = torch.nn.Sequential(torch.nn.Linear(220, 128), torch.nn.ReLU(), torch.nn.Linear(128, 6)).cuda()
    optimizer = torch.optim.Adam(q.parameters())
    for step in steps():
        states = torch.rand(500, 220, device="cuda")  # LEAK
        replay.add((states, step % 6, 0.0, False), priority=1.0)
        q(replay.storage[step // 2][0]).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
