"""Finds the tensors of known purpose: parameters, buffers, gradients and optimizer state, by the addresses of their
storages.

Modules and optimizers are found once, over some step boundaries, and kept as weak references. Their tensors are read
at a boundary when a recording begins and ends: addresses may change between. Gradients come first, for the next step
frees them. No tensor outlives the call that reads it. Runs no code of the job's; source-compatible with Python 3.9.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Optional

from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_recording import MAX_OWNED, OwnedTensor
from tidegauge.core.text import one_line
from tidegauge.probe.evidence.module_paths import (
    MAX_ENTRIES,
    MAX_NAME_CHARS,
    Models,
    NamedModule,
    entries_of_module,
    joined,
    named_modules,
)
from tidegauge.probe.holders import looks
from tidegauge.probe.holders.from_names import Forward
from tidegauge.probe.holders.links import ObjectLinks
from tidegauge.probe.holders.pace import Work
from tidegauge.probe.holders.ref_paths import RefPath
from tidegauge.probe.holders.tensors import Tensors

MAX_OBJECTS = 60_000
"""Followed from names."""
MAX_NESTING = 3
"""Of containers in an optimizer's state."""
_OPTIMIZERS = ("optimizer", "_optimizer", "optim")
"""Attributes of optimizers that wrap another one."""
_AT_ONCE = 10
"""Parameters whose states are read in one unit of work."""
_PARAMETER_ATTRIBUTES: Mapping[str, Category] = {
    "main_grad": Category.GRADIENTS,  # Megatron
    "_saved_grad_shard": Category.GRADIENTS,  # FSDP1's FlatParameter, as the others
    "_local_shard": Category.PARAMETERS,
    "_mp_shard": Category.PARAMETERS,
    "_full_param_padded": Category.PARAMETERS,
    "_full_prec_full_param_padded": Category.PARAMETERS,
    "ds_tensor": Category.PARAMETERS,  # DeepSpeed ZeRO-3: the part of this rank
}
"""Tensors that are attributes of a parameter."""
_Name = tuple[str, Optional[int]]
"""Of a tensor, and its model's number."""
_NO_NAME: _Name = ("", None)
_FLAT_PACKAGES = ("deepspeed.", "megatron.")
_FLAT_ATTRIBUTES: Mapping[str, Category] = {
    "grad_data": Category.GRADIENTS,  # Megatron's _ParamAndGradBuffer
    "param_data": Category.PARAMETERS,
    "averaged_gradients": Category.GRADIENTS,  # DeepSpeed's optimizers
    "grad_partitions_flat_buffer": Category.GRADIENTS,
    "bit16_groups_flat": Category.PARAMETERS,
    "fp16_partitioned_groups_flat": Category.PARAMETERS,
    "single_partition_of_fp32_groups": Category.OPTIMIZER_STATE,
    "fp32_partitioned_groups_flat": Category.OPTIMIZER_STATE,
    "ipg_buffer": Category.COMMUNICATION,
    "ipg_bucket_flat_buffer": Category.COMMUNICATION,
}
"""Attributes of these packages' objects that hold tensors, or containers of some."""


