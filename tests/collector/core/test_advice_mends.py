"""The advice of each cause, applied to a program that leaks: the expression in the sentence is the one that is run."""

from __future__ import annotations

import copy
import math
import re
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Optional, Union

import pytest

from tidegauge.core.evidence import StackGrowth
from tidegauge.core.evidence.cause_input import CauseInput
from tidegauge.core.evidence.causes import name_cause
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import Holder, HolderKind, HolderSearch

STEPS = 30
MIB = 1 << 20
LINE = CodeLine("/home/ada/train.py", 41, "step")


class Block:
    """Memory of a GPU."""

    living: ClassVar[weakref.WeakSet[Block]] = weakref.WeakSet()

    def __init__(self) -> None:
        Block.living.add(self)


class Graph:
    """What a forward pass saved for backward."""

    def __init__(self, *before: Optional[Graph]) -> None:
        self.saved, self.before = [Block(), Block()], before


class Tensor:
    """As much of torch's as advice names."""

    def __init__(self, *shape: int, block: Optional[Block] = None, graph: Optional[Graph] = None) -> None:
        self.shape, self.block, self.graph = shape, block, graph

    def item(self) -> float:
        if math.prod(self.shape) != 1:
            raise RuntimeError("a Tensor with more than one element cannot be converted to Scalar")
        return 0.0

    def detach(self) -> Tensor:
        return Tensor(*self.shape, block=self.block)

    def cpu(self) -> Tensor:
        return Tensor(*self.shape, graph=self.graph)

    def __add__(self, other: Union[Tensor, float]) -> Tensor:
        graphs = (self.graph, other.graph if isinstance(other, Tensor) else None)
        return Tensor(*self.shape, block=Block(), graph=Graph(*graphs) if any(graphs) else None)


def forward(shape: Sequence[int], *, graph: bool) -> Tensor:
    return Tensor(*shape, block=Block(), graph=Graph() if graph else None)


def keeps_what_it_saw(_seen: Tensor, _output: Tensor) -> None:
    """A hook."""


class Handle:
    def __init__(self, hooks: list[Callable[[Tensor], None]], hook: Callable[[Tensor], None]) -> None:
        self._hooks, self._hook = hooks, hook

    def remove(self) -> None:
        self._hooks.remove(self._hook)


def advice_for(kind: HolderKind, name: str, tail: str, container: Optional[str] = "list", detail: str = "") -> str:
    items = f" ({container}, {STEPS} items)" if container else ""
    holder = Holder(
        kind, f"train.py: {name}{items} -> {tail}", STEPS * MIB, STEPS, name=name,
        where=CodeLine("/home/ada/train.py", 0, ""), container=container, items=STEPS if container else None,
        detail=detail,
    )  # fmt: skip
    search = HolderSearch((holder,), STEPS * MIB, STEPS * MIB)
    growth = (StackGrowth(STEPS * MIB, STEPS, (LINE,), LINE, MIB),)
    found = name_cause(CauseInput(growth, STEPS * MIB, window_steps=STEPS, search=search))
    return found.advice or ""


def grown(step: Callable[[], None]) -> int:
    """Blocks that live after ``STEPS`` steps and did not after two."""
    for _ in range(2):
        step()
    before = len(Block.living)
    for _ in range(STEPS):
        step()
    return len(Block.living) - before


def told(advice: str, verb: str) -> Callable[[Tensor], Any]:
    """The expression that the advice says to append, store or add, as a function of its tensor."""
    found = re.search(rf"\b{verb} `((\w+)\.[\w.()]+)`", advice)
    assert found, advice
    code, name = compile(found[1], "advice", "eval"), found[2]
    return lambda tensor: eval(code, {name: tensor})


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (2,), (8, 120, 2048), (64, 3, 64, 64)])
@pytest.mark.parametrize("container", ["list", "dict", "deque"])
def test_what_is_put_in_a_container_grows_no_more(container: str, shape: tuple[int, ...], graph: bool) -> None:
    tail = f"Tensor[{','.join(map(str, shape))}] float32{' -> grad_fn AddBackward0, 9 nodes each' if graph else ''}"
    kind = HolderKind.AUTOGRAD if graph else HolderKind.CONTAINER
    advice = advice_for(kind, "outputs", tail, container)
    mended = told(advice, "store" if container == "dict" else "append")
    for change, leaks in ((lambda tensor: tensor, True), (mended, False)):
        outputs: list[Any] = []
        assert bool(grown(lambda: outputs.append(change(forward(shape, graph=graph))))) is leaks  # noqa: B023


