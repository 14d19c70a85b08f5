"""Style terms of a small convolutional critic are kept for a plot by layer, with the graphs that made them."""

from collections import defaultdict

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["terms"], "cause": ["retained_graph"]}


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.terms = defaultdict(list)

    def style(self, name, features):
        gram = torch.einsum("bchw,bdhw->bcd", features, features)  # LEAK
        self.terms[name].append(gram.square().mean())  # LEAK  # HELD

    def forward(self, images):
        one = self.first(images).relu()  # LEAK
        self.style("first", one)  # CALLER
        two = self.second(one).relu()  # LEAK
        self.style("second", two)  # CALLER
        return two.mean()


generator, critic = nn.Linear(64, 3 * 48 * 48).cuda(), Critic().cuda()
optimizer = torch.optim.Adam(generator.parameters())
for _ in steps():
    images = generator(torch.rand(16, 64, device="cuda")).tanh()
    images.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    critic(images.detach().view(16, 3, 48, 48) * 0.5)  # LEAK  # CALLER