class OwnedTensors:
    """The search and the readings of one recording."""

    def __init__(self, torch: Any, stepped: Callable[[], Sequence[Any]]) -> None:
        """``stepped``: the optimizers that the process has stepped lately."""
        self._torch = torch
        self._tensors = Tensors(torch)
        self._stepped = stepped
        self._census = _Census(torch, self._tensors)
        self.modules: list[NamedModule] = []
        self.numbered = Models()
        self._is_whole = False
        """Whether nothing was left out."""

    def find(self) -> Work[None]:
        """Find the process's modules and optimizers, from its names."""
        forward = Forward(self._tensors, ObjectLinks(self._torch), self._census, most_objects=MAX_OBJECTS)
        yield from forward.run()
        self._is_whole = not forward.was_cut
        yield from forward.forget()
        yield from forward.trails.forget()

    def give(self, models: Iterable[Any], optimizers: Iterable[Any]) -> None:
        """These instead of ``find``."""
        given = set()
        for model in models:
            for module in _below(model):
                if id(module) not in given:
                    given.add(id(module))
                    self._census.note(module)
        self._is_whole = bool(given)
        found = [one for optimizer in optimizers for one in wrapped_optimizers(optimizer)]
        self._census.optimizers += filter(None, map(_weak, found))

    def name_modules(self, pace: Callable[[], None]) -> None:
        """Name what ``find`` has found, or has until it was cut short; in any thread."""
        self.modules = list(named_modules(self._census.modules, self.numbered, pace))

    @property
    def models(self) -> Sequence[str]:
        """Names of the outermost modules."""
        return self.numbered.names

    def module_paths(self) -> Iterator[tuple[weakref.ref[Any], str]]:
        """The modules that ``name_modules`` has named, as ``RankRecording.module_of`` calls them."""
        for reference, path, model in self.modules:
            yield reference, joined(self.models[model], path)

    @property
    def others(self) -> Mapping[int, tuple[int, str]]:
        """Sizes of all storages that names led to as the search went on, and what the program calls them: an average of
        the weights, a cache. By address."""
        return self._census.others

    def reading(self) -> TensorReading:
        """One reading, at the boundary at which it begins."""
        optimizers = {id(one): one for one in chain(_alive(self._census.optimizers), self._stepped())}
        references = [reference for reference in map(_weak, optimizers.values()) if reference is not None]
        return TensorReading(self._tensors, self.modules, references, self._census.flat, is_whole=self._is_whole)


