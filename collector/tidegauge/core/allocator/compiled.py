"""Compiles the model with numba where `readiness` says so; otherwise the same functions run as plain Python.

Their tables are NumPy arrays of int64 when compiled and plain lists otherwise: the fastest of either. A function given
to `compiled` keeps to what both run: whole numbers, tuples and tables.
"""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

from tidegauge.core.allocator.readiness import SOURCES, folder, runs_compiled

Function = TypeVar("Function", bound=Callable[..., Any])
Numbers = list[int]
"""A table; an array of int64 where it is compiled."""

try:
    if not runs_compiled():
        raise ImportError("not yet compiled")
    import numba
    import numpy
except ImportError:
    IS_COMPILED = False

    def compiled(function: Function) -> Function:
        """``function`` itself."""
        return function

    entry_point = compiled

    def move(table: Numbers, source: int, end: int, target: int) -> None:
        """Copy what is from ``source`` to ``end`` to ``target``, which may overlap."""
        table[target : target + end - source] = table[source:end]

    def zeros(count: int) -> Numbers:
        """A table of ``count`` zeros."""
        return [0] * count

    def table_of(values: Sequence[int]) -> Numbers:
        """A table of these numbers."""
        return list(values)

    def column(values: array[int], code: str) -> Any:
        """``values``, an array of the typecode ``code``; what has eight bytes is read as signed. Copies nothing."""
        return memoryview(values).cast("B").cast("q") if code == "Q" else memoryview(values)

else:
    IS_COMPILED = True
    _FOLDER = folder()

    def compiled(function: Function) -> Function:
        """``function`` as part of whatever compiled function calls it; what is not compiled must not call it."""
        return numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")(function)  # type: ignore[no-any-return]

    def entry_point(function: Function) -> Function:
        """``function``, compiled on its first call and kept for the next process."""
        former = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(_FOLDER)
        try:
            return numba.njit(cache=True, no_cfunc_wrapper=True, error_model="numpy")(function)  # type: ignore[no-any-return]
        except (OSError, RuntimeError):  # no folder can be written: compiled afresh in each process
            return numba.njit(function)  # type: ignore[no-any-return]
        finally:
            numba.config.CACHE_DIR = former

    @compiled
    def move(table: Numbers, source: int, end: int, target: int) -> None:
        """Copy what is from ``source`` to ``end`` to ``target``, which may overlap."""
        count = end - source
        if target > source:
            for k in range(count - 1, -1, -1):
                table[target + k] = table[source + k]
        else:
            for k in range(count):
                table[target + k] = table[source + k]

    def zeros(count: int) -> Numbers:
        """A table of ``count`` zeros."""
        return numpy.zeros(count, dtype=numpy.int64)  # type: ignore[return-value]

    def table_of(values: Sequence[int]) -> Numbers:
        """A table of these numbers."""
        return numpy.array(values, dtype=numpy.int64)  # type: ignore[return-value]

    def column(values: array[int], code: str) -> Any:
        """``values``, an array of the typecode ``code``; what has eight bytes is read as signed. Copies nothing."""
        kinds = {"B": numpy.uint8, "H": numpy.uint16, "Q": numpy.int64}
        return numpy.frombuffer(values, dtype=kinds[code]) if len(values) else numpy.zeros(0, dtype=kinds[code])

    def _forget_former_sources() -> None:
        """Delete what was compiled from earlier versions of the sources."""
        if _FOLDER.parent == SOURCES / "__pycache__":
            for folder in _FOLDER.parent.glob("tidegauge-allocator-*"):
                if folder != _FOLDER:
                    shutil.rmtree(folder, ignore_errors=True)

    _forget_former_sources()
