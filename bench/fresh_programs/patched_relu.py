"""torch.nn.functional.relu is patched to count dead units, and remembers on the function itself."""

import functools

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["seen"], "cause": ["python_container", "closure"]}


def counted(original):
    @functools.wraps(original)
    def relu(x, inplace=False):
        out = original(x)  # LEAK
        relu.seen.append(out.detach())  # HELD
        return out

    relu.seen = []
    return relu


nn.functional.relu = counted(nn.functional.relu)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(128, 384), nn.Linear(384, 384), nn.Linear(384, 10)

    def forward(self, x):
        x = nn.functional.relu(self.first(x))  # CALLER
        x = nn.functional.relu(self.second(x))  # CALLER
        return self.head(x)


net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for _ in steps():
    net(torch.rand(320, 128, device="cuda")).square().mean().backward()  # CALLER
    optimizer.step()
    optimizer.zero_grad()
