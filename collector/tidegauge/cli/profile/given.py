"""The arguments of ``tidegauge.profile()``: models and optimizers, and a word about what is neither."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegauge.probe.evidence.owned_tensors import wrapped_optimizers
from tidegauge.probe.holders import looks

_ATTRIBUTES = {"param_groups", "state"}
"""Of optimizers, which need not derive from torch's."""


def sorted_out(torch: Any, model: Any, optimizer: Any) -> tuple[list[Any], list[Any], list[str]]:
    """The models and the optimizers among the arguments, each alone or in a list, and a problem for each other one."""

    def is_model(one: object) -> bool:
        return looks.has_base(one, torch.nn.Module)

    def is_optimizer(one: object) -> bool:
        return any(
            looks.has_base(inner, torch.optim.Optimizer) or _ATTRIBUTES & (looks.instance_dict(inner) or {}).keys()
            for inner in wrapped_optimizers(one)
        )

    models, optimizers, problems = [], [], []
    for name, one in _each("model", model):
        if is_model(one):
            models.append(one)
        else:
            slip = ", and the optimizer behind it" if is_optimizer(one) else ", not its parameters"
            problems.append(_problem(name, one, "torch.nn.Module", f"the model itself{slip}"))
    for name, one in _each("optimizer", optimizer):
        if is_optimizer(one):
            optimizers.append(one)
        else:
            slip = ", behind the model" if is_model(one) else ""
            problems.append(_problem(name, one, "torch.optim.Optimizer", f"the optimizer itself{slip}"))
    return models, optimizers, problems


def _each(name: str, given: Any) -> Iterator[tuple[str, Any]]:
    if type(given) in (list, tuple):
        yield from ((f"{name}[{at}]", one) for at, one in enumerate(given))
    elif given is not None:
        yield name, given


def _problem(name: str, given: object, wanted: str, instead: str) -> str:
    kind = "None" if given is None else f"of type {looks.name_of(type(given))}"
    return f"`{name}` is left out: it is {kind}, not a {wanted}; give {instead} (of several, a list)"
