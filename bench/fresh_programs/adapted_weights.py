"""As in MAML code: weights adapted with create_graph=True for meta-evaluation are kept by task, with their graphs."""

import torch
from loop import steps

TRUTH = {"holder": ["adapted"], "cause": ["retained_graph"]}


def predict(weights, x):
    return torch.tanh(x @ weights[0]) @ weights[1]  # LEAK


def adapt(weights, x, y):
    for _ in range(2):
        loss = (predict(weights, x) - y).square().mean()  # LEAK  # CALLER
        gradients = torch.autograd.grad(loss, weights, create_graph=True)  # LEAK
        weights = [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]  # LEAK  # CALLER
    return weights


class MetaLearner:
    def __init__(self):
        self.weights = [torch.rand(shape, device="cuda", requires_grad=True) for shape in ((64, 256), (256, 4))]
        self.optimizer = torch.optim.Adam(self.weights)
        self.adapted = {}

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        (predict(adapt(self.weights, x, y), x) - y).square().mean().backward()
        self.optimizer.step()

    def evaluate(self, task, x, y):
        self.adapted[task] = adapt(self.weights, x, y)  # CALLER  # HELD


learner = MetaLearner()
for step in steps():
    x, y = torch.rand(100, 64, device="cuda"), torch.rand(100, 4, device="cuda")  # LEAK
    learner.train_step(x, y)
    if step % 2 == 0:
        learner.evaluate(f"task{step}", x, y)  # CALLER