class TensorReading:
    """Reads the tensors' addresses. ``gradients`` first, then ``rest``."""

    def __init__(
        self,
        tensors: Tensors,
        modules: Sequence[NamedModule],
        optimizers: Sequence[weakref.ref[Any]],
        flat: Sequence[weakref.ref[Any]],
        *,
        is_whole: bool,
    ) -> None:
        """``is_whole``: these are all modules that names lead to."""
        self._tensors = tensors
        self._modules = modules
        self._optimizers = optimizers
        self._flat = flat
        self._is_whole = is_whole
        self.bucket_bytes: list[int] = []
        """Sizes of buckets of ``DistributedDataParallel``, whose addresses only C++ knows."""
        self._names: dict[int, str] = {}
        """Of the modules' parameters, by their ids."""
        self._models: dict[int, int] = {}
        """The same of their models."""
        # In columns: so many new objects would set off a collection of all of the job's.
        self._rows: dict[int, int] = {}
        """By the addresses of storages."""
        self._sizes: list[int] = []
        self._categories: list[Category] = []
        self._offsets: list[int] = []
        """Of the tensor that was found first in each storage."""
        self._names_of: list[str] = []
        self._models_of: list[Optional[int]] = []

    def owned(self, pace: Callable[[], None]) -> tuple[OwnedTensor, ...]:
        """What was read so far, the largest first; in any thread."""
        columns = zip(self._rows, self._sizes, self._categories, self._names_of, self._models_of)
        found = []
        for address, size_bytes, category, name, model in sorted(columns, key=lambda row: -row[1])[:MAX_OWNED]:
            known = model if len(name) <= MAX_NAME_CHARS else None
            found.append(OwnedTensor(address, size_bytes, category, one_line(name[-MAX_NAME_CHARS:]), known))
            pace()
        return tuple(found)

    def whole(self) -> Work[None]:
        yield from self.gradients()
        yield from self.rest()

    def module_of_parameter(self, parameter: int) -> Optional[tuple[str, int]]:
        """By the ``id`` of a parameter of the modules': its name, and its model's number."""
        model = self._models.get(parameter)
        return None if model is None else (self._names[parameter], model)

    def gradients(self) -> Work[None]:
        for module in self._modules:
            self._read_gradients(module)
            yield False
        for reference in self._optimizers:
            self._read_stepped_gradients(reference)
            yield False

    def rest(self) -> Work[None]:
        for module in self._modules:
            self._read_module(module)
            yield False
        for reference in self._optimizers:
            self._read_stepped(reference)
            yield False
            at = 0
            while self._read_states(reference, at):
                at += _AT_ONCE
                yield False
        for reference in self._flat:
            self._read_attributes(_dict_of(reference()), _FLAT_ATTRIBUTES, _NO_NAME)
            yield False

    def _read_gradients(self, module: NamedModule) -> None:
        for name, parameter in entries_of_module(module.reference(), "_parameters"):
            self._names[id(parameter)], self._models[id(parameter)] = joined(module.path, name), module.model
            self._add_gradient(parameter)

    def _read_stepped_gradients(self, reference: weakref.ref[Any]) -> None:
        for parameter in _parameters_of(reference):
            if id(parameter) not in self._names:
                self._add_gradient(parameter)

    def _add_gradient(self, parameter: Any) -> None:
        name = self._name_of(parameter)
        gradient = self._tensors.gradient(parameter)
        if gradient is not None:
            self._add(gradient, Category.GRADIENTS, name)
        self._read_attributes(self._tensors.attributes(parameter), _PARAMETER_ATTRIBUTES, name)

    def _read_module(self, module: NamedModule) -> None:
        for names, category in (("_parameters", Category.PARAMETERS), ("_buffers", Category.BUFFERS)):
            for name, tensor in entries_of_module(module.reference(), names):
                self._add(tensor, category, (joined(module.path, name), module.model))
        attributes = _dict_of(module.reference()) or {}
        flat = (_dict_of(attributes.get("_handle")) or {}).get("flat_param")  # FSDP1's
        if flat is not None:
            self._add(flat, Category.PARAMETERS, _NO_NAME)
            self._add_gradient(flat)
        if attributes.get("gradient_as_bucket_view") is False:  # else gradients lie in the buckets
            self.bucket_bytes.extend(_bucket_sizes(attributes.get("logger")))

    def _read_stepped(self, reference: weakref.ref[Any]) -> None:
        """Parameters of an optimizer. Where none of them is a module's, they are copies in another precision."""
        parameters = list(_parameters_of(reference))
        has_models = self._is_whole and bool(self._names)
        are_copies = has_models and not any(id(one) in self._names for one in parameters)
        category = Category.OPTIMIZER_STATE if are_copies else Category.PARAMETERS
        for parameter in parameters:
            self._add(parameter, category, self._name_of(parameter))

    def _read_states(self, reference: weakref.ref[Any], at: int) -> bool:
        """Whether there were any."""
        states: Any = (_dict_of(reference()) or {}).get("state")
        if not looks.has_base(states, dict):
            return False
        some = list(islice(dict.items(states), at, at + _AT_ONCE))
        for parameter, values in some:
            name = self._name_of(parameter)
            for value in list(values.values()) if type(values) is dict else (values,):
                if self._tensors.is_tensor(value):  # nearly always
                    self._add(value, Category.OPTIMIZER_STATE, name)
                else:
                    for tensor in self._nested(value):
                        self._add(tensor, Category.OPTIMIZER_STATE, name)
        return bool(some)

    def _read_attributes(
        self, attributes: Optional[dict[str, Any]], wanted: Mapping[str, Category], name: _Name
    ) -> None:
        if not attributes:
            return
        for attribute, category in wanted.items():
            if attribute in attributes:
                for tensor in self._nested(attributes[attribute]):
                    self._add(tensor, category, name)

    def _nested(self, value: Any, nesting: int = 0) -> Iterator[Any]:
        """The tensors in a container, or the value if it is one."""
        if self._tensors.is_tensor(value):
            yield value
        elif nesting < MAX_NESTING and looks.container_base(value) is not None:
            if looks.has_base(value, dict):
                parts: Iterable[Any] = [part for _, part in looks.entries_of(value, MAX_ENTRIES)]
            elif looks.has_base(value, list) or looks.has_base(value, tuple):
                parts = looks.items_of(value, list if looks.has_base(value, list) else tuple, MAX_ENTRIES)
            else:
                return
            for part in parts:
                yield from self._nested(part, nesting + 1)

    def _name_of(self, parameter: Any) -> _Name:
        return self._names.get(id(parameter), ""), self._models.get(id(parameter))

    def _add(self, tensor: Any, category: Category, named: _Name) -> None:
        name, model = named
        for address, size_bytes, offset_bytes in self._tensors.storages(tensor):
            row = self._rows.setdefault(address, len(self._sizes))
            if row == len(self._sizes):
                self._sizes.append(size_bytes)
                self._categories.append(category)
                self._offsets.append(offset_bytes)
                self._names_of.append(name)
                self._models_of.append(model)
            elif self._offsets[row] != offset_bytes:  # a flat buffer of many
                self._names_of[row], self._models_of[row] = _NO_NAME


