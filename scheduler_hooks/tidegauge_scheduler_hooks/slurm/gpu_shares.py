"""The share of a GPU that a job requested by ``gres/shard`` or ``gres/mps`` (gres.conf(5)). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple

MAX_NODES = 10_000
_GRES = re.compile(r"(?P<kind>[A-Za-z_]+)(?::[^:,()]+)?:(?P<count>\d{1,9})(?:\((?P<where>[^()]*)\))?")
_OF_CARD = re.compile(r"(\d{1,9})/(\d{1,9})")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
"""One entry of a host list: commas in brackets do not end it."""
SHARED = ("shard", "mps")


class Gres(NamedTuple):
    """One entry of a list such as ``gpu:h200:2(IDX:0-1),shard:h200:8``."""

    kind: str
    number: int
    where: str
    """What stands in brackets: ``IDX:0-1``; ``2/4,0/4`` (of each card so many); empty."""


def parse_gres(text: str) -> list[Gres]:
    """The entries of a list; anything else in it is left out."""
    return [Gres(one["kind"], int(one["count"]), one["where"] or "") for one in _GRES.finditer(text)]


def needs_nodes(gres: Sequence[str]) -> bool:
    """Whether the share of a job with this ``gres_detail`` needs the gres of its nodes (22.05)."""
    return any(one.kind in SHARED and not _OF_CARD.search(one.where) for text in gres for one in parse_gres(text))


def gpu_share(gres: Sequence[str], nodes: str, node_gres: Mapping[str, str]) -> float | None:
    """The smallest share of any of its cards, above 0 and at most 1; ``None``: whole cards, none, or not known.

    ``gres`` is the job's on each of ``nodes``, ``node_gres`` the whole of each node."""
    shares: list[float] = []
    for text, name in zip(gres, chain(expand(nodes), repeat(""))):
        for one in parse_gres(text):
            if one.kind in SHARED:
                shares += _of_cards(one, parse_gres(node_gres.get(name, "")))
    return min((share for share in shares if 0 < share <= 1), default=None)


def expand(nodes: str) -> list[str]:
    """The names in a host list: ``n[1-2],m[01-03]x`` (scontrol(1), ``show hostnames``); at most ``MAX_NODES``."""
    names: list[str] = []
    for part in _PART.findall(nodes):
        for name in _names(part):
            if len(names) >= MAX_NODES:
                return names
            names.append(name)
    return names


def _of_cards(asked: Gres, node: Sequence[Gres]) -> list[float]:
    of_each = [(int(used), int(total)) for used, total in _OF_CARD.findall(asked.where)]
    if of_each:
        return [used / total for used, total in of_each if used and total]
    in_all = sum(one.number for one in node if one.kind == asked.kind)
    cards = sum(one.number for one in node if one.kind == "gpu")
    if not in_all or not cards or not asked.number:
        return []
    return [asked.number / _cards_used(asked.where) / (in_all / cards)]


def _cards_used(where: str) -> int:
    """Of ``IDX:0,2-3``: 3."""
    spans = _RANGE.findall(where.removeprefix("IDX:"))
    return max(1, sum(int(last or first) - int(first) + 1 for first, last in spans))


def _names(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield before
        return
    ranges, _, after = rest.partition("]")
    for first, last in _RANGE.findall(ranges):
        for number in range(int(first), min(int(last or first), int(first) + MAX_NODES) + 1):
            for end in _names(after):
                yield f"{before}{number:0{len(first)}}{end}"
