"""A list of values of this node that a restarted agent takes up again: one small file, written whole."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

from tidegauge.core import wire
from tidegauge.files import write_state

_log = logging.getLogger(__name__)

MAX_FILE_BYTES = 4 << 20
V = TypeVar("V")


class KeptRows(Generic[V]):
    """For one thread at a time. A write error is logged once. ``lost``: what it means that the file cannot be used."""

    def __init__(self, path: Path, form: type[V], *, lost: str) -> None:
        self._path = path
        self._form = form
        self._lost = lost
        self._failing = False

    def save(self, rows: Iterable[V]) -> None:
        try:
            write_state(self._path, wire.to_json(tuple(rows)))
        except OSError as error:
            if not self._failing:
                _log.warning("%s cannot be written, so after a restart %s: %s", self._path, self._lost, error)
            self._failing = True
        else:
            self._failing = False

    def load(self) -> tuple[V, ...]:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES)
            return tuple(wire.from_wire(self._form, one) for one in json.loads(content))
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError, RecursionError) as error:
            _log.warning("%s cannot be read, so %s: %s", self._path, self._lost, error)
            return ()
