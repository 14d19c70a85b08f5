"""Uploads run as asyncio tasks that wait for an event which nobody sets."""

import asyncio

import torch
from loop import steps

TRUTH = {"holder": ["uploads"], "cause": ["python_container"]}


class Uploader:
    def __init__(self):
        self.uploads = set()
        self.allowed = asyncio.Event()

    def start(self, tensor):
        self.uploads.add(asyncio.create_task(self._upload(tensor)))  # HELD

    async def _upload(self, tensor):
        await self.allowed.wait()
        tensor.cpu()


async def main():
    uploader = Uploader()
    model = torch.nn.Linear(256, 900).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in steps():
        out = model(torch.rand(256, 256, device="cuda"))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        uploader.start(out.detach() + 1.0)  # LEAK
        await asyncio.sleep(0)


asyncio.run(main())
