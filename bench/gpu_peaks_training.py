"""Builds a job of bench/gpu_peaks_models.py or gpu_peaks_heldout.py on the GPU and takes its steps.

With torch, transformers, torchvision.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import gpu_peaks_own_models
import torch

Mark = Callable[[str], object]
"""Told the name of a phase as it begins: forward, backward or optimizer."""

MEL_FRAMES = 3000
"""What Whisper's encoder demands: 30 s of sound."""
AUDIO_BANDS = 80

OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "adamw": ("AdamW", {"lr": 1e-4}),
    "adamw_fused": ("AdamW", {"lr": 1e-4, "fused": True}),
    "adamw_loop": ("AdamW", {"lr": 1e-4, "foreach": False}),
    "adamw_amsgrad": ("AdamW", {"lr": 1e-4, "amsgrad": True}),
    "adam": ("Adam", {"lr": 1e-4}),
    "adamax": ("Adamax", {"lr": 1e-4}),
    "nadam": ("NAdam", {"lr": 1e-4}),
    "radam": ("RAdam", {"lr": 1e-4}),
    "adadelta": ("Adadelta", {}),
    "adafactor": ("Adafactor", {}),
    "adagrad": ("Adagrad", {}),
    "rmsprop": ("RMSprop", {"lr": 1e-4}),
    "sgd": ("SGD", {"lr": 1e-3, "momentum": 0.9}),
    "sgd_plain": ("SGD", {"lr": 1e-3}),
}


def load_modules(job: Mapping[str, Any]) -> None:
    """Import what the job needs without touching CUDA, so that a process forked later need not."""
    if job["fam"] in ("tv", "own"):
        importlib.import_module("torchvision")
        return
    transformers = importlib.import_module("transformers")
    getattr(transformers, job["config"])
    getattr(transformers, job["model"])


def build_model(job: Mapping[str, Any]) -> Any:
    """The job's model with random weights, on the current default device, in train mode."""
    if job["fam"] == "own":
        return gpu_peaks_own_models.MODELS[job["name"]](**job.get("family_config", {}))
    if job["fam"] == "tv":
        models = importlib.import_module("torchvision").models
        holder = models.segmentation if _labels_points(job) else models
        return getattr(holder, job["name"])(**job["family_config"])
    transformers = importlib.import_module("transformers")
    config = getattr(transformers, job["config"])(**job["family_config"])
    if "attention" in job:
        config._attn_implementation = job["attention"]
    return getattr(transformers, job["model"])(config).train()


def _labels_points(job: Mapping[str, Any]) -> bool:
    """Whether the model says what every point of a picture is."""
    return job.get("inputs") in ("labelled_picture", "labelled_image") or "deeplab" in job.get("name", "")


