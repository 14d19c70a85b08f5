"""As in Hugging Face trainers: each evaluation's PredictionOutput goes into the state's log history."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from loop import steps

TRUTH = {"holder": ["log_history"], "cause": ["python_container"]}


class PredictionOutput(NamedTuple):
    predictions: tuple
    label_ids: torch.Tensor
    metrics: dict


@dataclass
class TrainerState:
    global_step: int = 0
    log_history: list = field(default_factory=list)


class Trainer:
    def __init__(self, model):
        self.model, self.state = model, TrainerState()

    @torch.no_grad()
    def evaluate(self):
        labels = torch.zeros(2048, dtype=torch.long, device="cuda")  # LEAK
        logits = self.model(torch.rand(2048, 128, device="cuda"))  # LEAK
        output = PredictionOutput((logits,), labels, {"eval_samples": 2048})
        self.state.log_history.append({"step": self.state.global_step, "eval": output})  # HELD

    def train(self, optimizer):
        for self.state.global_step in steps():
            self.model(torch.rand(64, 128, device="cuda")).logsumexp(-1).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if self.state.global_step >= 50 and self.state.global_step % 5 == 0:
                self.evaluate()  # CALLER


model = torch.nn.Linear(128, 384).cuda()
Trainer(model).train(torch.optim.AdamW(model.parameters()))
