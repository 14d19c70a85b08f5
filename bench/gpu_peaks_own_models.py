"""Models as people write them by hand, for bench/gpu_peaks_heldout.py: `forward(**batch)` returns the loss.

`MODELS` makes them by name, `batch` their inputs. A GAN has a loss for each of its two optimizers instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 16000
CLASSES = 21
FRAMES = 16
"""Of a video."""
NOISE = 100
FEATURES = 24
"""Categorical ones of a recommender, each with rows of its own."""
ROWS = 40_000


def _token_loss(scores: Any, labels: Any) -> Any:
    return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))


class TranslationTransformer(nn.Module):  # type: ignore[misc]  # torch has no types where mypy runs
    def __init__(self, width: int = 512, heads: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.transformer = nn.Transformer(width, heads, layers, layers, 4 * width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Any, labels: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(labels.shape[1], device=labels.device)
        decoded = self.transformer(self.embedding(tokens), self.embedding(labels), tgt_mask=mask, tgt_is_causal=True)
        return _token_loss(self.head(decoded), labels)


def _twice(inner: int, outer: int) -> Any:
    layers: list[Any] = []
    for channels in (inner, outer):
        layers += [nn.Conv2d(channels, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):  # type: ignore[misc]
    def __init__(self, widths: tuple[int, ...] = (48, 96, 192, 384)) -> None:
        super().__init__()
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip((3, *widths), widths, strict=False))
        self.widen = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths, widths[1:], strict=False)
        )
        self.up = nn.ModuleList(_twice(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(widths[0], CLASSES, 1)

    def forward(self, pictures: Any, labels: Any) -> Any:
        kept = []
        for level, block in enumerate(self.down):
            pictures = block(functional.max_pool2d(pictures, 2) if level else pictures)
            kept.append(pictures)
        for level in reversed(range(len(self.up))):
            pictures = self.up[level](torch.cat([kept[level], self.widen[level](pictures)], dim=1))
        return functional.cross_entropy(self.head(pictures), labels)


class NoisyBlock(nn.Module):  # type: ignore[misc]
    """Residual block of a diffusion model, told the time, with attention over the picture."""

    def __init__(self, inner: int, outer: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.GroupNorm(8, inner), nn.GroupNorm(8, outer), nn.GroupNorm(8, outer)))
        self.first = nn.Conv2d(inner, outer, 3, padding=1)
        self.second = nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(256, outer)
        self.past = nn.Conv2d(inner, outer, 1)
        self.attention = nn.MultiheadAttention(outer, heads, batch_first=True)

    def forward(self, value: Any, time: Any) -> Any:
        inside = self.first(functional.silu(self.norms[0](value))) + self.time(time)[:, :, None, None]
        value = self.second(functional.silu(self.norms[1](inside))) + self.past(value)
        rows = self.norms[2](value).flatten(2).transpose(1, 2)
        seen, _ = self.attention(rows, rows, rows, need_weights=False)
        return value + seen.transpose(1, 2).reshape(value.shape)


class DiffusionUNet(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 256), nn.SiLU(), nn.Linear(256, 256))
        self.inlet = nn.Conv2d(3, 64, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList((NoisyBlock(64, 128, 4), NoisyBlock(128, 256, 4), NoisyBlock(384, 128, 4)))
        self.outlet = nn.Conv2d(128, 3, 3, padding=1)

    def forward(self, pictures: Any, noise: Any, time: Any) -> Any:
        told = self.time(time[:, None])
        noisy = pictures * (1 - time)[:, None, None, None] + noise * time[:, None, None, None]
        shallow = self.blocks[0](self.inlet(noisy), told)
        deep = self.blocks[1](functional.avg_pool2d(shallow, 2), told)
        merged = torch.cat([functional.interpolate(deep, scale_factor=2.0), shallow], dim=1)
        found = functional.interpolate(self.blocks[2](merged, told), scale_factor=2.0, mode="bilinear")
        return functional.mse_loss(self.outlet(found), noise)


class TimedBlock(nn.Module):  # type: ignore[misc]
    """Residual block of a denoising U-Net: norm, SiLU, convolution, told the time between the two."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.GroupNorm(32, inner), nn.GroupNorm(32, outer)))
        self.first = nn.Conv2d(inner, outer, 3, padding=1)
        self.second = nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(512, outer)
        self.past = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()
        self.dropout = nn.Dropout(0.1)

    def forward(self, value: Any, time: Any) -> Any:
        inside = self.first(functional.silu(self.norms[0](value)))
        inside = inside + self.time(functional.silu(time))[:, :, None, None]
        return self.past(value) + self.second(self.dropout(functional.silu(self.norms[1](inside))))


