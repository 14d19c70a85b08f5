"""References of an object, each with a name. Runs no code of the object's (``looks``).

Source-compatible with Python 3.9.
"""

from __future__ import annotations

import functools
import gc
import re
import sys
import types
from _thread import _local
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from contextvars import Context
from itertools import chain, islice
from typing import Any, NamedTuple, Optional, Union

from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.units import format_count
from tidegauge.probe.holders import looks
from tidegauge.probe.holders.bounds import LRU_CACHE, bound_of, cache_info, queue_bound
from tidegauge.probe.holders.frames import local_values
from tidegauge.probe.holders.ref_paths import Via

MAX_ITEMS = 100_000
"""Items of one container that are read, from its beginning."""
LINKS_AT_ONCE = 500
"""Of an object that is no container, read at a time."""
NAMED_INSTANCES = 200
"""Of one class; further ones are only looked at if they refer to a tensor or a container. On Python 3.11 and 3.12 an
instance has no dict until somebody asks for it, and then keeps it: 100 bytes, not for each of a million records."""

_HOOK_DICTS = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_state_dict_hooks": "state dict hook",
    "_state_dict_pre_hooks": "state dict pre-hook",
    "_load_state_dict_pre_hooks": "load hook",
    "_load_state_dict_post_hooks": "load hook",
    "_optimizer_step_pre_hooks": "step pre-hook",
    "_optimizer_step_post_hooks": "step hook",
}
"""Attributes of ``torch.nn.Module`` and ``torch.optim.Optimizer`` that hold hooks."""
_GLOBAL_HOOKS = re.compile(r"_global_(\w+)_hooks")
"""Variables of these modules that hold hooks of all modules and all optimizers."""
_MODULES_OF_GLOBAL_HOOKS = ("torch.nn.modules.module", "torch.optim.optimizer")
_PART_DICTS = frozenset({"_modules", "_parameters", "_buffers"})
_LEAVES = (
        type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type(Ellipsis), types.CodeType,
        types.ModuleType, types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType,
        types.WrapperDescriptorType, property,
)  # fmt: skip
_LEAF_IDS = frozenset(map(id, _LEAVES))
_METHODS_IN_C = (types.BuiltinFunctionType, types.MethodWrapperType)
"""``tensor.mean``, ``list.append``, ``list.__len__`` of an object; functions of modules are of the first type."""
_GENERATORS: dict[type, str] = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}


class ObjectLink(NamedTuple):
    """One reference."""

    via: Via
    text: str
    child: Any
    where: Optional[CodeLine] = None
    most_items: Optional[int] = None
    """Maximum length that the owner of a container enforces."""


class _Entries(NamedTuple):
    """Reads objects that may have many references: those of some entries."""

    links: Callable[[Any, int, int], Iterable[ObjectLink]]
    """Of the entries from a number on, until another one."""
    length: Callable[[Any], int]


_Reader = Union[Callable[[Any], Iterable[ObjectLink]], _Entries]


