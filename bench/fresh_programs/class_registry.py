"""Instances register themselves in their class."""

import torch
from loop import steps

TRUTH = {"holder": ["instances"], "cause": ["python_container"]}


class Episode:
    instances = []

    def __init__(self, states, reward):
        self.states = states.clone()  # LEAK
        self.reward = reward
        type(self).instances.append(self)  # HELD

    @classmethod
    def count(cls):
        return len(cls.instances)


policy = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Tanh(), torch.nn.Linear(200, 4)).cuda()
optimizer = torch.optim.RMSprop(policy.parameters())

for number in steps():
    states = torch.rand(1500, 200, device="cuda")
    loss = policy(states).logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    episode = Episode(states, reward=float(number))  # CALLER
