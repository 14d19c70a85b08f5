"""Keyword arguments of attention blocks, kept by a pre-hook for a saliency map."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["Saliency", "queries", "pre hook", "pre-hook"], "cause": ["hook"]}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x, *, context):
        return x + torch.softmax(self.q(x) @ self.kv(context).T, dim=-1) @ context


class Saliency:
    def __init__(self, model):
        self.queries = {}
        for name, module in model.named_modules():
            if isinstance(module, Block):
                self.queries[name] = []
                module.register_forward_pre_hook(self._hook_of(name), with_kwargs=True)

    def _hook_of(self, name):
        def keep(module, args, kwargs):
            self.queries[name].append(kwargs["context"].detach().clone())  # LEAK  # HELD

        return keep


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x, context):
        for block in self.blocks:
            x = block(x, context=context)  # CALLER
        return x


model = Model().cuda()
saliency = Saliency(model)
optimizer = torch.optim.Adam(model.parameters())
for _ in steps():
    x, context = torch.rand(300, 128, device="cuda"), torch.rand(640, 128, device="cuda")
    model(x, context).square().mean().backward()  # CALLER
    optimizer.step()
    optimizer.zero_grad()
