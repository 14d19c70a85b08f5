"""As in custom functions that set outputs on ctx instead of save_for_backward: a cycle that gc cannot see."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["Swish", "ctx"], "cause": ["cycle", "retained_graph"]}


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gate = torch.sigmoid(x)  # LEAK
        y = x * gate  # LEAK
        ctx.gate, ctx.y = gate, y  # HELD
        return y, gate

    @staticmethod
    def backward(ctx, grad, grad_gate):
        return grad * (ctx.y + ctx.gate * (1 - ctx.y))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(160, 480), nn.Linear(480, 160)

    def forward(self, x):
        y, _ = Swish.apply(self.up(x))  # CALLER
        return self.down(y)


def main():
    block = Block().cuda()
    optimizer = torch.optim.Adam(block.parameters())
    for _ in steps():
        block(torch.rand(350, 160, device="cuda")).square().mean().backward()  # CALLER
        optimizer.step()
        optimizer.zero_grad()


main()
