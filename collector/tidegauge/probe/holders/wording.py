"""Turns groups of finds into ``Holder``s: kind, readable path, name and location.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Optional

from tidegauge.core.evidence.owners import CodeLine, is_library
from tidegauge.core.evidence.rank_evidence import (
    ARROW,
    CHAIN,
    KEPT_BY_CTX,
    MADE_ANEW,
    MAX_TEXT_CHARS,
    ContainerBound,
    Holder,
    HolderKind,
)
from tidegauge.core.units import format_count
from tidegauge.probe.code_roots import known_roots
from tidegauge.probe.holders.finds import FindGroup
from tidegauge.probe.holders.growth import HolderGrowth, differing, growth_of
from tidegauge.probe.holders.ref_paths import RefStep, Via, numberless, passes

MAX_PARTS = 8
"""Of a path; a longer one is cut in its middle."""
MAX_SAVERS = 3

_CACHES = (Via.CACHE, Via.CACHE_KEY)
_PARTS = (Via.ATTRIBUTE, Via.CLASS, Via.MODULE, Via.STATE, Via.CONTEXT)
_NAMES = (Via.GLOBAL, Via.LOCAL, Via.CELL, Via.KEPT_LOCAL, *_CACHES, *_PARTS)
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
    steps = [path.step for path in group.ways(group.trail)]
    growth = growth_of(group, steps)
    steps = _shown(group, steps)
    named = _named(steps, growth)
    last = next((step for step in reversed(steps) if step.items is not None), None)
    container: Optional[str] = None
    items: Optional[int] = None
    if growth is not None:
        container, items = growth.container, growth.items
    elif last is not None and not group.is_folded:
        container, items = last.leads_to, last.items
    return Holder(
        kind=_kind(group, steps, last),
        path=_short(_path(group, steps, growth)),
        held_bytes=group.held_bytes,
        tensors=group.tensors,
        name=named.text or None,
        where=named.where or _place(steps),
        container=container,
        items=items,
        detail=_short(_detail(group, steps)) or None,
        bound=bound,
        by_size_bytes=group.by_size_bytes,
        blocks=tuple(group.blocks),
    )


def _shown(group: FindGroup, steps: Sequence[RefStep]) -> list[RefStep]:
    """The steps with a star for each number that is another one for other tensors, and without keys that are."""
    differ, shown = differing(group, steps), list(steps)
    for at in differ:
        text = "" if steps[at].via is Via.ITEM else numberless(steps[at].text)
        shown[at] = steps[at]._replace(text=text)
    return shown


def _named(steps: Sequence[RefStep], growth: Optional[HolderGrowth]) -> RefStep:
    """The step whose name people know the holder by: that of what grows. A library's name says less than the user's own
    that leads to it."""
    names = [at for at, step in enumerate(steps) if step.via in _NAMES and step.text]
    if growth is not None and steps[growth.at].via is Via.FUNCTION and steps[growth.at].where is not None:
        return steps[growth.at]  # a function's default
    if not names:
        return steps[0]
    if growth is None:
        return steps[names[-1]]
    if growth.names:
        step, before_it = steps[growth.at], steps[growth.at - 1]
        if growth.at and step.via is Via.MODULE and before_it.via is Via.MODULE:  # ``ModuleList.*`` is nobody's name
            return before_it._replace(text=f"{before_it.text}.{step.text.rpartition('.')[2]}")
        return step
    before = [at for at in names if at <= growth.at] or names[-1:]
    if growth.container == CHAIN:
        before = [at for at in before if at < growth.at] or before
    own = (at for at in reversed(before) if steps[at].via in _CACHES or not _is_librarys(steps[at]))
    return steps[next(own, before[-1])]


def _is_librarys(step: RefStep) -> bool:
    return step.where is not None and bool(step.where.filename) and is_library(step.where.filename, known_roots())


def _kind(group: FindGroup, steps: Sequence[RefStep], container: Optional[RefStep]) -> HolderKind:
    if group.nodes:
        return HolderKind.AUTOGRAD
    if group.cycle:
        return HolderKind.CYCLE
    for via, kind in _BY_STEP:
        if passes(steps, via):
            return kind
    if _is_ctx_alone(steps):
        return HolderKind.CYCLE
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


def _is_ctx_alone(steps: Sequence[RefStep]) -> bool:
    """Whether the holder is ctx of a ``torch.autograd.Function`` to which nothing leads: C++ has it, by its output."""
    named = (step.via for step in steps if step.via is not Via.OTHER)
    return next(named, None) is Via.CONTEXT


def _path(group: FindGroup, steps: Sequence[RefStep], growth: Optional[HolderGrowth]) -> str:
    tail = [_commonest(group.words)]
    if group.nodes:
        each = " each" if group.graphs > 1 else ""
        nodes = group.nodes // max(group.graphs, 1)
        tail.append(f"grad_fn {_commonest(group.first_nodes)}, {format_count(nodes, 'node')}{each}")
    if group.chain is not None:
        parts = [*_chain_parts(group, group.chain, steps), *tail]
    else:
        parts = [*_parts(steps, growth), *tail]
    if len(parts) > MAX_PARTS:
        parts = [*parts[:3], "...", *parts[-(MAX_PARTS - 3) :]]
    root = steps[0] if steps[0].where is not None or not group.cycle else steps[0]._replace(where=_place(steps))
    return _root_place(root) + ARROW.join(part for part in parts if part)


def _chain_parts(group: FindGroup, at: int, steps: Sequence[RefStep]) -> list[str]:
    """The references up to a chain, those that come again with how often they do, and those that follow."""
    chain = group.trail.folded[at]
    around = group.around(chain)
    names = [step.text for step in around if step.text and step.via is not Via.ITEM]
    links = chain.links + (len(around) == 1)
    again = ARROW.join(names or [step.leads_to for step in around])
    rest = steps[at + 1 :] if len(around) == 1 else steps[at:]
    return [*_parts(steps[:at]), f"{again} (repeated {format_count(links, 'time')})", *_parts(rest)]


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


def _parts(steps: Sequence[RefStep], growth: Optional[HolderGrowth] = None) -> list[str]:
    """One text for each step that adds information."""
    parts: list[str] = []
    before: Optional[RefStep] = None
    for number, (step, following) in enumerate(zip(steps, (*steps[1:], None))):
        text = step.text
        if growth is not None and growth.names and growth.at == number:
            text, step = f"{text} ({growth.items:,} {growth.container})", step._replace(items=None)
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
    return step.via in (*_PARTS, Via.FIELD, Via.HOOK)


def _is_field(step: RefStep) -> bool:
    return step.via is Via.FIELD


def _length(step: RefStep) -> str:
    return "" if step.items is None else f" ({step.leads_to}, {format_count(step.items, 'item')})"


def _detail(group: FindGroup, steps: Sequence[RefStep]) -> str:
    cycle = f"holds itself through {ARROW.join(_parts(group.cycle))}" if group.cycle else ""
    if group.nodes:
        graphs = f"{group.graphs:,} graphs" if group.graphs > 1 else "one graph"
        savers = ", ".join(name for name, _ in group.savers.most_common(MAX_SAVERS))
        words = f"{graphs} of {group.nodes:,} nodes; the blocks have the sizes of what came out of {savers}"
        return f"{words}; its holder {cycle}" if cycle else words
    if cycle:
        return cycle
    if _is_ctx_alone(steps):
        return KEPT_BY_CTX
    if group.is_replaced:
        return f"{MADE_ANEW}: what was looked for is gone, and this has its size, or a little more"
    for before, step in zip(steps, steps[1:]):
        if step.via is Via.EXCEPTION:
            return f"{before.leads_to} kept with its traceback"
    hooked = steps if passes(steps, Via.HOOK) else group.second.steps if group.second is not None else ()
    if hooked:
        return f"filled by: {_root_place(hooked[0])}{ARROW.join(_parts(_up_to_hook(hooked)))}"
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
