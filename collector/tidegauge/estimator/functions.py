"""Finds the user's FUNCTION, and separates its traceback frames from ours. Source-compatible with Python 3.9."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class BadFunctionError(ValueError):
    """The FUNCTION does not exist; the text says what was looked for."""


def find_function(name: str) -> Callable[..., Any]:
    """``MODULE:FUNCTION`` or ``FILE.py:FUNCTION``, from the current directory and the environment.

    Raises ``BadFunctionError``, and whatever the module raises when it is imported.
    """
    module_name, colon, function_name = name.rpartition(":")
    if not colon or not module_name or not function_name:
        raise BadFunctionError(f"{name!r} is not MODULE:FUNCTION, such as train:build or experiments/train.py:build")
    module = _load(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        offered = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        local = [key for key in offered if getattr(getattr(module, key), "__module__", None) == module.__name__]
        raise BadFunctionError(
            f"{module_name} has no function {function_name!r}; functions: {', '.join(sorted(local)) or 'none'}"
        )
    return function  # type: ignore[no-any-return]


def _load(module_name: str) -> Any:
    if module_name.endswith(".py"):
        path = os.path.abspath(module_name)
        if not os.path.isfile(path):
            raise BadFunctionError(f"no such file: {path}")
        # As a script would have it: what lies beside the file can be imported.
        sys.path.insert(0, os.path.dirname(path))
        module_name = os.path.basename(path)[: -len(".py")]
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise BadFunctionError(f"{path} cannot be loaded as a module")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
        return module
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise  # something that the module itself imports
        raise BadFunctionError(
            f"no module {module_name!r} in {os.getcwd()} or in the environment of {sys.executable}"
        ) from error


@contextmanager
def dropped_output() -> Iterator[None]:
    """Drop what Python code prints to stdout meanwhile; stderr is left alone."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


def own_frames(error: BaseException) -> str:
    """The lines of the traceback that are in the user's own files, as Python prints them; empty without any."""
    libraries = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), _OURS]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", *libraries)) and frame.filename != "__main__"
    ]
    return "".join(traceback.format_list(frames))
