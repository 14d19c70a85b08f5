"""As in prefetchers on an unbounded queue: a loader's thread makes two batches for each one that training takes."""

import queue
import threading

import torch
from loop import steps

TRUTH = {"holder": ["backlog", "Queue"], "cause": ["python_container"]}


class Prefetcher:
    def __init__(self, shape):
        self.shape = shape
        self.backlog = queue.Queue()
        self.wanted = threading.Semaphore(2)
        threading.Thread(target=self._work, name="prefetch-0", daemon=True).start()

    def _work(self):
        while self.wanted.acquire():
            for _ in range(2):
                self.backlog.put(torch.rand(self.shape, device="cuda"))  # LEAK  # HELD

    def next(self):
        self.wanted.release()
        return self.backlog.get()


def main():
    prefetcher = Prefetcher((256, 384))
    model = torch.nn.Linear(384, 384).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        model(prefetcher.next()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
