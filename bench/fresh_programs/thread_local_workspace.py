"""A pool's thread keeps workspaces in its thread-local storage, by batch number."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from loop import steps

TRUTH = {"holder": ["workspaces"], "cause": ["python_container"]}

local = threading.local()


def prepare(number):
    if not hasattr(local, "workspaces"):
        local.workspaces = {}
    workspace = torch.ones(480, 480, device="cuda")  # LEAK
    local.workspaces[number] = workspace  # HELD
    return workspace * 2


def main():
    model = torch.nn.Linear(480, 16).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
        for number in steps():
            batch = pool.submit(prepare, number).result()
            model(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


main()
