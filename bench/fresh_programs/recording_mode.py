"""A TorchFunctionMode that records what functions return, left on after debugging."""

import torch
from loop import steps
from torch.overrides import TorchFunctionMode

TRUTH = {"holder": ["calls"], "cause": ["python_container"]}


class Recorder(TorchFunctionMode):
    def __init__(self, watched):
        super().__init__()
        self.watched = watched
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))  # LEAK
        if func in self.watched:
            self.calls.append((func.__name__, result.detach()))  # HELD
        return result


def train_step(model, optimizer):
    hidden = model(torch.rand(512, 512, device="cuda"))
    torch.tanh(hidden).square().mean().backward()  # LEAK  # CALLER
    optimizer.step()
    optimizer.zero_grad()


def main():
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    with Recorder({torch.tanh}):
        for _ in steps():
            train_step(model, optimizer)  # CALLER


main()
