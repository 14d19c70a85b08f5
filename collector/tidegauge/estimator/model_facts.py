"""Finds facts about a model and its step from outside: repeated blocks, batch, sequence, autocast. Beside torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import nn

from tidegauge.estimator.closed_forms import ModelFacts
from tidegauge.estimator.recording import EstimateError

Step = Callable[[], object]
Build = Callable[[], tuple[Any, Any, Step]]
"""FUNCTION, with its arguments bound: makes the model and the optimizer and returns them with the training step."""

STATES_PER_OPTIMIZER = {
    "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "Adagrad": 1, "Lion": 1,
}  # fmt: skip
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The layers that a deep model repeats: transformer blocks, residual blocks; empty where there are none.

    Of the classes that occur more than once in containers, the one that has most parameters; a block inside another
    one does not count.
    """
    by_class: dict[type, dict[int, nn.Module]] = {}
    for container in model.modules():
        if isinstance(container, _CONTAINERS):
            for child in container.children():
                if type(child) not in _CONTAINERS and next(child.children(), None) is not None:
                    by_class.setdefault(type(child), {})[id(child)] = child
    several = [list(blocks.values()) for blocks in by_class.values() if len(blocks) > 1]
    blocks = max(several, key=_numbers, default=[])
    inner = {id(module) for block in blocks for module in block.modules() if module is not block}
    return [block for block in blocks if id(block) not in inner]


def _numbers(blocks: list[nn.Module]) -> int:
    return sum(parameter.numel() for block in blocks for parameter in block.parameters())


def states_kept(optimizer: Any) -> int:
    """Numbers that an optimizer keeps for each parameter; 0 for one that is not known. SGD keeps one with momentum."""
    name = type(optimizer).__name__
    if name in ("SGD", "RMSprop"):
        has_momentum = any(group.get("momentum") for group in optimizer.param_groups)
        return int(has_momentum) + (name == "RMSprop")
    return STATES_PER_OPTIMIZER.get(name, 0)


def checked(build: Callable[[], Any]) -> Build:
    """FUNCTION, with words for people where it does not return what the wrappers around it take apart."""

    def build_checked() -> tuple[Any, Any, Step]:
        built = build()
        if not isinstance(built, tuple) or len(built) != 3 or not isinstance(built[0], nn.Module):
            kinds = ", ".join(type(part).__name__ for part in (built if isinstance(built, tuple) else (built,)))
            raise EstimateError(
                f"FUNCTION must return (model, optimizer, step), with model a torch.nn.Module; it returned ({kinds})"
            )
        if not callable(built[2]):
            raise EstimateError("the third value that FUNCTION returns must be callable: it runs one training step")
        return built

    return build_checked


class FactFinder:
    """Wraps FUNCTION and observes it: ``facts`` is there once a step has run."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self.facts: Optional[ModelFacts] = None

    def __call__(self) -> tuple[Any, Any, Step]:
        model, optimizer, step = self._build()
        self.facts = _facts_at_rest(model, optimizer)
        model.register_forward_pre_hook(self._on_forward)
        embedding = next((part for part in model.modules() if isinstance(part, nn.Embedding)), None)
        if embedding is not None:
            embedding.register_forward_pre_hook(self._on_tokens)
        return model, optimizer, step

    def _on_forward(self, _model: nn.Module, args: tuple[Any, ...]) -> None:
        assert self.facts is not None
        # A first argument is a batch of images or tokens; models called by keyword alone say theirs by the tokens.
        batch = args[0].shape[0] if args and isinstance(args[0], torch.Tensor) and args[0].dim() else self.facts.batch
        self.facts = self.facts._replace(autocast=self.facts.autocast or bool(torch.is_autocast_enabled()), batch=batch)

    def _on_tokens(self, _embedding: nn.Module, args: tuple[Any, ...]) -> None:
        assert self.facts is not None
        if args and isinstance(args[0], torch.Tensor) and args[0].dim() == 2 and self.facts.sequence is None:
            self.facts = self.facts._replace(batch=args[0].shape[0], sequence=args[0].shape[1])


def optimizers_of(optimizer: Any) -> list[Any]:
    """FUNCTION may return none, one or several."""
    return list(optimizer) if isinstance(optimizer, (list, tuple)) else [] if optimizer is None else [optimizer]


def _facts_at_rest(model: nn.Module, optimizer: Any) -> ModelFacts:
    optimizers = optimizers_of(optimizer)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    trained = [getattr(parameter, "_local_tensor", parameter) for parameter in trained]  # this rank's shard
    numbers = sum(parameter.numel() for parameter in trained)
    config = getattr(model, "config", None)
    embedding = next((part for part in model.modules() if isinstance(part, nn.Embedding)), None)
    attention = next((part for part in model.modules() if isinstance(part, nn.MultiheadAttention)), None)
    return ModelFacts(
        parameters=numbers,
        bytes_per_parameter=sum(part.numel() * part.element_size() for part in trained) / max(1, numbers),
        optimizer=type(optimizers[0]).__name__ if optimizers else "no optimizer",
        states_kept=max(map(states_kept, optimizers), default=0),
        autocast=False,
        checkpointed=is_checkpointed(model),
        layers=len(repeated_blocks(model)) or None,
        hidden=_number(config, "hidden_size", "n_embd", "d_model") or _number(embedding, "embedding_dim"),
        heads=_number(config, "num_attention_heads", "n_head", "num_heads") or _number(attention, "num_heads"),
    )


def is_checkpointed(model: nn.Module) -> bool:
    """Whether transformers' switch for activation checkpointing is on, or PyTorch's wrapper is around a part."""
    return any(
        bool(getattr(part, "gradient_checkpointing", False)) or type(part).__name__ == "CheckpointWrapper"
        for part in model.modules()
    )


def _number(config: object, *names: str) -> Optional[int]:
    """The first of ``names`` that a configuration or a module has as a whole number."""
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)
