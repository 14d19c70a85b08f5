"""As in trainers with callbacks: from step 150 on each phase adds an EMA callback, and the last phase's one stays."""

import torch
from loop import steps

TRUTH = {"holder": ["callbacks", "shadow"], "cause": ["python_container"]}


class EmaCallback:
    def __init__(self, decay):
        self.decay = decay
        self.shadow = {}

    def on_fit_start(self, model):
        for name, parameter in model.named_parameters():
            self.shadow[name] = parameter.detach().clone()  # LEAK

    @torch.no_grad()
    def on_step_end(self, model):
        for name, parameter in model.named_parameters():
            self.shadow[name].lerp_(parameter, 1 - self.decay)


class Trainer:
    def __init__(self, model):
        self.model = model
        self.callbacks = []

    def begin_phase(self, decay):
        self.callbacks.append(EmaCallback(decay))  # HELD
        self.callbacks[-1].on_fit_start(self.model)  # CALLER

    def end_step(self):
        for callback in self.callbacks:
            callback.on_step_end(self.model)


trainer = Trainer(torch.nn.Linear(700, 700).cuda())
optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.01)
for step in steps():
    if step >= 150 and step % 5 == 0:
        trainer.begin_phase(decay=0.99)  # CALLER
    trainer.model(torch.rand(64, 700, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    trainer.end_step()