class ObjectLinks:
    """Follows references between one process's objects. Caches facts about classes by their ids; keeps no object."""

    def __init__(self, torch: Any) -> None:
        self._module, self._optimizer, self._tensor = torch.nn.Module, torch.optim.Optimizer, torch.Tensor
        self._python_node = torch._C._FunctionBase
        self._instances: dict[int, int] = {}
        self._slots: dict[int, list[tuple[str, Any]]] = {}
        self._names: dict[int, tuple[str, Optional[CodeLine]]] = {}
        self.values_read = 0
        """Attributes of instances, those included that lead nowhere."""
        by_type: dict[type, _Reader] = {
            types.FunctionType: _of_function,
            types.MethodType: _of_method,
            **dict.fromkeys(_METHODS_IN_C, _of_method_in_c),
            types.CellType: _of_cell,
            types.FrameType: _of_frame,
            types.TracebackType: _of_traceback,
            types.MappingProxyType: _of_anything,
            functools.partial: _of_partial,
            LRU_CACHE: _Entries(_of_cache, lambda obj: len(gc.get_referents(obj))),
            Context: _of_context,
            **dict.fromkeys(_GENERATORS, _of_generator),
        }
        self._by_type = {id(cls): links for cls, links in by_type.items()}

    def of(self, obj: Any) -> Iterable[ObjectLink]:
        """All references of an object that may lead to a tensor."""
        reader = self._reader(type(obj))
        return reader.links(obj, 0, MAX_ITEMS) if isinstance(reader, _Entries) else reader(obj)

    def some(self, obj: Any, begin: int, entries: int = LINKS_AT_ONCE) -> tuple[list[ObjectLink], Optional[int]]:
        """Some of them, from a number of its own on, which is 0 at first, and the number of the next, if there are
        more. Of a container those of so many ``entries``. Raises nothing: another thread may change the object
        meanwhile, or it is one like no other."""
        found: list[ObjectLink] = []
        following: Optional[int] = None
        with suppress(Exception):
            reader = self._reader(type(obj))
            if isinstance(reader, _Entries):
                end = begin + entries
                following = end if end < min(reader.length(obj), MAX_ITEMS) else None
                found.extend(reader.links(obj, begin, min(end, MAX_ITEMS)))
            else:
                found.extend(islice(reader(obj), begin, begin + LINKS_AT_ONCE))
                following = begin + LINKS_AT_ONCE if len(found) == LINKS_AT_ONCE else None
        return found, following

    def one(self, obj: Any, begin: int, number: int) -> Optional[ObjectLink]:
        """One of those that were read from there."""
        reader = self._reader(type(obj))
        if isinstance(reader, _Entries):
            return next(islice(reader.links(obj, begin, begin + LINKS_AT_ONCE), number, None), None)
        return next(islice(reader(obj), begin + number, None), None)

    def _reader(self, cls: type) -> _Reader:
        known = self._by_type.get(id(cls))
        if known is None:
            known = self._by_type[id(cls)] = self._new_reader(cls)
        return known

    def _new_reader(self, cls: type) -> _Reader:
        base: Optional[type[Any]] = next((base for base in looks.mro(cls) if looks.is_container(base)), None)
        if base is not None:
            items = _of_dict if base is dict else functools.partial(_of_sequence, base=base)
            return _Entries(items if cls is base else self._with_attributes(items), base.__len__)
        if looks.derives(cls, type):
            return _of_class
        if looks.derives(cls, BaseException):
            return lambda obj: chain(_of_exception(obj), self._of_instance(obj))
        if looks.derives(cls, _local):  # asked for its dict, it would make one for this thread
            return _of_anything
        if looks.derives(cls, self._module):
            return self._of_module
        if looks.derives(cls, self._python_node):
            return self._of_ctx
        return self._of_optimizer if looks.derives(cls, self._optimizer) else self._of_instance

    def _with_attributes(
        self, items: Callable[[Any, int, int], Iterable[ObjectLink]]
    ) -> Callable[[Any, int, int], Iterable[ObjectLink]]:
        """Of what derives from a container, its attributes after the first entries."""
        return lambda obj, begin, end: chain(
            items(obj, begin, end), () if begin else self._of_instance(obj, only_named=True)
        )

    def _name_of(self, cls: type) -> tuple[str, Optional[CodeLine]]:
        known = self._names.get(id(cls))
        if known is None:
            known = self._names[id(cls)] = (looks.class_name(cls), looks.class_place(cls))
        return known

    def _of_instance(self, obj: Any, *, only_named: bool = False) -> Iterable[ObjectLink]:
        cls = type(obj)
        seen = self._instances[id(cls)] = self._instances.get(id(cls), 0) + 1
        if seen > NAMED_INSTANCES and not only_named and not self._may_hold(obj):
            return ()
        attributes = looks.instance_dict(obj)
        values = [] if attributes is None else list(attributes.items())
        slots = self._slots.get(id(cls))
        if slots is None:
            slots = self._slots[id(cls)] = looks.slots_of(cls)
        values += looks.slot_values(obj, slots)
        self.values_read += len(values)
        name, where = self._name_of(cls)
        links = [
            ObjectLink(Via.ATTRIBUTE, f"{name}.{_key(key)}", value, where) for key, value in values if leads_on(value)
        ]
        most_items = queue_bound(obj, values)
        if most_items is not None:
            links = [
                link._replace(most_items=most_items) if looks.container_base(link.child) else link for link in links
            ]
        if only_named:
            return links
        known = {id(attributes), *(id(value) for _, value in values)}
        return [*links, *_of_anything(obj, known)]

    def _may_hold(self, obj: Any) -> bool:
        children = gc.get_referents(obj)
        self.values_read += len(children)
        return any(looks.has_base(child, self._tensor) or looks.container_base(child) is not None for child in children)

    def _of_module(self, obj: Any) -> Iterable[ObjectLink]:
        """Parts by name, hooks by kind, the rest as attributes."""
        name, where = self._name_of(type(obj))
        for key, value in list((looks.instance_dict(obj) or {}).items()):
            if type(key) is str and key in _PART_DICTS and type(value) is dict:
                for part, child in looks.entries_of(value, MAX_ITEMS):
                    if leads_on(child):
                        yield ObjectLink(Via.MODULE, f"{name}.{_key(part)}", child, where)
            elif type(key) is str and key in _HOOK_DICTS:
                yield from _hooks(value, _HOOK_DICTS[key], where)
            elif leads_on(value):
                yield ObjectLink(Via.ATTRIBUTE, f"{name}.{_key(key)}", value, where)

    def _of_ctx(self, obj: Any) -> Iterable[ObjectLink]:
        for link in self._of_instance(obj):
            yield link._replace(via=Via.CONTEXT) if link.via is Via.ATTRIBUTE else link

    def _of_optimizer(self, obj: Any) -> Iterable[ObjectLink]:
        name, where = self._name_of(type(obj))
        attributes = looks.instance_dict(obj) or {}
        stepped = _stepped(attributes.get("param_groups"))
        for key, value in list(attributes.items()):
            if type(key) is str and key == "state" and looks.has_base(value, dict):
                for parameter, state in looks.entries_of(value, MAX_ITEMS):
                    yield ObjectLink(Via.STATE, f"{name}.state", state, where)
                    if id(parameter) not in stepped and leads_on(parameter):  # of a part that was replaced
                        yield ObjectLink(Via.STATE, f"{name}.state", parameter, where)
            elif type(key) is str and key in _HOOK_DICTS:
                yield from _hooks(value, _HOOK_DICTS[key], where)
            elif leads_on(value):
                yield ObjectLink(Via.ATTRIBUTE, f"{name}.{_key(key)}", value, where)