class _Census:
    """Notes modules, optimizers, objects with flat buffers, and addresses of tensors, as ``Forward`` meets them."""

    def __init__(self, torch: Any, tensors: Tensors) -> None:
        self._tensors = tensors
        self._module, self._optimizer = torch.nn.Module, torch.optim.Optimizer
        self.modules: list[weakref.ref[Any]] = []
        self.optimizers: list[weakref.ref[Any]] = []
        self.flat: list[weakref.ref[Any]] = []
        self.others: dict[int, tuple[int, str]] = {}

    def tensor(self, tensor: Any, trail: RefPath) -> bool:
        for address, size_bytes, _ in self._tensors.storages(tensor):
            if address not in self.others and len(self.others) < MAX_OWNED:
                self.others[address] = (size_bytes, _text_of(trail))
        return False

    def graph(self, _node: Any, _name: str, _trail: RefPath) -> Work[tuple[int, Sequence[Any]]]:
        yield False
        return 0, ()

    def second_way(self, _known: RefPath, _other: RefPath) -> None:
        """Two ways lead to the same objects."""

    def is_noted(self, cls: type) -> bool:
        return (
            looks.derives(cls, self._module)
            or looks.derives(cls, self._optimizer)
            or looks.type_module(cls).startswith(_FLAT_PACKAGES)
        )

    def note(self, obj: Any) -> None:
        reference = _weak(obj)
        if reference is None:
            return
        if looks.has_base(obj, self._module):
            self.modules.append(reference)
        elif looks.has_base(obj, self._optimizer):
            self.optimizers.append(reference)
        if looks.type_module(type(obj)).startswith(_FLAT_PACKAGES):
            self.flat.append(reference)


def _text_of(trail: RefPath) -> str:
    """``EMA.shadow['head.weight']``."""
    text, before = trail.step.text, trail.before
    while before is not None and (not text or text.startswith("[")):
        text, before = f"{before.step.text}{text}", before.before
    return text


def _parameters_of(reference: weakref.ref[Any]) -> Iterator[Any]:
    """Those that an optimizer steps."""
    groups = (_dict_of(reference()) or {}).get("param_groups")
    for group in groups if type(groups) is list else ():
        parameters = dict.get(group, "params") if looks.has_base(group, dict) else None
        if type(parameters) is list:
            yield from parameters


def _bucket_sizes(logger: Any) -> Iterator[int]:
    """Of a ``DistributedDataParallel``, by torch's own records of it, which are in C++."""
    if looks.type_module(type(logger)).startswith("torch._C."):
        log = logger._get_ddp_logging_data().strs_map
        sizes = str(log.get("rebuilt_bucket_sizes") or log.get("bucket_sizes") or "")
        yield from (int(size) for size in sizes.split(",") if size.strip().isdigit())


def _below(module: Any) -> Iterator[Any]:
    """A module and those in it, each before those that are in it."""
    waiting, seen = [module], set()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [child for _, child in entries_of_module(one, "_modules")][::-1]


def wrapped_optimizers(optimizer: Any) -> Iterator[Any]:
    """An optimizer, and those that it wraps: accelerate's, Lightning's, ZeRO-1's."""
    for _ in range(MAX_NESTING):
        if optimizer is None:
            return
        yield optimizer
        attributes = _dict_of(optimizer) or {}
        optimizer = next((attributes[name] for name in _OPTIMIZERS if name in attributes), None)


def _dict_of(obj: Any) -> Optional[dict[str, Any]]:
    return None if obj is None else looks.instance_dict(obj)


def _weak(obj: Any) -> Optional[weakref.ref[Any]]:
    try:
        return weakref.ref(obj)
    except TypeError:
        return None


def _alive(references: Iterable[weakref.ref[Any]]) -> Iterator[Any]:
    return (obj for obj in (reference() for reference in references) if obj is not None)
