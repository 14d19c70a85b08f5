"""As in preemption handling on Slurm: each handler for SIGUSR1 closes over its weights and the handler before."""

import signal

import torch
from loop import steps

TRUTH = {"holder": ["save_and_pass_on", "signal"], "cause": ["closure"]}


def save_on_preemption(weights):
    previous = signal.getsignal(signal.SIGUSR1)

    def save_and_pass_on(number, frame):
        weights.cpu()
        if callable(previous):
            previous(number, frame)

    signal.signal(signal.SIGUSR1, save_and_pass_on)  # HELD


def main():
    model = torch.nn.Linear(512, 800).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps():
        model(torch.rand(100, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            save_on_preemption(model.weight.detach().clone())  # LEAK


main()
