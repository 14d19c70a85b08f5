"""As in datasets with lazy items: a cached_property of each sample stays on the GPU until every sample was seen."""

import functools

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["samples"], "cause": ["python_container"]}


class Sample:
    def __init__(self, number):
        self.number = number

    @functools.cached_property
    def spectrogram(self):
        return torch.rand(80, 200 + self.number % 7, device="cuda")  # LEAK  # HELD


class SpeechData:
    def __init__(self, count):
        self.samples = [Sample(number) for number in range(count)]

    def batch(self, step, size):
        chosen = self.samples[step * size : (step + 1) * size]
        return torch.stack([sample.spectrogram[:, :200] for sample in chosen])  # CALLER


def main():
    data = SpeechData(5000)
    model = nn.Linear(200, 32).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps():
        model(data.batch(step, 6)).square().mean().backward()  # CALLER
        optimizer.step()
        optimizer.zero_grad()


main()