def _stepped(groups: Any) -> frozenset[int]:
    """Ids of the parameters in an optimizer's groups."""
    lists = [group.get("params") for group in groups if type(group) is dict] if type(groups) is list else []
    return frozenset(id(one) for found in lists if type(found) is list for one in found[:MAX_ITEMS])


def leads_on(value: object) -> bool:
    """Whether a value may lead to other objects: the collector leaves those alone that refer to none, or to such."""
    cls = type(value)
    if not gc.is_tracked(value) or id(cls) in _LEAF_IDS:
        return False
    if cls is types.FunctionType:
        return not _is_bare(value)  # type: ignore[arg-type] # SAFETY: its very class
    is_method_in_c = any(cls is one for one in _METHODS_IN_C)
    return not is_method_in_c or leads_on(value.__self__)  # type: ignore[attr-defined] # SAFETY: likewise


def _is_bare(obj: types.FunctionType) -> bool:
    """Whether a function has neither closure nor defaults nor attributes."""
    return obj.__closure__ is None and not (obj.__defaults__ or obj.__kwdefaults__ or obj.__dict__)


def tensor_hooks(hooks: Any) -> Iterable[ObjectLink]:
    return _hooks(hooks, "tensor hook", None)


def tensor_attributes(tensor: Any) -> Iterable[ObjectLink]:
    """What somebody made attributes of one of torch's own tensors, which nearly none has."""
    cls = type(tensor)
    if all(child is cls or not leads_on(child) for child in gc.get_referents(tensor)):
        return ()  # asked for its dict, it would make one
    attributes = list((looks.instance_dict(tensor) or {}).items())
    name = looks.class_name(cls)
    return [ObjectLink(Via.ATTRIBUTE, f"{name}.{_key(key)}", value) for key, value in attributes if leads_on(value)]


