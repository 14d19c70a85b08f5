"""Turns groups of finds into ``Holder``s: kind, readable path, name and location.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import Optional

from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import MAX_TEXT_CHARS, ContainerBound, Holder, HolderKind
from tidegauge.core.units import format_count
from tidegauge.probe.holders.finds import FindGroup
from tidegauge.probe.holders.ref_paths import RefStep, Via, passes

MAX_PARTS = 8
"""Of a path; a longer one is cut in its middle."""
MAX_SAVERS = 3

_CACHES = (Via.CACHE, Via.CACHE_KEY)
_NAMES = (Via.GLOBAL, Via.LOCAL, Via.ATTRIBUTE, Via.CLASS, Via.CELL, Via.KEPT_LOCAL, *_CACHES, Via.MODULE, Via.STATE)
_BY_STEP = (
    (Via.EXCEPTION, HolderKind.EXCEPTION),
    (Via.HOOK, HolderKind.HOOK),
    (Via.GRAPH, HolderKind.AUTOGRAD),
    (Via.STATE, HolderKind.OPTIMIZER),
    (Via.CELL, HolderKind.CLOSURE),
)
"""Kinds of steps that explain more than names, in order of precedence."""


def holder_of(group: FindGroup, bound: Optional[ContainerBound] = None) -> Holder:
    """A group's ``Holder``; ``bound``: of a container on the way to it."""
    steps = group.trail.steps
    named = next((step for step in reversed(steps) if step.via in _NAMES and step.text), steps[0])
    container = next((step for step in reversed(steps) if step.items is not None), None)
    return Holder(
        kind=_kind(group, steps, container),
        path=_short(_path(group, steps)),
        held_bytes=group.held_bytes,
        tensors=group.tensors,
        name=named.text or None,
        where=named.where or _place(steps),
        container=None if container is None else container.leads_to,
        items=None if container is None else container.items,
        detail=_short(_detail(group, steps)) or None,
        bound=bound,
        by_size_bytes=group.by_size_bytes,
        blocks=tuple(group.blocks),
    )


def _kind(group: FindGroup, steps: Sequence[RefStep], container: Optional[RefStep]) -> HolderKind:
    if group.nodes:
        return HolderKind.AUTOGRAD
    if group.cycle:
        return HolderKind.CYCLE
    for via, kind in _BY_STEP:
        if passes(steps, via):
            return kind
    if group.second is not None:
        return HolderKind.HOOK
    if steps[0].thread is not None:
        return HolderKind.THREAD
    if container is not None or passes(steps, *_CACHES):
        return HolderKind.CONTAINER
    if passes(steps, Via.ATTRIBUTE, Via.CLASS, Via.MODULE, Via.FIELD):
        return HolderKind.ATTRIBUTE
    if steps[0].via is Via.GLOBAL:
        return HolderKind.GLOBAL
    return HolderKind.FRAME if passes(steps, Via.LOCAL, Via.KEPT_LOCAL) else HolderKind.NATIVE


def _path(group: FindGroup, steps: Sequence[RefStep]) -> str:
    tail = [_commonest(group.words)]
    if group.nodes:
        each = " each" if group.graphs > 1 else ""
        nodes = group.nodes // max(group.graphs, 1)
        tail.append(f"grad_fn {_commonest(group.first_nodes)}, {format_count(nodes, 'node')}{each}")
    parts = [*_parts(steps, mixed=group.mixed), *tail]
    if len(parts) > MAX_PARTS:
        parts = [*parts[:3], "...", *parts[-(MAX_PARTS - 3) :]]
    root = steps[0] if steps[0].where is not None or not group.cycle else steps[0]._replace(where=_place(steps))
    return _root_place(root) + " -> ".join(part for part in parts if part)


def _place(steps: Sequence[RefStep]) -> Optional[CodeLine]:
    """The first known location."""
    return next((step.where for step in steps if step.where is not None), None)


def _root_place(root: RefStep) -> str:
    """``train.py: ``, ``train.py main(): ``, ``train.py main() in thread loader: ``."""
    if root.where is None:
        return ""
    place = _file(root.where)
    if root.via is Via.LOCAL:
        place += f" {root.where.function}()"
    if root.thread is not None:
        place += f" in thread {root.thread}"
    return f"{place}: "


def _parts(steps: Sequence[RefStep], *, mixed: Container[int] = ()) -> list[str]:
    """One text for each step that adds information; ``mixed``: indices of steps whose keys hold for one tensor only."""
    parts: list[str] = []
    before: Optional[RefStep] = None
    for number, (step, following) in enumerate(zip(steps, (*steps[1:], None))):
        text = "" if number in mixed else step.text
        if text and parts and step.via is Via.ITEM:
            parts[-1] += text + _length(step)
        elif text and parts and step.via is Via.MODULE and before is not None and before.via is Via.MODULE:
            parts[-1] += f".{text.rpartition('.')[2]}{_length(step)}"
        elif text:
            if parts[-1:] != [text] and not (following is not None and following.text.startswith(f"{text}.")):
                parts.append(text + _length(step))
        elif following is not None and not (_says_type(following) and (step.items is None or _is_field(following))):
            parts.append(
                step.leads_to if step.items is None else f"{step.leads_to} ({format_count(step.items, 'item')})"
            )
        before = step
    return parts


def _says_type(step: RefStep) -> bool:
    """Whether a step's text begins with the type of what it starts from."""
    return step.via in (Via.ATTRIBUTE, Via.FIELD, Via.CLASS, Via.STATE, Via.MODULE, Via.HOOK)


def _is_field(step: RefStep) -> bool:
    return step.via is Via.FIELD


def _length(step: RefStep) -> str:
    return "" if step.items is None else f" ({step.leads_to}, {format_count(step.items, 'item')})"


def _detail(group: FindGroup, steps: Sequence[RefStep]) -> str:
    cycle = f"holds itself through {' -> '.join(_parts(group.cycle))}" if group.cycle else ""
    if group.nodes:
        graphs = f"{group.graphs:,} graphs" if group.graphs > 1 else "one graph"
        savers = ", ".join(name for name, _ in group.savers.most_common(MAX_SAVERS))
        words = f"{graphs} of {group.nodes:,} nodes; the blocks have the sizes of what came out of {savers}"
        return f"{words}; its holder {cycle}" if cycle else words
    if cycle:
        return cycle
    if group.is_replaced:
        return "made anew in each step: what was looked for is gone, and this has its size, or a little more"
    for before, step in zip(steps, steps[1:]):
        if step.via is Via.EXCEPTION:
            return f"{before.leads_to} kept with its traceback"
    hooked = steps if passes(steps, Via.HOOK) else group.second.steps if group.second is not None else ()
    if hooked:
        return f"filled by: {_root_place(hooked[0])}{' -> '.join(_parts(_up_to_hook(hooked)))}"
    return ""


def _up_to_hook(steps: Sequence[RefStep]) -> Sequence[RefStep]:
    """The steps to the hook and its function."""
    end = next(number for number, step in enumerate(steps) if step.via is Via.HOOK)
    return steps[: end + 2]


def _commonest(texts: Counter[str]) -> str:
    return texts.most_common(1)[0][0] if texts else ""


def _file(place: CodeLine) -> str:
    return place.filename.replace("\\", "/").rpartition("/")[2]


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 3]}..."
