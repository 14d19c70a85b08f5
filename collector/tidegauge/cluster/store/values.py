"""Frozen values as JSON text that gives back the same value: the form of incidents, decisions, evidence, job
records and profiles in the database.

Fields go by name, so that a value may gain fields with defaults: an older text lacks them, and unknown fields of a
newer version are ignored. Any other change that an older reader would not understand (a renamed field, another meaning,
a new member of an enum) needs a migration, which older versions refuse. Infinity, which JSON lacks, is the string
"Infinity".
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from tidegauge.core.evidence import Evidence
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import Decision
from tidegauge.core.job_records.record import JobRecord
from tidegauge.core.profile.rank_profile import RankProfile

V = TypeVar("V")
_UNKNOWN_FIELD = ("unexpected_keyword_argument", "extra_forbidden")
"""What pydantic calls a field that a NamedTuple does not have (dataclasses pass it over); the second since 2.14."""
_LARGEST = (1 << 63) - 1
_MAX_NAME_CHARS = 200
"""Characters. PostgreSQL takes no more than 2704 bytes into an index, and a job may call itself anything."""


class ValueText(Generic[V]):
    """Reads and writes one type of value."""

    def __init__(self, value_type: type[V]) -> None:
        self._adapter: TypeAdapter[V] = TypeAdapter(value_type)

    def write(self, value: V) -> str:
        """The text of a value: equal values give equal texts."""
        return json.dumps(_plain(value), allow_nan=False, separators=(",", ":"))

    def read(self, text: str) -> V:
        """The value. Raises ``ValueError`` for a text that ``write`` did not make."""
        raw = json.loads(text)
        try:
            return self._adapter.validate_python(raw)
        except ValidationError as error:
            unknown = [one["loc"] for one in error.errors() if one["type"] in _UNKNOWN_FIELD]
            if not unknown:
                raise
        for path in unknown:
            _drop(raw, path)
        return self._adapter.validate_python(raw)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _plain(part) for name, part in zip(value._fields, value)}
    if isinstance(value, Mapping):
        return {str(_plain(name)): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(part) for part in value)
    return value


def _drop(raw: Any, path: tuple[int | str, ...]) -> None:
    for step in path[:-1]:
        raw = raw[step]
    raw.pop(path[-1], None)


def column_text(text: str) -> str:
    """Text for people that every database accepts: without NUL, and valid UTF-8."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def fits_column(*numbers: int) -> bool:
    """Whether every database has an integer for each of these numbers, which come from a job."""
    return all(-_LARGEST <= number <= _LARGEST for number in numbers)


def column_name(name: str) -> str:
    """A name that every database accepts, in an index too. Different names stay different, so that nobody can make two
    jobs look like one: invalid characters are escaped, the end of a long name becomes its hash."""
    shown = escaped_name(name)
    if len(shown) <= _MAX_NAME_CHARS:
        return shown
    return f"{shown[:_MAX_NAME_CHARS]}~{hashlib.sha256(shown.encode()).hexdigest()}"


def is_whole_name(column: str) -> bool:
    """Whether the ``column_name`` is the name itself, neither escaped nor cut."""
    return "\\" not in column and len(column) <= _MAX_NAME_CHARS


def escaped_name(name: str) -> str:
    """``column_name`` of a short name, of any length: for patterns."""
    return name.replace("\\", "\\\\").replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


INCIDENT = ValueText(Incident)
DECISION = ValueText(Decision)
EVIDENCE = ValueText(Evidence)
JOB_RECORD = ValueText(JobRecord)
RANK_PROFILE = ValueText(RankProfile)