def test_a_list_with_a_bound_grows_no_more() -> None:
    advice = advice_for(HolderKind.CONTAINER, "outputs", "Tensor[8] float32")
    assert "bound it, by a deque with `maxlen`" in advice
    bounded: deque[Tensor] = deque(maxlen=2)
    assert grown(lambda: bounded.append(forward((8,), graph=False))) == 0


@pytest.mark.parametrize("shape", [(), (8,)])
def test_a_sum_of_losses_carries_no_graph_any_more(shape: tuple[int, ...]) -> None:
    tail = f"Tensor[{','.join(map(str, shape))}] float32 -> grad_fn AddBackward0, 900 nodes"
    mended = told(advice_for(HolderKind.AUTOGRAD, "total", tail, None, "one graph of 900 nodes"), "add")
    for change, leaks in ((lambda tensor: tensor, True), (mended, False)):
        total = [forward(shape, graph=False)]

        def step() -> None:
            total[0] = total[0] + change(forward(shape, graph=True))  # noqa: B023

        assert bool(grown(step)) is leaks


def test_a_hook_that_is_removed_keeps_nothing() -> None:
    advice = advice_for(HolderKind.HOOK, "Linear.bias", "Tensor[8] float32", None)
    removes = "call `handle.remove()`" in advice
    assert removes
    for mended in (False, True):
        hooks: list[Callable[[Tensor], None]] = []

        def step() -> None:
            seen = forward((8,), graph=False)
            hook = partial(keeps_what_it_saw, seen)
            hooks.append(hook)  # noqa: B023
            if mended:  # noqa: B023
                Handle(hooks, hook).remove()  # noqa: B023

        assert bool(grown(step)) is not mended


@pytest.mark.parametrize("inner", ["dict (2 items)", "tuple (3 items) -> OrderedDict (2 items)"])
def test_a_state_dict_whose_values_are_copied_to_the_cpu_keeps_nothing_of_the_gpu(inner: str) -> None:
    """``best.append(copy.deepcopy(model.state_dict()))``."""
    advice = advice_for(HolderKind.CONTAINER, "best", f"{inner} -> Tensor[540,540] float32")
    assert "keeps a dict of tensors (a `state_dict()`?) of each step" in advice
    assert "or bound it, by a deque with `maxlen`" in advice
    mended = told(advice, "append")
    for change, leaks in ((lambda tensor: tensor, True), (mended, False)):
        best: list[dict[str, Any]] = []

        def step() -> None:
            state = {name: forward((540, 540), graph=False) for name in ("weight", "bias")}
            best.append({key: change(value) for key, value in state.items()})  # noqa: B023

        assert bool(grown(step)) is leaks


def test_models_that_are_copied_to_the_cpu_keep_nothing_of_the_gpu() -> None:
    """``copies.append(copy.deepcopy(model))``."""

    class Net:
        def __init__(self, weight: Tensor) -> None:
            self.weight = weight

        def __deepcopy__(self, _: object) -> Net:
            return Net(Tensor(*self.weight.shape, block=Block()))

        def cpu(self) -> Net:
            return Net(self.weight.cpu())

    advice = advice_for(HolderKind.CONTAINER, "copies", "Net.fc.weight -> Tensor[8,8] float32")
    found = re.search(r"of a model `([^`]+)`", advice)
    assert found, advice
    mended = eval(f"lambda copy, model: {found[1]}")
    net = Net(forward((8, 8), graph=False))
    for change, leaks in ((lambda copy, model: copy.deepcopy(model), True), (mended, False)):
        copies: list[Any] = []
        assert bool(grown(lambda: copies.append(change(copy, net)))) is leaks  # noqa: B023


def test_a_view_that_is_copied_keeps_its_storage_no_more() -> None:
    tail = "Tensor[128] float32, a view of a 4.0 MiB storage"
    mended = told(advice_for(HolderKind.CONTAINER, "views", tail), "append")
    kept: list[Any] = []
    assert grown(lambda: kept.append(mended(forward((128,), graph=False)))) == 0
