"""WGAN's gradient penalty, logged with its double-backward graph."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["penalties"], "cause": ["retained_graph"]}


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(256, 512), nn.Linear(512, 1)

    def forward(self, x):
        return self.last(nn.functional.softplus(self.first(x)))  # LEAK


def gradient_penalty(critic, real, fake):
    mixed = (0.3 * real + 0.7 * fake).requires_grad_(True)  # LEAK
    score = critic(mixed)  # CALLER
    (gradient,) = torch.autograd.grad(score.sum(), mixed, create_graph=True)  # LEAK
    return (gradient.norm(2, dim=1) - 1).square().mean()  # LEAK


def main():
    critic = Critic().cuda()
    optimizer = torch.optim.Adam(critic.parameters(), betas=(0.0, 0.9))
    penalties = []
    for _ in steps():
        real, fake = torch.rand(400, 256, device="cuda"), torch.rand(400, 256, device="cuda")
        optimizer.zero_grad()
        loss = critic(fake).mean() - critic(real).mean()
        loss.backward()
        optimizer.step()
        penalty = gradient_penalty(critic, real, fake)  # CALLER
        penalties.append(penalty)  # HELD


main()