class PictureAttention(nn.Module):  # type: ignore[misc]
    """Attention over the pixels, by ``scaled_dot_product_attention`` or by hand."""

    def __init__(self, width: int, heads: int, *, by_hand: bool) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.inlet = nn.Conv2d(width, 3 * width, 1)
        self.outlet = nn.Conv2d(width, width, 1)
        self._heads, self._by_hand = heads, by_hand

    def forward(self, value: Any) -> Any:
        count, width, height, length = value.shape
        parts = self.inlet(self.norm(value)).reshape(count, 3, self._heads, width // self._heads, height * length)
        query, key, content = parts.transpose(3, 4).unbind(1)
        if self._by_hand:
            scores = (query @ key.transpose(-2, -1)) * query.shape[-1] ** -0.5
            seen = scores.softmax(dim=-1) @ content
        else:
            seen = functional.scaled_dot_product_attention(query, key, content)
        return value + self.outlet(seen.transpose(2, 3).reshape(value.shape))


class DenoisingUNet(nn.Module):  # type: ignore[misc]
    """Ho et al. 2020, as trained by Nichol and Dhariwal 2021: what is kept on the way down is joined on the way up."""

    def __init__(
        self, width: int = 128, multiples: tuple[int, ...] = (1, 2, 2, 2), blocks: int = 2,
        attention: tuple[int, ...] = (2,), heads: int = 4, by_hand: bool = False, channels: int = 3,
    ) -> None:  # fmt: skip
        super().__init__()
        self._width = width
        self.time = nn.Sequential(nn.Linear(width, 512), nn.SiLU(), nn.Linear(512, 512))
        self.inlet = nn.Conv2d(channels, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        inner, kept = width, [width]
        for level, multiple in enumerate(multiples):
            for _ in range(blocks):
                attends = PictureAttention(multiple * width, heads, by_hand=by_hand) if level in attention else None
                self.down.append(nn.ModuleList([TimedBlock(inner, multiple * width), attends or nn.Identity()]))
                inner = multiple * width
                kept.append(inner)
            if level + 1 < len(multiples):
                self.down.append(nn.ModuleList([nn.Conv2d(inner, inner, 3, stride=2, padding=1)]))
                kept.append(inner)
        self.middle = nn.ModuleList((TimedBlock(inner, inner), TimedBlock(inner, inner)))
        self.between = PictureAttention(inner, heads, by_hand=by_hand)
        for level, multiple in reversed(list(enumerate(multiples))):
            for _ in range(blocks + 1):
                attends = PictureAttention(multiple * width, heads, by_hand=by_hand) if level in attention else None
                block = TimedBlock(inner + kept.pop(), multiple * width)
                self.up.append(nn.ModuleList([block, attends or nn.Identity()]))
                inner = multiple * width
            if level:
                self.up.append(nn.ModuleList([nn.Conv2d(inner, inner, 3, padding=1)]))
        self.outlet = nn.Sequential(nn.GroupNorm(32, inner), nn.SiLU(), nn.Conv2d(inner, channels, 3, padding=1))

    def forward(self, pictures: Any, noise: Any, time: Any) -> Any:
        share = time[:, None, None, None]
        value = self.inlet(pictures * (1 - share).sqrt() + noise * share.sqrt())
        told = self.time(self._waves(time))
        kept = [value]
        for layers in self.down:
            value = layers[0](value) if len(layers) == 1 else layers[1](layers[0](value, told))
            kept.append(value)
        value = self.middle[1](self.between(self.middle[0](value, told)), told)
        for layers in self.up:
            if len(layers) == 1:
                value = layers[0](functional.interpolate(value, scale_factor=2.0, mode="nearest"))
            else:
                value = layers[1](layers[0](torch.cat([value, kept.pop()], dim=1), told))
        return functional.mse_loss(self.outlet(value).float(), noise)

    def _waves(self, time: Any) -> Any:
        rates = torch.exp(torch.arange(self._width // 2, device=time.device) * (-9.21 / (self._width // 2)))
        angles = 1000 * time[:, None] * rates
        return torch.cat([angles.cos(), angles.sin()], dim=-1)


class LstmLanguageModel(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Any, labels: Any) -> Any:
        return _token_loss(self.head(self.lstm(self.embedding(tokens))[0]), labels)


class GruTagger(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.gru = nn.GRU(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, tokens: Any, labels: Any) -> Any:
        return _token_loss(self.head(self.gru(self.embedding(tokens))[0]), labels % CLASSES)


class Adversaries(nn.Module):  # type: ignore[misc]
    """A DCGAN's generator and discriminator for pictures of 64 x 64."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        up: list[Any] = []
        down: list[Any] = []
        for inner, outer in ((NOISE, 8 * width), (8 * width, 4 * width), (4 * width, 2 * width), (2 * width, width)):
            stride, padding = (1, 0) if inner == NOISE else (2, 1)
            up += [nn.ConvTranspose2d(inner, outer, 4, stride, padding, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
        for inner, outer in ((3, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 8 * width)):
            down += [nn.Conv2d(inner, outer, 4, 2, 1, bias=False), nn.BatchNorm2d(outer), nn.LeakyReLU(0.2)]
        self.generator = nn.Sequential(*up, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())
        self.discriminator = nn.Sequential(*down, nn.Conv2d(8 * width, 1, 4), nn.Flatten(0))

    def discriminator_loss(self, pictures: Any, noise: Any) -> Any:
        real = self.discriminator(pictures)
        made = self.discriminator(self.generator(noise).detach())
        return self._loss(real, 1.0) + self._loss(made, 0.0)

    def generator_loss(self, noise: Any) -> Any:
        return self._loss(self.discriminator(self.generator(noise)), 1.0)

    @staticmethod
    def _loss(scores: Any, wanted: float) -> Any:
        return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, wanted))


class WaveformNet(nn.Module):  # type: ignore[misc]
    """Convolutions over sound."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[Any] = []
        for inner, outer, kernel, stride in ((1, 64, 80, 4), (64, 128, 9, 2), (128, 256, 9, 4), (256, 512, 9, 4)):
            layers += [nn.Conv1d(inner, outer, kernel, stride), nn.BatchNorm1d(outer), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(512, CLASSES)

    def forward(self, sounds: Any, labels: Any) -> Any:
        return functional.cross_entropy(self.head(self.layers(sounds).mean(dim=2)), labels)


class VideoNet(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        layers: list[Any] = []
        for inner, outer in ((3, 32), (32, 64), (64, 128), (128, 256)):
            layers += [nn.Conv3d(inner, outer, 3, padding=1), nn.BatchNorm3d(outer), nn.ReLU(), nn.MaxPool3d(2)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(256, CLASSES)

    def forward(self, videos: Any, labels: Any) -> Any:
        return functional.cross_entropy(self.head(self.layers(videos).mean(dim=(2, 3, 4))), labels)


class Recommender(nn.Module):  # type: ignore[misc]
    """Embedding bags and a multilayer perceptron, as DLRM."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(ROWS, width, mode="sum") for _ in range(FEATURES))
        inner = (FEATURES + 1) * width
        self.dense = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(inner, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, numbers: Any, categories: Any, labels: Any) -> Any:
        parts = [self.dense(numbers)] + [bag(categories[number]) for number, bag in enumerate(self.bags)]
        return functional.binary_cross_entropy_with_logits(self.head(torch.cat(parts, dim=1))[:, 0], labels)


class RoutedExperts(nn.Module):  # type: ignore[misc]
    """A mixture of experts that picks every expert's tokens by index: how many depends on the values."""

    def __init__(self, width: int = 512, experts: int = 8, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.routers = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.experts = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                for _ in range(experts)
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Any, labels: Any) -> Any:
        value = self.embedding(tokens).flatten(0, 1)
        for router, experts in zip(self.routers, self.experts, strict=True):
            weights, chosen = router(value).softmax(dim=-1).topk(2, dim=-1)
            result = torch.zeros_like(value)
            for number, expert in enumerate(experts):
                rows, places = torch.where(chosen == number)
                result.index_add_(0, rows, expert(value[rows]) * weights[rows, places, None])
            value = value + result
        return _token_loss(self.head(value), labels)


MODELS: Mapping[str, Callable[[], Any]] = {
    "translation_transformer": TranslationTransformer,
    "unet": UNet,
    "diffusion_unet": DiffusionUNet,
    "denoising_unet": DenoisingUNet,
    "lstm_language_model": LstmLanguageModel,
    "gru_tagger": GruTagger,
    "gan": Adversaries,
    "waveform_net": WaveformNet,
    "video_net": VideoNet,
    "recommender": Recommender,
    "routed_experts": RoutedExperts,
}


def batch(job: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the model's `forward` (for the GAN: of its losses), on the GPU."""
    count, name, side = job["b"], job["name"], job.get("side", 0)
    pictures = {"pictures": _floats(count, 3, side, side)}
    if name == "unet":
        return {**pictures, "labels": _integers(CLASSES, count, side, side)}
    if name in ("diffusion_unet", "denoising_unet"):
        return {**pictures, "noise": _floats(count, 3, side, side), "time": torch.rand(count, device="cuda")}
    if name == "gan":
        return {**pictures, "noise": _floats(count, NOISE, 1, 1)}
    if name == "waveform_net":
        return {"sounds": _floats(count, 1, job["samples"]), "labels": _integers(CLASSES, count)}
    if name == "video_net":
        return {"videos": _floats(count, 3, FRAMES, side, side), "labels": _integers(CLASSES, count)}
    if name == "recommender":
        categories = _integers(ROWS, FEATURES, count, 4)
        return {"numbers": _floats(count, 13), "categories": categories, "labels": torch.rand(count, device="cuda")}
    return {"tokens": _integers(VOCABULARY, count, job["t"]), "labels": _integers(VOCABULARY, count, job["t"])}


def _floats(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda")


def _integers(below: int, *shape: int) -> Any:
    return torch.randint(0, below, shape, device="cuda")
