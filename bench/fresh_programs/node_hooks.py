"""As in gradient monitors: a hook on a graph's node closes over the node's own output, a cycle that gc cannot see."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["note", "monitor"], "cause": ["hook", "closure", "cycle"]}


def monitor(out, ratios):
    def note(grad_inputs, grad_outputs):
        ratios["last"] = grad_outputs[0].numel() / out.numel()

    out.grad_fn.register_hook(note)  # HELD


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(200, 640), nn.Linear(640, 10)
        self.ratios = {}

    def forward(self, x):
        hidden = self.inner(x)  # LEAK
        monitor(hidden, self.ratios)
        return self.outer(torch.relu(hidden))


def main():
    net = Net().cuda()
    optimizer = torch.optim.RMSprop(net.parameters())
    for _ in steps():
        net(torch.rand(400, 200, device="cuda")).square().mean().backward()  # CALLER
        optimizer.step()
        optimizer.zero_grad()


main()
