"""Messages by protobuf's own library, from a public schema that a test writes down: what is encoded or read by it is
not what Tidegauge's own reader makes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped] # SAFETY: tests only; its stubs are another package
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

INT64, INT32, BOOL, STRING, BYTES = 3, 5, 8, 9, 12
"""``FieldDescriptorProto.Type``."""
_MESSAGE = 11


def message_maker(
    schema: Mapping[str, Sequence[tuple[str, int, int | str]]], repeated: Collection[str]
) -> Callable[..., Any]:
    """A function that makes a message of a name with given fields. ``schema``: of each message the names, numbers and
    types of its fields; a text is the name of a message. ``repeated``: names of fields."""
    file = descriptor_pb2.FileDescriptorProto(name="schema.proto", package="v1", syntax="proto3")
    for name, fields in schema.items():
        message = file.message_type.add(name=name)
        for label, number, kind in fields:
            one = message.field.add(name=label, number=number, label=3 if label in repeated else 1)
            one.type = _MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                one.type_name = f".v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)

    def make(name: str, /, **values: object) -> Any:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}"))(**values)

    return make