class Training:
    """A job on the GPU: model, optimizer and one batch, used in every step."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        torch.manual_seed(0)
        self._job = job
        self.model = build_model(job).cuda()
        if "dtype" in job:
            self.model.to(getattr(torch, job["dtype"]))
        if job.get("channels_last"):
            self.model.to(memory_format=torch.channels_last)
        if job.get("ckpt"):
            self.model.gradient_checkpointing_enable()
        name, options = OPTIMIZERS[job["opt"]]
        self.optimizer = getattr(torch.optim, name)(self.model.parameters(), **options)
        self._scaler = torch.amp.GradScaler("cuda") if job.get("scaler") else None
        self._batch = self._make_batch()
        self._output: Any = None
        self._loss: Any = None

    @property
    def parameters(self) -> int:
        """Number of parameters, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def step(self, mark: Mark) -> None:
        """One optimizer step, with as many forward and backward passes as the job accumulates."""
        first = self._job.get("zero_grad") == "before_forward"
        if first:
            self.optimizer.zero_grad(set_to_none=True)
        for part in range(self._job.get("accumulation", 1)):
            mark("forward")
            with self._autocast():
                self._loss = self._forward()
            if part == 0 and not first:
                self.optimizer.zero_grad(set_to_none=True)
            mark("backward")
            (self._scaler.scale(self._loss) if self._scaler else self._loss).backward()
        mark("optimizer")
        self._update()

    def _autocast(self) -> Any:
        if self._scaler:
            return torch.autocast("cuda", torch.float16)
        return torch.autocast("cuda", torch.bfloat16) if self._job.get("amp") else nullcontext()

    def _forward(self) -> Any:
        tells_loss = self._job["inputs"] == "own" or "labels" in self._batch
        output = self.model(**self._batch) if tells_loss else self._forward_without_labels()
        if self._job.get("keep_output"):
            self._output = output
        return output if torch.is_tensor(output) else output.loss

    def _forward_without_labels(self) -> Any:
        if self._job["inputs"] == "pairs":
            return self.model(**self._batch, return_loss=True)
        scores = self.model(self._batch["pictures"])
        if isinstance(scores, dict):
            scores = scores["out"]
        return torch.nn.functional.cross_entropy(scores, self._batch["classes"])

    def _update(self) -> None:
        if self._scaler and self._job.get("clip"):
            self._scaler.unscale_(self.optimizer)
        if self._job.get("clip"):
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if self._scaler:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        else:
            self.optimizer.step()

    def _make_batch(self) -> dict[str, Any]:
        job, count = self._job, self._job["b"]
        kind = job["inputs"]
        dtype = getattr(torch, job.get("dtype", "float32"))
        if kind in ("tokens", "seq2seq"):
            tokens = self._tokens(count, job["t"])
            return {"input_ids": tokens, "labels": tokens}
        if kind == "audio":
            sound = torch.randn(count, AUDIO_BANDS, MEL_FRAMES, device="cuda", dtype=dtype)
            return {"input_features": sound, "labels": self._tokens(count, job["t"])}
        if kind == "own":
            return gpu_peaks_own_models.batch(job)
        if kind == "sound":
            sound = torch.randn(count, job["samples"], device="cuda", dtype=dtype)
            return {"input_values": sound, "labels": torch.randint(0, 12, (count,), device="cuda")}
        if kind == "pairs":
            pictures = torch.randn(count, 3, 224, 224, device="cuda", dtype=dtype)
            return {"input_ids": self._tokens(count, job["t"]), "pixel_values": pictures}
        side = job.get("side", 224)
        pictures = torch.randn(count, 3, side, side, device="cuda", dtype=dtype)
        if job.get("channels_last"):
            pictures = pictures.contiguous(memory_format=torch.channels_last)
        shape = (count, side, side) if _labels_points(job) else (count,)
        classes = torch.randint(0, 21 if _labels_points(job) else 1000, shape, device="cuda")
        if kind in ("image", "labelled_image"):
            return {"pixel_values": pictures, "labels": classes}
        return {"pictures": pictures, "classes": classes}

    @staticmethod
    def _tokens(count: int, length: int) -> Any:
        # Below every vocabulary used here. The last ones are special to some models (padding, end), so stay off them.
        return torch.randint(10, 30000, (count, length), device="cuda")


class GanTraining(Training):
    """Two optimizers, one after the other, as in the DCGAN example of PyTorch."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        super().__init__(job)
        name, options = OPTIMIZERS[job["opt"]]
        parts = (self.model.discriminator, self.model.generator)
        self.optimizer = [getattr(torch.optim, name)(part.parameters(), **options) for part in parts]

    def step(self, mark: Mark) -> None:
        losses: tuple[Callable[[], Any], ...] = (
            lambda: self.model.discriminator_loss(self._batch["pictures"], self._batch["noise"]),
            lambda: self.model.generator_loss(self._batch["noise"]),
        )
        for loss_of, optimizer in zip(losses, self.optimizer, strict=True):
            mark("forward")
            with self._autocast():
                self._loss = loss_of()
            optimizer.zero_grad(set_to_none=True)
            mark("backward")
            self._loss.backward()
            mark("optimizer")
            optimizer.step()


def training_of(job: Mapping[str, Any]) -> Training:
    """The job, ready for its first step."""
    return (GanTraining if job.get("name") == "gan" else Training)(job)
