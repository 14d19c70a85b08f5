"""As in chat servers without an expiry: the key-value caches of all layers stay for conversations that are over."""

import random

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["conversations"], "cause": ["python_container"]}


class LayerCache:
    def __init__(self, width):
        self.keys = self.values = torch.empty(0, width, device="cuda")

    def update(self, keys, values):
        self.keys = torch.cat([self.keys, keys])  # LEAK
        self.values = torch.cat([self.values, values])  # LEAK
        return self.keys, self.values


class Server:
    def __init__(self, width=128, layers=3):
        self.layers = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(layers)]).cuda()
        self.width, self.conversations = width, {}

    @torch.no_grad()
    def turn(self, conversation, tokens):
        if conversation not in self.conversations:
            self.conversations[conversation] = [LayerCache(self.width) for _ in self.layers]  # HELD
        for layer, cache in zip(self.layers, self.conversations[conversation]):
            keys, values = cache.update(*layer(tokens).chunk(2, dim=-1))  # CALLER
            tokens = (tokens @ keys.T).softmax(-1) @ values
        return tokens


random.seed(2)
server = Server()
reward = nn.Linear(128, 1).cuda()
optimizer = torch.optim.SGD(reward.parameters(), lr=0.1)
for step in steps():
    reply = server.turn(f"c{step // 3}", torch.rand(random.randint(20, 200), 128, device="cuda"))  # CALLER
    reward(reply).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
