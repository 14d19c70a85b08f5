"""Each velocity remembers the one before it, as an attribute of the tensor."""

import torch
from loop import steps

TRUTH = {"holder": ["previous", "velocity"], "cause": ["python_container"]}


def main():
    model = torch.nn.Linear(600, 600).cuda()
    velocity = torch.zeros(600, 600, device="cuda")
    optimizer = torch.optim.SGD([model.bias], lr=0.1)
    for _ in steps():
        model(torch.rand(64, 600, device="cuda")).square().mean().backward()
        updated = velocity * 0.9 + model.weight.grad * 0.1  # LEAK
        updated.previous = velocity  # HELD
        velocity = updated
        with torch.no_grad():
            model.weight -= 0.01 * velocity
        optimizer.step()
        model.zero_grad()


main()