def global_hooks() -> Iterable[ObjectLink]:
    """Hooks that torch calls for every module or optimizer, with the place of what it calls."""
    for module in _MODULES_OF_GLOBAL_HOOKS:
        for name, hooks in list((looks.module_globals(sys.modules.get(module)) or {}).items()):
            found = _GLOBAL_HOOKS.fullmatch(name) if type(name) is str else None
            if found is not None and looks.has_base(hooks, dict):
                for _, hook in looks.entries_of(hooks, MAX_ITEMS):
                    function = hook.__func__ if type(hook) is types.MethodType else hook
                    where = looks.code_place(function.__code__) if type(function) is types.FunctionType else None
                    text = f"global {found[1].replace('_', ' ')} hook"
                    yield ObjectLink(Via.HOOK, text if where is None else f"{text} {where.function}", hook, where)


def _hooks(hooks: Any, what: str, where: Optional[CodeLine]) -> Iterable[ObjectLink]:
    if looks.has_base(hooks, dict):
        for _, hook in looks.entries_of(hooks, MAX_ITEMS):
            yield ObjectLink(Via.HOOK, what, hook, where)


def _of_dict(obj: Any, begin: int, end: int) -> Iterable[ObjectLink]:
    for key, value in looks.entries_of(obj, end, begin):
        if gc.is_tracked(value) and leads_on(value):  # a million numbers are passed over fast
            yield ObjectLink(Via.ITEM, f"[{_key(key)!r}]" if type(key) is str else "", value)
        if gc.is_tracked(key) and leads_on(key):
            yield ObjectLink(Via.ITEM, "", key)


def _of_sequence(obj: Any, begin: int, end: int, *, base: type[Any]) -> Iterable[ObjectLink]:
    items = looks.items_of(obj, base, end, begin)
    fields = _fields(type(obj))[begin:end] if base is tuple else ()
    for name, item in zip(fields, items):
        if leads_on(item):
            yield ObjectLink(Via.FIELD, f"{looks.class_name(type(obj))}.{name}", item)
    for item in filter(gc.is_tracked, items[len(fields) :]):
        if leads_on(item):
            yield ObjectLink(Via.ITEM, "", item)


def _fields(cls: type) -> tuple[str, ...]:
    if cls is tuple:
        return ()
    fields = looks.class_dict(cls).get("_fields")
    return tuple(map(_key, fields)) if type(fields) is tuple else ()


def _of_function(obj: types.FunctionType) -> Iterable[ObjectLink]:
    where = looks.code_place(obj.__code__)
    for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or ()):
        try:
            child = cell.cell_contents
        except ValueError:  # not set yet
            continue
        if leads_on(child):
            yield ObjectLink(Via.CELL, f"{where.function} closure's {_key(name)}", child, where)
    for child in obj.__defaults__ or ():
        if leads_on(child):
            yield ObjectLink(Via.FUNCTION, f"a default of {where.function}", child, where)
    for name, child in list((obj.__kwdefaults__ or {}).items()):
        if leads_on(child):
            yield ObjectLink(Via.FUNCTION, f"default {_key(name)} of {where.function}", child, where)
    for name, child in list(obj.__dict__.items()):
        if leads_on(child):
            yield ObjectLink(Via.ATTRIBUTE, f"{where.function}.{_key(name)}", child, where)


def _of_method(obj: types.MethodType) -> Iterable[ObjectLink]:
    yield ObjectLink(Via.OTHER, "method's object", obj.__self__)
    yield ObjectLink(Via.FUNCTION, "method's function", obj.__func__)


