"""An ordinary DistributedDataParallel script; nothing in it knows that the GPUs are fake. Writes what each rank saw."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)

torch.manual_seed(rank)  # ranks differ until DDP makes them equal
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
weights = encoder.layers[0].linear1.weight.detach().clone()
model = nn.parallel.DistributedDataParallel(encoder.to(device), device_ids=[local_rank])
synchronised = encoder.layers[0].linear1.weight.detach().cpu()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
allocated = []
for _ in range(4):
    loss = model(torch.randn(4, 16, 64).to(device)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    allocated.append(torch.cuda.memory_allocated())

summed = torch.arange(4.0).add(rank).to(device)
dist.all_reduce(summed)
sent = torch.full((3,), float(rank + 5)).to(device)
dist.broadcast(sent, 0)
gathered = [torch.zeros(2, device=device) for _ in range(2)]
dist.all_gather(gathered, torch.tensor([rank, rank + 10.0]).to(device))
seen = {
    "device": torch.cuda.current_device(),
    "weights_before": weights.flatten()[:4].tolist(),
    "weights_in_ddp": synchronised.flatten()[:4].tolist(),
    "all_reduce": summed.tolist(),
    "broadcast": sent.tolist(),
    "all_gather": [part.tolist() for part in gathered],
    "allocated_bytes": allocated,
    "reserved_bytes": torch.cuda.memory_reserved(),
    "taken_bytes": [torch.cuda.mem_get_info(index)[1] - torch.cuda.mem_get_info(index)[0] for index in (0, 1)],
}
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(seen))
# As a job ought to. A thread of gloo's destroys its last work a moment later all the same: the end of a process on the
# rig waits for that (fakegpu/inside/rig_settles.py).
dist.barrier()
del model
dist.destroy_process_group()
