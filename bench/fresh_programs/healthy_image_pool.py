"""CycleGAN's pool of 80 images, into which an image comes in every second step until it is full."""

import random

import torch
from loop import steps
from torch import nn

TRUTH = None


class ImagePool:
    def __init__(self, size):
        self.size, self.images = size, []

    def query(self, image):
        if len(self.images) < self.size:
            self.images.append(image)
            return image
        if random.random() < 0.5:
            place = random.randrange(self.size)
            image, self.images[place] = self.images[place], image
        return image


random.seed(8)
pool = ImagePool(80)
generator, critic = nn.Conv2d(3, 3, 3, padding=1).cuda(), nn.Conv2d(3, 1, 3).cuda()
optimizer = torch.optim.Adam([*generator.parameters(), *critic.parameters()])
for step in steps():
    fake = generator(torch.rand(4, 3, 160, 160, device="cuda"))
    if step % 2 == 0:
        critic(pool.query(fake.detach())).mean().backward()
    critic(fake).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
