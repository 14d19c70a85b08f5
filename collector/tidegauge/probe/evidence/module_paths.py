"""What modules are called: their places in the outermost one that has them, without wrappers that their author does not
know. One way for a job's recording and for ``tidegauge.profile()``. Runs no code of the job's; source-compatible with
Python 3.9.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

from tidegauge.core.text import one_line
from tidegauge.probe.holders import looks

MAX_ENTRIES = 100_000
"""Of one dict."""
MAX_NAME_CHARS = 100
MAX_WRAPPERS = 3
"""Around one another."""
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Names of modules that their author does not know, of ``torch.compile``, FSDP and checkpointing."""
_OUTERMOST_WRAPPERS = _WRAPPERS | {"module"}  # DistributedDataParallel's, DeepSpeed's


class NamedModule(NamedTuple):
    """A module, and its place in the outermost one that has it."""

    reference: weakref.ref[Any]
    path: str
    """Empty: it is the outermost one itself, or wraps it."""
    model: int
    """Index into ``Models.names``."""


class Models:
    """Numbers outermost modules."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """Of their classes, each once: a further one of a class has a number."""
        self._numbers: dict[int, tuple[weakref.ref[Any], int]] = {}
        """With the modules, by their addresses: another one may have that of one that is gone."""
        self._of_class: dict[str, int] = {}

    def number(self, module: Any) -> int:
        known = self._numbers.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        self._numbers[id(module)] = (weakref.ref(module), len(self.names))
        name = one_line(looks.name_of(type(module))[:MAX_NAME_CHARS])
        count = self._of_class[name] = self._of_class.get(name, 0) + 1
        self.names.append(name if count == 1 else f"{name}#{count}")
        return len(self.names) - 1


def named_modules(
    modules: Sequence[weakref.ref[Any]], models: Models, pace: Callable[[], None]
) -> Iterator[NamedModule]:
    """The modules, each with its name in the outermost one that has it and is no wrapper. None is kept alive while
    ``pace`` lets the job go on."""
    above: dict[int, tuple[weakref.ref[Any], str]] = {}
    for reference in modules:
        pace()
        _note_parts(reference, above)
    for reference in modules:
        pace()
        named = _named(reference, above, models)
        if named is not None:
            yield named


def _note_parts(reference: weakref.ref[Any], above: dict[int, tuple[weakref.ref[Any], str]]) -> None:
    for name, child in entries_of_module(reference(), "_modules"):
        above.setdefault(id(child), (reference, name))


def _named(
    reference: weakref.ref[Any], above: dict[int, tuple[weakref.ref[Any], str]], models: Models
) -> Optional[NamedModule]:
    chain_up = [reference]
    parts: list[str] = []
    seen: set[int] = set()
    at = id(reference())
    while at in above and at not in seen:
        seen.add(at)
        outer, name = above[at]
        chain_up.append(outer)
        parts.append(name)
        at = id(outer())
    while parts and parts[-1] in _OUTERMOST_WRAPPERS:
        del parts[-1], chain_up[-1]
    model = _unwrapped(chain_up[-1]())
    if model is None:
        return None
    path = ".".join(part for part in reversed(parts) if part not in _WRAPPERS)
    return NamedModule(reference, path, models.number(model))


def _unwrapped(module: Any) -> Any:
    """What an outermost module wraps, or itself."""
    for _ in range(MAX_WRAPPERS):
        entries = list(entries_of_module(module, "_modules"))
        if len(entries) != 1 or entries[0][0] not in _OUTERMOST_WRAPPERS:
            break
        module = entries[0][1]
    return module


def joined(path: str, name: str) -> str:
    """``name`` below ``path``; either may be empty."""
    return f"{path}.{name}" if path and name else path or name


def entries_of_module(module: Any, names: str) -> Iterator[tuple[str, Any]]:
    """Names and values of a module's ``_parameters``, ``_buffers`` or ``_modules``; without those that are ``None``."""
    entries = (looks.instance_dict(module) or {}).get(names)
    if looks.has_base(entries, dict):
        for name, value in looks.entries_of(entries, MAX_ENTRIES):
            if value is not None and type(name) is str:
                yield name, value
