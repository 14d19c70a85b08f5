"""An LRU cache of its own, bounded by bytes, which it counts with sys.getsizeof."""

import sys
from collections import OrderedDict

import torch
from loop import steps

TRUTH = {"holder": ["_entries"], "cause": ["python_container"]}


class LruCache:
    def __init__(self, max_bytes):
        self.max_bytes = max_bytes
        self._entries = OrderedDict()

    def put(self, key, tensor):
        self._entries[key] = tensor  # HELD
        self._entries.move_to_end(key)
        while sum(map(sys.getsizeof, self._entries.values())) > self.max_bytes:  # of the Python object alone
            self._entries.popitem(last=False)


def main():
    cache = LruCache(max_bytes=64 << 20)
    model = torch.nn.Linear(640, 10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps():
        spectrum = torch.rand(512, 640, device="cuda").cumsum(-1)  # LEAK
        cache.put(("clip", step), spectrum)
        model(spectrum).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
