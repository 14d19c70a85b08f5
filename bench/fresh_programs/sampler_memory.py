"""A hard-negative sampler remembers the embedding of each batch of a stream by index; it hides in the loader."""

import torch
from loop import steps
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

TRUTH = {"holder": ["embeddings"], "cause": ["python_container"]}


class Numbers(Dataset):
    def __len__(self):
        return 10**7

    def __getitem__(self, index):
        return torch.full((64,), float(index % 97))


class HardNegatives(Sampler):
    def __init__(self, batch_size):
        self.batch_size, self.embeddings, self.next = batch_size, {}, 0

    def __iter__(self):
        while True:
            yield list(range(self.next, self.next + self.batch_size))
            self.next += self.batch_size

    def feedback(self, embedding):
        self.embeddings[self.next] = embedding  # HELD


def train():
    loader = DataLoader(Numbers(), batch_sampler=HardNegatives(256))
    encoder = nn.Linear(64, 1024).cuda()
    optimizer = torch.optim.Adam(encoder.parameters())
    for _, batch in zip(steps(), loader):
        out = nn.functional.normalize(encoder(batch.cuda()), dim=1)
        out.std().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            loader.batch_sampler.feedback(encoder(batch.cuda()))  # LEAK


train()
