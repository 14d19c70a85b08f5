"""A mapping that is a value: with more items it is another one, and nearly all of it is shared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Layers(Mapping[K, V]):
    """Most of it in a dict that is shared, what came lately in a small one that is copied. The two become one when the
    small one has grown to the root of the large one: so an item costs about that many steps, not all of them.
    """

    __slots__ = ("_late", "_most")

    def __init__(self, most: Mapping[K, V] | None = None, late: Mapping[K, V] | None = None) -> None:
        """Neither is changed by anybody from then on."""
        self._most: Mapping[K, V] = {} if most is None else most
        self._late: Mapping[K, V] = {} if late is None else late

    def with_items(self, items: Mapping[K, V]) -> Layers[K, V]:
        """With these, which take the place of those with the same keys."""
        late = {**self._late, **items}
        return Layers({**self._most, **late}) if len(late) ** 2 > len(self._most) else Layers(self._most, late)

    def __getitem__(self, key: K) -> V:
        return self._late[key] if key in self._late else self._most[key]

    def __contains__(self, key: object) -> bool:
        return key in self._late or key in self._most

    def __iter__(self) -> Iterator[K]:
        yield from self._most
        yield from (key for key in self._late if key not in self._most)

    def __len__(self) -> int:
        return len(self._most) + sum(key not in self._most for key in self._late)
