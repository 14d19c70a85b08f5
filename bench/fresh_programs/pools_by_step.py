"""A MemPool of its own for each batch, kept with what lies in it."""

import torch
from loop import steps

TRUTH = {"holder": ["arenas"], "cause": ["cuda_graphs", "python_container"]}


class Arena:
    def __init__(self):
        self.pool = torch.cuda.MemPool()
        self.tensors = []

    def batch(self, rows, width):
        with torch.cuda.use_mem_pool(self.pool):
            self.tensors.append(torch.zeros(rows, width, device="cuda"))  # LEAK
        return self.tensors[-1]


def main():
    arenas = []
    model = torch.nn.Linear(512, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in steps():
        arenas.append(Arena())  # HELD
        batch = arenas[-1].batch(512, 512)  # CALLER
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
