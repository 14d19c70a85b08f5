"""Each failed batch raises from the error before it: a chain of exceptions, each with its traceback."""

import torch
from loop import steps

TRUTH = {"holder": ["last_error"], "cause": ["exception_frame"]}


class BadBatchError(RuntimeError):
    pass


class RobustTrainer:
    def __init__(self):
        self.model = torch.nn.Linear(512, 512).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.last_error = None

    def check(self, out):
        normalised = out / 3.0  # LEAK
        if normalised.dim() != 3:
            raise BadBatchError(f"{normalised.dim()} dimensions") from self.last_error

    def step(self):
        out = self.model(torch.rand(700, 512, device="cuda"))  # LEAK
        out.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        try:
            self.check(out.detach())  # CALLER
        except BadBatchError as error:
            self.last_error = error  # HELD


trainer = RobustTrainer()
for _ in steps():
    trainer.step()  # CALLER
