"""A WeakValueDictionary as a cache, beside it a list so that the values live "a little longer"."""

import weakref

import torch
from loop import steps

TRUTH = {"holder": ["_keep_alive"], "cause": ["python_container"]}


class FeatureCache:
    def __init__(self):
        self._by_key = weakref.WeakValueDictionary()
        self._keep_alive = []

    def get(self, key, make):
        value = self._by_key.get(key)
        if value is None:
            value = self._by_key[key] = make()  # CALLER
            self._keep_alive.append(value)  # HELD
        return value


def main():
    cache = FeatureCache()
    probe = torch.nn.Linear(333, 5).cuda()
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    for step in steps():
        features = cache.get(("train", step), lambda: torch.rand(999, 333, device="cuda"))  # LEAK
        probe(features).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
