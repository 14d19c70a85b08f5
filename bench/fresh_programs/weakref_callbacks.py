"""Weak references to samples that live on, with callbacks that keep their features."""

import functools
import weakref

import torch
from loop import steps

TRUTH = {"holder": ["references"], "cause": ["python_container"]}


class Sample:
    pass


def forget(features, _):
    return features


def main():
    sample, references = Sample(), []
    model = torch.nn.Linear(256, 640).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        out = model(torch.rand(512, 256, device="cuda"))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        features = out.detach().relu()  # LEAK
        references.append(weakref.ref(sample, functools.partial(forget, features)))  # HELD


main()
