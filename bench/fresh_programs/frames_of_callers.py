"""As in loggers that say where they were called: the calling frame itself is kept, with its local variables."""

import inspect

import torch
from loop import steps

TRUTH = {"holder": ["records"], "cause": ["python_container"]}


class StructuredLog:
    def __init__(self):
        self.records = []

    def event(self, message, **fields):
        caller = inspect.currentframe().f_back
        self.records.append((message, fields, caller))  # HELD

    def last(self):
        message, fields, caller = self.records[-1]
        return f"{caller.f_code.co_name}:{caller.f_lineno}: {message} {fields}"


def score(log, out, step):
    normalised = torch.softmax(out, dim=-1)  # LEAK
    log.event("scored", step=step)
    return normalised.size(0)


def main():
    log = StructuredLog()
    model = torch.nn.Linear(100, 1000).cuda()
    optimizer = torch.optim.Adagrad(model.parameters())
    for step in steps():
        out = model(torch.rand(350, 100, device="cuda"))  # LEAK
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        score(log, out.detach(), step)  # CALLER
        assert log.last().startswith("score")


main()
