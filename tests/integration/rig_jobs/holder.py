"""Takes and returns device memory on command: one JSON list [verb, argument] a line in, one JSON object a line out.

Verbs: hold BYTES (a tensor), outside BYTES (cudaMalloc behind the allocator's back), drop (all of it), look.
"""

from __future__ import annotations

import json
import os
import sys

import rig_inside  # type: ignore[import-not-found]  # found on the job's PYTHONPATH
import torch

held: list[torch.Tensor] = []
outside: list[rig_inside.OutsideMemory] = []

for line in sys.stdin:
    verb, argument = json.loads(line)
    answer: dict[str, object] = {"pid": os.getpid()}
    try:
        if verb == "hold":
            held.append(torch.empty(argument, dtype=torch.uint8, device="cuda"))
        elif verb == "outside":
            outside.append(rig_inside.OutsideMemory(argument))
        elif verb == "drop":
            held.clear()
            torch.cuda.empty_cache()
            while outside:
                outside.pop().give_back()
    except torch.cuda.OutOfMemoryError as error:
        answer["out_of_memory"] = str(error)
    answer["reserved_bytes"] = torch.cuda.memory_reserved()
    answer["free_bytes"] = torch.cuda.mem_get_info()[0]
    answer["uuid"] = str(torch.cuda.get_device_properties(0).uuid)
    answer["device_count"] = torch.cuda.device_count()
    print(json.dumps(answer), flush=True)
