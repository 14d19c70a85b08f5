"""logging's own MemoryHandler, with a capacity that is never reached, and tensors as arguments."""

import logging
import logging.handlers

import torch
from loop import steps

TRUTH = {"holder": ["buffer"], "cause": ["python_container"]}

log = logging.getLogger("train")
log.setLevel(logging.DEBUG)
log.propagate = False
log.addHandler(logging.handlers.MemoryHandler(capacity=1_000_000, flushLevel=logging.CRITICAL))

model = torch.nn.Sequential(torch.nn.Linear(300, 600), torch.nn.GELU(), torch.nn.Linear(600, 600)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in steps():
    out = model(torch.rand(400, 300, device="cuda"))
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    confidence = out.detach().sigmoid()  # LEAK
    log.debug("step %d: confidence %s", step, confidence)  # HELD
