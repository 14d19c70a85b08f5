"""A small GPT whose training step can be run on a GPU, or estimated without one: both call the same function.

tidegauge estimate train.py:build                              # where does it fit, what would save memory
tidegauge estimate train.py:build --gpu l4                     # and the largest batch for one type
tidegauge estimate train.py:build --world-size 8 --strategy fsdp2
tidegauge estimate train.py:build_parallel --world-size 8      # sets up its ranks itself
python train.py                                                # trains
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

VOCABULARY = 32_000


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, hidden = x.shape
        shape = (batch, sequence, self.heads, hidden // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, sequence, hidden))
        return x + self.down(gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, hidden), nn.Embedding(sequence, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(
    batch_size: int = 8,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    sequence: int = 512,
    wrap: Callable[[nn.Module], Any] = lambda model: model,
) -> tuple[Any, torch.optim.Optimizer, Callable[[], object]]:
    """The model, the optimizer and one training step; made-up tokens of the right shape stand in for the data."""
    model = wrap(Gpt(layers, hidden, heads, sequence).cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step() -> float:
        tokens = torch.randint(0, VOCABULARY, (batch_size, sequence), device="cuda")
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return model, optimizer, step


def build_parallel(
    batch_size: int = 8, bucket_view: bool = False, **sizes: int
) -> tuple[Any, torch.optim.Optimizer, Callable[[], object]]:
    """The same for a rank of a data-parallel job, which sets itself up as it does under torchrun."""
    if not dist.is_initialized():
        dist.init_process_group()

    def wrap(model: nn.Module) -> Any:
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=bucket_view)

    return build(batch_size, wrap=wrap, **sizes)


if __name__ == "__main__":
    _, _, train = build()
    for number in range(100):
        print(number, train())
