"""Intermediate features are set as attributes of the module, with the step in their name."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["feature_"], "cause": ["python_container"]}


class Extractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(256, 768), nn.Linear(768, 8)

    def forward(self, x, step):
        features = torch.relu(self.stem(x))
        setattr(self, f"feature_{step}", features.detach().clone())  # LEAK  # HELD
        return self.head(features)


def main():
    model = Extractor().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in steps():
        model(torch.rand(512, 256, device="cuda"), step).mean().backward()  # CALLER
        optimizer.step()
        optimizer.zero_grad()


main()
