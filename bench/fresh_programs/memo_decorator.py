"""A home-made memo around a function whose argument is never the same twice."""

import functools

import torch
from loop import steps

TRUTH = {"holder": ["answers"], "cause": ["closure"]}


def memoize(function):
    answers = {}

    @functools.wraps(function)
    def wrapper(*args):
        if args not in answers:
            answers[args] = function(*args)  # HELD  # CALLER
        return answers[args]

    return wrapper


@memoize
def position_bias(length, temperature):
    offsets = torch.arange(length, device="cuda", dtype=torch.float32)
    return torch.exp(-(offsets[:, None] - offsets[None, :]).abs() / temperature)  # LEAK


def main():
    mix = torch.nn.Linear(448, 448).cuda()
    optimizer = torch.optim.SGD(mix.parameters(), lr=0.1)
    for step in steps():
        bias = position_bias(448, 1.0 + step * 1e-3)
        out = mix(torch.rand(448, 448, device="cuda") + bias)
        out.mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


main()
