"""As in fault-tolerant training loops: what sys.exc_info() gave for each bad step is kept for a report at the end."""

import sys

import torch
from loop import steps

TRUTH = {"holder": ["reports"], "cause": ["exception_frame"]}


class CrashReports:
    def __init__(self):
        self.reports = {}

    def guard(self, step, function, *args):
        try:
            return function(*args)  # CALLER
        except FloatingPointError:
            self.reports[f"step-{step:05d}"] = sys.exc_info()  # HELD
        return None


def check_scale(model, inputs, step):
    with torch.no_grad():
        scaled = model(inputs) * 65504.0  # LEAK
    if step % 3 == 0:
        raise FloatingPointError(f"overflow in {tuple(scaled.shape)}")


def main():
    crashes = CrashReports()
    model = torch.nn.Linear(400, 600).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in steps():
        inputs = torch.rand(500, 400, device="cuda")  # LEAK
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        crashes.guard(step, check_scale, model, inputs, step)  # CALLER


main()
