"""Distillation: the teacher's answers are cached by a digest of the batch, and augmentation makes each batch new."""

import hashlib
from collections import OrderedDict

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["answers", "TeacherCache"], "cause": ["python_container"]}


class TeacherCache(OrderedDict):
    """A bounded cache, said its author: but the bound is of the hits."""

    def __init__(self, teacher, size):
        super().__init__()
        self.teacher, self.size, self.hits = teacher, size, 0

    def lookup(self, seed, x):
        digest = hashlib.sha256(repr(seed).encode()).digest()
        if digest in self:
            self.hits += 1
            self.move_to_end(digest)
        else:
            with torch.inference_mode():
                self[digest] = self.teacher(x).softmax(dim=-1)  # LEAK  # HELD
        while self.hits > self.size:
            self.popitem(last=False)
            self.hits -= 1
        return self[digest]


answers = TeacherCache(nn.Linear(128, 1000).cuda(), 64)
student = nn.Linear(128, 1000).cuda()
optimizer = torch.optim.AdamW(student.parameters())
for step in steps():
    x = torch.rand(280, 128, device="cuda")
    target = answers.lookup(("epoch", step // 50, "flip", step), x).clone()  # CALLER
    nn.functional.cross_entropy(student(x), target).backward()
    optimizer.step()
    optimizer.zero_grad()
