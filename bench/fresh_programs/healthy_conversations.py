"""Key-value caches by conversation; the one that was quiet for longest goes when there are more than twenty."""

import random
from collections import OrderedDict

import torch
from loop import steps

TRUTH = None


class Conversations:
    def __init__(self, most):
        self.most, self.caches = most, OrderedDict()

    def turn(self, name, keys):
        past = self.caches.pop(name, keys[:0])
        self.caches[name] = torch.cat([past, keys])[-600:]
        while len(self.caches) > self.most:
            self.caches.popitem(last=False)
        return self.caches[name]


random.seed(14)
conversations = Conversations(20)
layer = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in steps():
    keys = layer(torch.rand(random.randint(50, 250), 256, device="cuda"))
    keys.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    conversations.turn(f"c{random.randint(step // 2, step // 2 + 5)}", keys.detach())
