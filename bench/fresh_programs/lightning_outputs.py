"""A module in Lightning's style: outputs of the steps are kept for the end of an epoch that has another name."""

import torch
from loop import steps
from torch import nn

TRUTH = {"holder": ["training_step_outputs"], "cause": ["python_container"]}


class LitClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512))
        self.training_step_outputs = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.mse_loss(logits, y)
        self.training_step_outputs.append({"preds": logits.detach().softmax(-1), "idx": batch_idx})  # LEAK  # HELD
        return loss

    def on_training_epoch_end(self):  # never called: the hook is on_train_epoch_end
        self.training_step_outputs.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Trainer:
    def fit(self, model):
        optimizer = model.configure_optimizers()
        for index in steps():
            batch = torch.rand(512, 256, device="cuda"), torch.rand(512, 512, device="cuda")
            loss = model.training_step(batch, index)  # CALLER
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if index % 20 == 19 and hasattr(model, "on_train_epoch_end"):
                model.on_train_epoch_end()


if __name__ == "__main__":
    Trainer().fit(LitClassifier().cuda())
