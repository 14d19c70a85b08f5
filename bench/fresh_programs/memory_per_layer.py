"""A transformer with a memory: each layer attends to the last 512 keys, and concatenates all there ever were."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["keys", "values"], "cause": ["python_container"]}


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, memory, number):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        memory.extend(number, k.detach(), v.detach())  # CALLER
        return x + (q @ memory.keys[number][-512:].T).softmax(dim=-1) @ memory.values[number][-512:]


class Memory:
    def __init__(self, layers, width):
        self.keys = [torch.zeros(0, width, device="cuda") for _ in range(layers)]
        self.values = [torch.zeros(0, width, device="cuda") for _ in range(layers)]

    def extend(self, number, k, v):
        self.keys[number] = torch.cat([self.keys[number], k])  # LEAK  # HELD
        self.values[number] = torch.cat([self.values[number], v])  # LEAK  # HELD


layers = nn.ModuleList(Layer(256) for _ in range(3)).cuda()
memory = Memory(len(layers), 256)
optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
for _ in steps():
    x = torch.rand(128, 256, device="cuda")
    for number, layer in enumerate(layers):
        x = layer(x, memory, number)  # CALLER
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
