"""Inspects unknown objects without running a line of their code.

No ``getattr``, ``len``, ``repr``, ``==`` or iteration of a foreign type: calls go to the built-in base itself, past
anything that a class defines in Python. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import collections
import gc
import sys
import types
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, Optional

from tidegauge.core.evidence.owners import CodeLine, CodeRoots, is_library
from tidegauge.core.text import one_line
from tidegauge.probe.code_roots import known_roots

MAX_NAME_CHARS = 60
"""Characters of a name or a key in a path."""
MAX_LISTED = 300_000
"""Objects of the young generations; so many are listed in 5 to 20 ms."""
MAX_YOUNG = 5_000
"""Of these that are asked for what they refer to: the newest."""
MAX_YOUNG_TENSORS = 30_000
"""Of these among which tensors are looked for."""
MAX_REFERENTS = 20_000
"""Items of a container beyond which it is not asked for what it refers to."""
MAX_REFERENCES = 60_000
"""Of young objects, those of the newest first."""

_type_mro = type.__dict__["__mro__"].__get__
_type_name = type.__dict__["__name__"].__get__
_type_qualname = type.__dict__["__qualname__"].__get__
_type_module = vars(type)["__module__"].__get__
_type_dict = type.__dict__["__dict__"].__get__
_module_dict = vars(types.ModuleType)["__dict__"].__get__

SEQUENCES: tuple[type[Any], ...] = (list, tuple, set, frozenset, collections.deque)
CONTAINERS: tuple[type[Any], ...] = (dict, *SEQUENCES)
_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_CONTAINER_IDS = frozenset(map(id, CONTAINERS))


def mro(cls: type) -> tuple[type, ...]:
    """A class and its bases, past its metaclass."""
    return _type_mro(cls) or (cls,)  # Python 3.9 never completes some classes of its own (``functools._lru_list_elem``)


def has_base(obj: object, base: type) -> bool:
    """``isinstance``, without ``__instancecheck__`` and ``__class__``."""
    return derives(type(obj), base)


def derives(cls: type, base: type) -> bool:
    """``issubclass``, by identity alone: a metaclass may define ``==`` and ``hash``."""
    return any(one is base for one in mro(cls))


def container_base(obj: object) -> Optional[type[Any]]:
    """The built-in container that an object is or derives from."""
    return next((base for base in mro(type(obj)) if is_container(base)), None)


def is_container(cls: type) -> bool:
    """Whether a class is one of the built-in containers itself."""
    return id(cls) in _CONTAINER_IDS


def class_name(cls: type) -> str:
    """``Trainer``, ``Trainer.State``; without enclosing functions."""
    return clean(str(_type_qualname(cls)).rpartition("<locals>.")[2])


def name_of(cls: type) -> str:
    """``State``, of ``Trainer.State``."""
    return clean(str(_type_name(cls)))


def type_name(obj: object) -> str:
    return name_of(type(obj))


def type_module(cls: type) -> str:
    """The module that a class names as its own; empty if none."""
    try:
        name = _type_module(cls)
    except AttributeError:
        return ""
    return name if type(name) is str else ""


def class_dict(cls: type) -> dict[str, Any]:
    """A copy of a class's own ``__dict__``."""
    return dict(_type_dict(cls))


def instance_dict(obj: object) -> Optional[dict[str, Any]]:
    """An instance's own ``__dict__``, by the slot that Python made for it, never by a property."""
    for base in mro(type(obj)):
        slot: Any = (_type_dict(base) or {}).get("__dict__")
        if any(type(slot) is kind for kind in _SLOTS):
            found = slot.__get__(obj)
            return found if type(found) is dict else None
    return None


def slots_of(cls: type) -> list[tuple[str, Any]]:
    """A class's ``__slots__`` and members of a built-in struct."""
    return [
        (str(name), slot)
        for base in mro(cls)
        for name, slot in list((_type_dict(base) or {}).items())
        if type(slot) is types.MemberDescriptorType and name != "__dict__"
    ]


