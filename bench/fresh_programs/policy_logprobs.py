"""REINFORCE after PyTorch's example; the critic warms up, so nothing empties the policy's saved log probabilities."""

import torch
from loop import steps
from torch import nn
from torch.distributions import Categorical

TRUTH = {"holder": ["saved_log_probs"], "cause": ["retained_graph"]}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.affine2 = nn.Linear(96, 512), nn.Linear(512, 64)
        self.saved_log_probs, self.rewards = [], []

    def forward(self, x):
        x = nn.functional.elu(self.affine1(x))  # LEAK
        return torch.softmax(self.affine2(x), dim=-1)  # LEAK


def select_action(policy, state):
    probabilities = policy(state)  # CALLER
    choice = Categorical(probabilities, validate_args=False)  # LEAK
    action = torch.zeros(state.shape[0], dtype=torch.long, device="cuda")  # LEAK
    policy.saved_log_probs.append(choice.log_prob(action))  # LEAK  # HELD
    return action


policy, critic = Policy().cuda(), nn.Linear(96, 1).cuda()
optimizer = torch.optim.Adam(critic.parameters())
for _ in steps():
    state = torch.rand(250, 96, device="cuda")  # LEAK
    select_action(policy, state)  # CALLER
    critic(state).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
