"""Rollouts that pick their own next method by a bound method; the collector is off for the simulator's sake."""

import gc

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["Rollout"], "cause": ["cycle"]}


class Rollout:
    def __init__(self, policy, envs):
        self.policy = policy
        self.states = torch.rand(envs, 256, device="cuda")  # LEAK
        self.act = self._explore

    def _explore(self):
        self.act = self._exploit
        return self.states + torch.rand_like(self.states)

    def _exploit(self):
        self.actions = self.policy(self.states).detach()  # LEAK
        return self.actions


gc.collect()
gc.disable()
policy = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
for _ in steps():
    rollout = Rollout(policy, 448)  # CALLER
    rollout.act()
    batch = rollout.act()  # CALLER
    policy(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
