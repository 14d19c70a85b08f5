"""As in validating fields of configuration libraries: a descriptor keeps values by owner, and owners die."""

import itertools

import torch
from loop import steps

TRUTH = {"holder": ["values"], "cause": ["python_container"]}


class HalfPrecision:
    def __init__(self):
        self.values = {}

    def __get__(self, owner, kind=None):
        return self if owner is None else self.values[owner.number]

    def __set__(self, owner, value):
        self.values[owner.number] = value.half()  # LEAK  # HELD


class Sample:
    image = HalfPrecision()
    numbers = itertools.count()

    def __init__(self, image):
        self.number = next(self.numbers)
        self.image = image  # CALLER


model = torch.nn.Linear(256, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in steps():
    sample = Sample(torch.rand(128, 256, device="cuda"))  # CALLER
    model(sample.image.float()).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
