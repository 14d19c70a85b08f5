"""As in hang detectors: a threading.Timer for each slow step closes over its batch, and is not cancelled."""

import threading

import torch
from loop import steps

TRUTH = {"holder": ["Timer", "report"], "cause": ["closure", "python_container"]}


def watch(step, batch):
    def report():
        print(f"step {step} hangs with a batch of {tuple(batch.shape)}")

    timer = threading.Timer(7200.0, report)  # HELD
    timer.daemon = True
    timer.start()
    return timer


def main():
    model = torch.nn.Linear(640, 100).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in steps():
        batch = torch.rand(1024, 640, device="cuda")  # LEAK
        if step % 5 == 0:
            watch(step, batch)
        model(batch).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
