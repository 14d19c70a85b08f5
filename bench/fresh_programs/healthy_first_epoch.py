"""A dataset of 220 batches that stay on the device after their first use: the first epoch fills, others only read."""

import torch
from loop import steps
from torch import nn

TRUTH = None

BATCHES = 220


class OnDevice:
    def __init__(self):
        self.batches = {}

    def __getitem__(self, number):
        if number not in self.batches:
            self.batches[number] = torch.rand(400, 500).to("cuda")
        return self.batches[number]


dataset = OnDevice()
model = nn.Linear(500, 50).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in steps():
    model(dataset[step % BATCHES]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
