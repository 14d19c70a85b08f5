"""As in home-made activation compression with saved_tensors_hooks: unpacking reads the store and forgets to pop."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["store"], "cause": ["hook", "python_container"]}


class Compressed:
    def __init__(self):
        self.store = {}

    def pack(self, tensor):
        key = len(self.store)
        self.store[key] = tensor.detach().half()  # LEAK  # HELD
        return key

    def unpack(self, key):
        return self.store[key].float()  # should pop


def main():
    compressed = Compressed()
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 16)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        x = torch.rand(300, 256, device="cuda")
        with torch.autograd.graph.saved_tensors_hooks(compressed.pack, compressed.unpack):
            loss = model(x).square().mean()  # CALLER
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
