"""A notebook's habit: a global variable for each step."""

import torch
from loop import steps

TRUTH = {"holder": ["features_"], "cause": ["python_container"]}

net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ELU()).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for i in steps():
    out = net(torch.rand(512, 256, device="cuda"))
    loss = out.square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
    globals()[f"features_{i}"] = out.detach() ** 2  # LEAK  # HELD
