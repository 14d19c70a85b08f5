"""Evaluations in a pool's thread: their futures are dropped as soon as they are done."""

from concurrent.futures import ThreadPoolExecutor

import torch
from loop import steps

TRUTH = None


def evaluate(weight, inputs):
    return (inputs @ weight.T).softmax(-1)


def main():
    inputs = torch.rand(1024, 256, device="cuda")
    model = torch.nn.Linear(256, 512).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    futures = []
    with ThreadPoolExecutor(2) as pool:
        for step in steps():
            model(torch.rand(128, 256, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 3 == 0:
                futures.append(pool.submit(evaluate, model.weight.detach().clone(), inputs))
            futures = [future for future in futures if not future.done()]


main()
