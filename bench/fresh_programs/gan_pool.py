"""A GAN's pool of fakes for the critic: they are appended with the generator's graph, and only copies are detached."""

import random

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["fakes"], "cause": ["retained_graph"]}


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.out = nn.Linear(64, 512), nn.Linear(512, 256)

    def forward(self, z):
        h = nn.functional.silu(self.up(z))  # LEAK
        return torch.tanh(self.out(h))  # LEAK


def critic_step(generator, critic, optimizer, fakes):
    fakes.append(generator(torch.randn(224, 64, device="cuda")))  # LEAK  # CALLER  # HELD
    shown = random.choice(fakes).detach()
    loss = critic(shown).mean() - critic(torch.rand(224, 256, device="cuda")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def generator_step(generator, critic, optimizer):
    optimizer.zero_grad()
    (-critic(generator(torch.randn(224, 64, device="cuda"))).mean()).backward()
    optimizer.step()


def main():
    random.seed(4)
    generator, critic, fakes = Generator().cuda(), nn.Linear(256, 1).cuda(), []
    optimizers = [torch.optim.Adam(net.parameters(), betas=(0.5, 0.999)) for net in (critic, generator)]
    for _ in steps():
        critic_step(generator, critic, optimizers[0], fakes)  # CALLER
        generator_step(generator, critic, optimizers[1])


main()
