"""As in asynchronous evaluation beside training: futures are asked for exceptions, and kept with their results."""

from concurrent.futures import ThreadPoolExecutor

import torch
from loop import steps

TRUTH = {"holder": ["futures"], "cause": ["python_container"]}


def evaluate(weight, inputs):
    logits = inputs @ weight.T
    return logits.softmax(-1)  # LEAK


class AsyncEvaluator:
    def __init__(self, pool):
        self.pool = pool
        self.futures = []
        self.inputs = torch.rand(1024, 256, device="cuda")

    def submit(self, model):
        self.futures.append(self.pool.submit(evaluate, model.weight.detach().clone(), self.inputs))  # HELD

    def check(self):
        for future in self.futures:
            if future.done() and future.exception() is not None:
                raise future.exception()


def main():
    model = torch.nn.Linear(256, 512).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    with ThreadPoolExecutor(1) as pool:
        evaluator = AsyncEvaluator(pool)
        for step in steps():
            model(torch.rand(128, 256, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 5 == 4:
                evaluator.submit(model)
                evaluator.check()


main()
