"""As in task libraries that make a class for each task: functools.singledispatch knows every class ever registered."""

import functools

import torch
from loop import steps

TRUTH = {"holder": ["describe", "registry"], "cause": ["python_container", "closure"]}


class Task:
    prototypes = None


@functools.singledispatch
def describe(task):
    return type(task).__name__


def make_task(number, classes):
    prototypes = torch.rand(classes, 512, device="cuda")  # LEAK
    made = type(f"Task{number}", (Task,), {"prototypes": prototypes})
    describe.register(made, lambda task: f"{type(task).__name__} of {len(task.prototypes)}")  # HELD
    return made()


def main():
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    task = None
    for step in steps():
        if step % 5 == 0:
            task = make_task(step // 5, 1024)  # CALLER
            assert describe(task) == f"Task{step // 5} of 1024"
        (model(torch.rand(128, 512, device="cuda")) @ task.prototypes.T).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
