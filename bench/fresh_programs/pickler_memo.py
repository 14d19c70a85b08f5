"""As in streaming writers with one pickle.Pickler: its memo keeps each object that it has ever written."""

import os
import pickle

import torch
from loop import steps

TRUTH = {"holder": ["pickler", "Pickler", "memo"], "cause": ["python_container"]}


class StreamWriter:
    def __init__(self, path):
        self.file = open(path, "wb")  # noqa: SIM115
        self.pickler = pickle.Pickler(self.file)

    def write(self, record):
        self.pickler.dump(record)  # HELD


def main():
    writer = StreamWriter(os.devnull)
    model = torch.nn.Linear(200, 250).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps():
        out = model(torch.rand(256, 200, device="cuda"))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        writer.write({"step": step, "embeddings": out.detach().exp()})  # LEAK


main()
