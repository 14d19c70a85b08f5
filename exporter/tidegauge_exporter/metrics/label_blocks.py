"""Label blocks (``{name="value",...}``) as text, made once for a rank and kept for as long as scrapes need them."""

from __future__ import annotations

from operator import itemgetter

from tidegauge_exporter.metrics.labels import label_value

Key = tuple[tuple[str, ...], tuple[object, ...]]


class LabelBlocks:
    """Those that the last two scrapes needed. What is held follows the ranks that there are; a cache of the last so
    many would grow for hours with the jobs that come and go. Scrapes may run at once: at worst a block is made again.
    """

    def __init__(self) -> None:
        self._needed: dict[Key, str] = {}
        """By the scrape that began last."""
        self._before: dict[Key, str] = {}

    def begin_scrape(self) -> None:
        """What the scrape before the last one needed alone is forgotten."""
        self._before, self._needed = self._needed, {}

    def block(self, names: tuple[str, ...], values: tuple[object, ...]) -> str:
        """Sorted by name, values made safe (``label_value``) and escaped; empty without labels."""
        key = names, values
        block = self._needed.get(key)
        if block is None:
            block = self._before.get(key)
            self._needed[key] = block = _written(names, values) if block is None else block
        return block

    def __len__(self) -> int:
        return len(self._needed.keys() | self._before.keys())


def _written(names: tuple[str, ...], values: tuple[object, ...]) -> str:
    if not names:
        return ""
    pairs = sorted(zip(names, values, strict=True), key=itemgetter(0))
    return "{" + ",".join(f'{name}="{_escaped(label_value(value))}"' for name, value in pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
