"""Each evaluation subscribes its bound method to an event bus, which keeps the evaluation."""

import torch
from loop import steps

TRUTH = {"holder": ["subscribers"], "cause": ["python_container"]}


class EventBus:
    def __init__(self):
        self.subscribers = {"step_end": []}

    def subscribe(self, event, callback):
        self.subscribers[event].append(callback)  # HELD

    def publish(self, event, *args):
        for callback in self.subscribers[event][-3:]:
            callback(*args)


class Evaluation:
    def __init__(self, bus, logits):
        self.margin = logits - logits.mean(-1, keepdim=True)  # LEAK
        bus.subscribe("step_end", self.on_step_end)  # CALLER

    def on_step_end(self, step):
        self.seen = step


def main():
    bus = EventBus()
    model = torch.nn.Linear(200, 800).cuda()
    optimizer = torch.optim.RMSprop(model.parameters())
    for step in steps():
        out = model(torch.rand(350, 200, device="cuda"))
        out.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        Evaluation(bus, out.detach())  # CALLER
        bus.publish("step_end", step)


main()