def slot_values(obj: object, slots: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """An instance's values in these."""
    values = []
    for name, slot in slots:
        try:  # a context manager would be half of what a slot costs
            values.append((name, slot.__get__(obj)))
        except (AttributeError, ValueError):  # noqa: PERF203 - not set
            continue
    return values


def module_globals(module: object) -> Optional[dict[str, Any]]:
    """The globals of a real module; ``None`` for another object in ``sys.modules``."""
    return _module_dict(module) if has_base(module, types.ModuleType) else None


def length(obj: object) -> Optional[int]:
    """The length of a built-in container or of what derives from it."""
    base = container_base(obj)
    return None if base is None else base.__len__(obj)


def items_of(obj: object, base: type[Any], end: int, begin: int = 0) -> list[Any]:
    """The items of a sequence or set until one, copied in one call, so that no other thread comes between."""
    if base is list or base is tuple:
        found: list[Any] = list(base.__getitem__(obj, slice(begin, end)))
        return found
    return list(islice(base.__iter__(obj), begin, end))


def entries_of(obj: object, end: int, begin: int = 0) -> Iterator[tuple[Any, Any]]:
    """The same of a dict, without a tuple for each that the garbage collector would have to track."""
    entries = dict.items(obj)  # type: ignore[arg-type,var-annotated]  # whoever calls knows that it is one
    copied = iter(list(chain.from_iterable(islice(entries, begin, end))))
    return zip(copied, copied)


def module_file(name: str) -> Optional[str]:
    """The file of a module that is loaded."""
    names = module_globals(sys.modules.get(name))
    found = None if names is None else names.get("__file__")
    return found if type(found) is str else None


class _Users:
    """Answers of ``is_users``: thousands of modules are asked about several times in a window."""

    roots: Optional[CodeRoots] = None
    by_file: dict[str, bool] = {}  # noqa: RUF012 - one for the process


def is_users(filename: Optional[str]) -> bool:
    """Whether a module's file is the user's own: not a library's, and not the probe's."""
    if filename is None:
        return False
    roots = known_roots()
    if _Users.roots is not roots:
        _Users.roots, _Users.by_file = roots, {}
    found = _Users.by_file.get(filename)
    if found is None:
        found = _Users.by_file[filename] = not is_library(filename, roots) and not is_own(filename)
    return found


def is_own(filename: str) -> bool:
    """Whether a file is the probe's. Other parts of Tidegauge may be a job: the demo's is."""
    return filename.startswith(_PROBE_FOLDER)


def class_place(cls: type) -> Optional[CodeLine]:
    """A class's location: its module's file."""
    filename = module_file(type_module(cls))
    return None if filename is None else CodeLine(filename, 0, "")


def code_place(code: types.CodeType) -> CodeLine:
    """A function's location: file and first line."""
    return CodeLine(code.co_filename, code.co_firstlineno, code_name(code))


def code_name(code: types.CodeType) -> str:
    """A function's name as people know it: ``Trainer.fit`` from Python 3.11 on, ``fit`` before."""
    name = getattr(code, "co_qualname", code.co_name)
    return clean(name.rpartition("<locals>.")[2])


def is_own_class(cls: type) -> bool:
    """Whether a class is the probe's."""
    return type_module(cls).startswith(_PROBE_MODULES)


def clean(text: str) -> str:
    """Short and printable: names come from the job."""
    if len(text) <= MAX_NAME_CHARS and text.isascii() and text.isprintable():
        return text
    text = one_line(text, MAX_NAME_CHARS + 1)
    return text if len(text) <= MAX_NAME_CHARS else f"{text[: MAX_NAME_CHARS - 3]}..."


def may_list_young() -> bool:
    """Whether the young generations are small enough to be listed in one piece."""
    made, collections, _ = gc.get_count()
    return made + collections * gc.get_threshold()[0] <= MAX_LISTED


def young_objects(most: int) -> list[Any]:
    """The newest objects of the collector's young generations.

    A cycle that waits for the collector is among them, unless it was in use during two collections, and so is all that
    was made since somebody switched the collector off. A look at all objects would hold training up for as long as
    there are many. Whoever keeps the list keeps alive what training drops meanwhile: activations, gigabytes of them.
    """
    older = [] if sys.version_info >= (3, 14) else gc.get_objects(1)  # from then on there is one young generation
    newest = gc.get_objects(0)[-most:]
    room = most - len(newest)
    return [*(older[-room:] if room else ()), *(one for one in newest if one is not older)]


class YoungObjects:
    """``young_objects``, by what they refer to. Only within one call in the training thread, which ends with
    ``forget``: this very object is one of the youngest, and keeps them all until then."""

    def __init__(self) -> None:
        self._objects = young_objects(MAX_YOUNG)
        self._referrers: dict[int, list[int]] = {}
        left = MAX_REFERENCES
        for index in range(len(self._objects) - 1, -1, -1):
            if left > 0 and not _is_long(self._objects[index]):
                children = gc.get_referents(self._objects[index])
                left -= len(children)
                for child in children:
                    self._referrers.setdefault(id(child), []).append(index)

    def referrers(self, obj: object) -> list[Any]:
        """Those that refer to ``obj``, each once."""
        return [self._objects[index] for index in dict.fromkeys(self._referrers.get(id(obj), ()))]

    def forget(self) -> None:
        """Let go of all."""
        self._objects.clear()


def _is_long(obj: Any) -> bool:
    return id(type(obj)) in _CONTAINER_IDS and len(obj) > MAX_REFERENTS


_PROBE_MODULES = ("tidegauge.probe.", "tidegauge.core.")
_PROBE_FOLDER = __file__.rpartition("holders")[0]