def _of_method_in_c(obj: Any) -> Iterable[ObjectLink]:
    yield ObjectLink(Via.OTHER, "method's object", obj.__self__)


def _of_partial(obj: Any) -> Iterable[ObjectLink]:
    return [ObjectLink(Via.FUNCTION, "partial's argument", child) for child in gc.get_referents(obj) if leads_on(child)]


def _of_cell(obj: types.CellType) -> Iterable[ObjectLink]:
    try:
        yield ObjectLink(Via.CELL, "a closure's variable", obj.cell_contents)
    except ValueError:
        return


def _of_frame(obj: types.FrameType) -> Iterable[ObjectLink]:
    """A frame that a traceback keeps."""
    where = looks.code_place(obj.f_code)
    for name, child in local_values(obj):
        if leads_on(child):
            yield ObjectLink(Via.KEPT_LOCAL, f"{_key(name)} in {where.function}()", child, where)


def _of_generator(obj: Any) -> Iterable[ObjectLink]:
    frame = getattr(obj, _GENERATORS[type(obj)])
    return () if frame is None else _of_frame(frame)


def _of_traceback(obj: types.TracebackType) -> Iterable[ObjectLink]:
    yield ObjectLink(Via.EXCEPTION, "traceback", obj.tb_frame)
    if obj.tb_next is not None:
        yield ObjectLink(Via.EXCEPTION, "traceback", obj.tb_next)


def _of_exception(obj: BaseException) -> Iterable[ObjectLink]:
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        child = BaseException.__dict__[name].__get__(obj)
        if name == "args":
            yield ObjectLink(Via.ATTRIBUTE, f"{looks.class_name(type(obj))}.args", child)
        elif child is not None:
            yield ObjectLink(Via.EXCEPTION, "traceback" if name == "__traceback__" else name, child)


def _of_class(obj: type) -> Iterable[ObjectLink]:
    name, where = looks.class_name(obj), looks.class_place(obj)
    for key, child in looks.class_dict(obj).items():
        if type(child) is staticmethod or type(child) is classmethod:
            child = child.__func__
        if leads_on(child) and key not in ("__dict__", "__weakref__"):
            yield ObjectLink(Via.CLASS, f"{name}.{_key(key)}", child, where)


def _of_cache(obj: Any, begin: int, end: int) -> Iterable[ObjectLink]:
    """Keys and answers of a cache, which ``functools`` in C shows to the garbage collector alone."""
    function = (looks.instance_dict(obj) or {}).get("__wrapped__")
    where = looks.code_place(function.__code__) if type(function) is types.FunctionType else None
    info, children = cache_info(obj), gc.get_referents(obj)
    answers = "" if info is None else f", {format_count(info.currsize, 'answer')}"
    name = f"lru_cache of {'a function' if where is None else where.function}{answers}"
    is_bounded = bound_of(obj) is not None
    dicts = [child for child in children if type(child) is dict] if is_bounded else []
    keys = {id(key) for one in dicts for key in list(one)}
    for child in children[begin:end]:
        if child is not function and leads_on(child) and not looks.has_base(child, type):
            yield ObjectLink(Via.CACHE_KEY if id(child) in keys else Via.CACHE, name, child, where)
    if function is not None and not begin:
        yield ObjectLink(Via.FUNCTION, "wrapped function", function)


def _of_context(obj: Context) -> Iterable[ObjectLink]:
    for variable, value in list(Context.items(obj)):
        if leads_on(value):
            yield ObjectLink(Via.GLOBAL, f"ContextVar {_key(variable.name)}", value)


def _of_anything(obj: Any, known: Collection[int] = ()) -> Iterable[ObjectLink]:
    """References that the garbage collector sees of any other object, without its class and the ids ``known``."""
    cls = type(obj)
    others = [child for child in gc.get_referents(obj) if child is not cls and id(child) not in known]
    return [ObjectLink(Via.OTHER, "", child) for child in others if leads_on(child)]


def _key(key: object) -> str:
    return looks.clean(key) if type(key) is str else looks.type_name(key)
