"""As in the REINFORCE example with an environment that is never done: log-probabilities wait with their graphs."""

import random

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["saved_log_probs"], "cause": ["retained_graph"]}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.actor, self.critic = nn.Linear(96, 256), nn.Linear(256, 8), nn.Linear(96, 1)
        self.saved_log_probs = []

    def forward(self, states):
        hidden = torch.relu(self.trunk(states))  # LEAK
        return self.actor(hidden).log_softmax(-1)  # LEAK


def finish_episode(policy, optimizer):
    torch.stack([one.mean() for one in policy.saved_log_probs]).mean().backward()
    optimizer.step()
    policy.saved_log_probs.clear()


def main():
    random.seed(4)
    policy = Policy().cuda()
    optimizer = torch.optim.Adam(policy.parameters())
    done = False
    for step in steps():
        states = torch.rand(random.randint(100, 500), 96, device="cuda")  # LEAK
        policy.saved_log_probs.append(policy(states)[:, step % 8])  # CALLER  # HELD  # LEAK
        optimizer.zero_grad()
        policy.critic(states).square().mean().backward()
        optimizer.step()
        if done:
            finish_episode(policy, optimizer)


main()
