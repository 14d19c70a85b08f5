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
from itertools import islice
from typing import Any, Optional

from tidegauge.core.evidence.owners import CodeLine, is_library
from tidegauge.core.text import one_line
from tidegauge.probe.code_roots import known_roots

MAX_NAME_CHARS = 60
"""Characters of a name or a key in a path."""
MAX_SUBCLASSES = 5_000
AT_ONCE = 4
"""Classes that one call looks for: each costs it a comparison for every reference of the heap."""
MAX_HEAP_BLOCKS = 1_200_000
"""Memory blocks of Python's (``sys.getallocatedblocks``), three or four to an object that the collector knows. Beyond
this, one look at all objects may hold training up for more than 50 ms. A process with torch loaded has 1,000,000."""

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


def slot_values(obj: object) -> list[tuple[str, Any]]:
    """An instance's values in ``__slots__`` and in members of a built-in struct."""
    values = []
    for base in mro(type(obj)):
        for name, slot in list((_type_dict(base) or {}).items()):
            if type(slot) is types.MemberDescriptorType and name != "__dict__":
                try:
                    values.append((str(name), slot.__get__(obj)))
                except (AttributeError, ValueError):  # not set
                    continue
    return values


def module_globals(module: object) -> Optional[dict[str, Any]]:
    """The globals of a real module; ``None`` for another object in ``sys.modules``."""
    return _module_dict(module) if has_base(module, types.ModuleType) else None


def length(obj: object) -> Optional[int]:
    """The length of a built-in container or of what derives from it."""
    base = container_base(obj)
    return None if base is None else base.__len__(obj)


def items_of(obj: object, base: type[Any], most: int) -> list[Any]:
    """The first ``most`` items of a sequence or set, copied in one call, so that no other thread comes between."""
    return list(islice(base.__iter__(obj), most))


def entries_of(obj: object, most: int) -> list[tuple[Any, Any]]:
    """The same of a dict."""
    return list(islice(dict.items(obj), most))  # type: ignore[arg-type]  # whoever calls knows that it is one


def module_file(name: str) -> Optional[str]:
    """The file of a module that is loaded."""
    names = module_globals(sys.modules.get(name))
    found = None if names is None else names.get("__file__")
    return found if type(found) is str else None


def is_users(filename: Optional[str]) -> bool:
    """Whether a module's file is the user's own: not a library's, and not the probe's."""
    return filename is not None and not is_library(filename, known_roots()) and not is_own(filename)


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
    text = one_line(text, MAX_NAME_CHARS + 1)
    return text if len(text) <= MAX_NAME_CHARS else f"{text[: MAX_NAME_CHARS - 3]}..."


def may_look_at_heap() -> bool:
    """Whether the heap is small enough to be looked at in one piece; where nobody counts its blocks, it may not be."""
    return 0 < sys.getallocatedblocks() <= MAX_HEAP_BLOCKS


def instances(classes: Sequence[type]) -> Iterator[list[Any]]:
    """All that the garbage collector knows, but has not frozen (``gc.freeze``), of exactly these classes, which are
    Python's own (written in Python, as torch's tensors are). ``AT_ONCE`` classes at a time.

    An object refers to its class, so the class's referrers are its objects: half the time of a list of everything,
    some 120 ns an object of the heap each time, under the interpreter's lock. A list of all objects would also keep
    alive what training drops meanwhile: activations, gigabytes of them.
    """
    for start in range(0, len(classes), AT_ONCE):
        some = classes[start : start + AT_ONCE]
        ids = frozenset(map(id, some))
        yield [one for one in gc.get_referrers(*some) if id(type(one)) in ids]


def with_subclasses(cls: type) -> list[type]:
    """A class and all that derive from it."""
    found, waiting = [cls], [cls]
    while waiting and len(found) < MAX_SUBCLASSES:
        more: list[type] = type.__subclasses__(waiting.pop())
        found += more
        waiting += more
    return found


_PROBE_MODULES = ("tidegauge.probe.", "tidegauge.core.")
_PROBE_FOLDER = __file__.rpartition("holders")[0]
