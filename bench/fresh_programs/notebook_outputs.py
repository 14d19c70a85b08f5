"""As in notebooks: IPython's output cache keeps what each cell shows."""

import sys

import torch
from loop import steps

TRUTH = {"holder": ["Out"], "cause": ["python_container"]}


class Shell:
    def __init__(self, **names):
        self.user_ns = {"Out": {}, **names}
        self.execution_count = 0
        sys.displayhook = self.display

    def display(self, value):
        if value is not None:
            self.user_ns["Out"][self.execution_count] = value  # HELD

    def run_cell(self, source):
        self.execution_count += 1
        exec(compile(source, f"<cell {self.execution_count}>", "single"), self.user_ns)  # CALLER


def train_step(model, optimizer):
    out = model(torch.rand(480, 240, device="cuda"))
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return out.detach().sigmoid()  # LEAK


model = torch.nn.Linear(240, 480).cuda()
optimizer = torch.optim.Adam(model.parameters())
shell = Shell(model=model, optimizer=optimizer, train_step=train_step)
for _ in steps():
    shell.run_cell("train_step(model, optimizer)")  # CALLER
