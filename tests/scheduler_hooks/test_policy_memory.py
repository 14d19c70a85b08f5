"""What the policy's memory costs: nothing is copied that has not changed, however many decisions are remembered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from scheduler_values import decision
from tidegauge.core.incidents.actions import ActionKind
from tidegauge_scheduler_hooks.policy.state import Layers, PolicyState

K = TypeVar("K")
V = TypeVar("V")


class Counted(Mapping[K, V]):
    """Counts the items that are read of it."""

    def __init__(self, items: Mapping[K, V]) -> None:
        self._items = dict(items)
        self.read = 0

    def __getitem__(self, key: K) -> V:
        self.read += 1
        return self._items[key]

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


def remembering(count: int) -> PolicyState:
    """So many decisions on one job."""
    made = [decision(ActionKind.CAP, decision_id=f"1:leak:0:{number}") for number in range(count)]
    return PolicyState().with_decisions(made)


def test_a_group_is_read_once_however_many_marks_come_to_it() -> None:
    state = remembering(50)
    assert state.index is not None
    ((job, group),) = state.index.by_job.items()
    counted = Counted(group)
    more = remembering(150).marks
    marks = [mark for name, mark in more.items() if name not in state.marks]
    after = type(state.index)(by_job=Layers({job: counted})).with_marks(marks)
    assert counted.read == 50
    assert len(after.by_job[job]) == 150


def test_policy_layers_add_an_item_without_reading_the_others() -> None:
    many = Counted({number: str(number) for number in range(10_000)})
    layers: Layers[int, str] = Layers(many)
    for number in range(100):
        layers = layers.with_items({10_000 + number: "new"})
    assert many.read == 0
    layers = layers.with_items({5: "changed"})
    assert many.read == 10_000, "now and then it becomes one"
    assert (layers[5], layers[6], layers[10_099], len(layers)) == ("changed", "6", "new", 10_100)


def test_layers_are_values_in_the_order_of_a_dict() -> None:
    plain: dict[int, int] = {}
    layers: Layers[int, int] = Layers()
    for number in range(300):
        before, then = layers, dict(plain)
        items = {number: 0, number // 3: number}
        plain |= items
        layers = layers.with_items(items)
        assert list(layers.items()) == list(plain.items())
        assert (len(layers), layers == Layers(plain)) == (len(plain), True)
        assert dict(before) == then
    assert layers.get(-1) is None
    assert -1 not in layers
