"""Finds which folders of this process hold libraries and which the user's own code: by what is installed and by where
``__main__`` lives, never by a folder's name.

Taken once, in a thread of the probe's, since it reads files. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import json
import os
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional
from urllib.parse import unquote, urlsplit

from tidegauge.core.evidence.owners import MAX_ROOTS, CodeRoots
from tidegauge.probe.faults import say

LIBRARIES_VARIABLE = "TIDEGAUGE_LIBRARY_ROOTS"
"""Further folders of libraries, separated as ``PATH`` is."""
OWN_VARIABLE = "TIDEGAUGE_CODE_ROOTS"
"""Further folders of the user's own code."""
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")


class _Known:
    roots: Optional[CodeRoots] = None


def known_roots() -> Optional[CodeRoots]:
    """The roots, once ``take_roots`` has run; until then ``None``. Costs nothing."""
    return _Known.roots


def take_roots(pause: Callable[[], None] = lambda: None) -> CodeRoots:
    """This process's roots, read at the first call, which complains about variables; ``pause``: between files."""
    if _Known.roots is None:
        for line in filter(None, (complaint(os.environ, name) for name in (LIBRARIES_VARIABLE, OWN_VARIABLE))):
            say(line)
        _Known.roots = code_roots(_globals("__main__"), os.environ, sys.path, pause)
    return _Known.roots


def code_roots(
    main: Mapping[str, Any], environ: Mapping[str, str], path: Iterable[str], pause: Callable[[], None] = lambda: None
) -> CodeRoots:
    """The roots of a process with these globals of ``__main__``; ``path``: its ``sys.path``."""
    path = list(path)
    installed = {_folder(one) for one in _site_folders()}
    home = _home(main)
    in_packages = any(home.startswith(folder) for folder in installed)
    own = [] if in_packages and not _package(main) else [home]
    libraries = [*_variable(environ, LIBRARIES_VARIABLE), *sorted(installed)]
    # This package wherever it lies: the magic and callbacks of trainers are on the stack of the user's code.
    libraries.append(_folder(os.path.dirname(os.path.dirname(__file__))))
    torch = _globals("torch").get("__file__")
    if type(torch) is str:
        libraries.append(_folder(os.path.dirname(torch)))
    for project in dict.fromkeys((*_distributions(path, pause), *_checkouts(path, pause))):
        if project in installed:
            continue
        (own if home.startswith(project) else libraries).append(project)
    projects = {*installed, *libraries}
    given = [one for one in _variable(environ, "PYTHONPATH") if one not in projects and _project(one) is None]
    own = [*_variable(environ, OWN_VARIABLE), *own, *given]
    return CodeRoots(_usable(libraries), _usable(own))


def complaint(environ: Mapping[str, str], name: str) -> Optional[str]:
    """One line about folders in a variable that cannot be meant, or ``None``."""
    given = [one for one in environ.get(name, "").split(os.pathsep) if one]
    wrong = next((one for one in given if not os.path.isabs(one) or not os.path.isdir(one)), None)
    if wrong is None:
        return None
    why = "no folder here" if os.path.isabs(wrong) else "a relative path, which means another folder where a job starts"
    return f"{name}: {wrong[:160]!r} is {why}; give folders by their absolute paths, separated by {os.pathsep!r}"


def _globals(module: str) -> Mapping[str, Any]:
    found = sys.modules.get(module)
    return vars(found) if type(found) is types.ModuleType else {}


def _usable(folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(folder for folder in folders if len(folder) > 1))[:MAX_ROOTS]


def _folder(path: str) -> str:
    """The path with a separator at its end, so that a folder is no beginning of another's name."""
    return os.path.join(os.path.abspath(path), "")


def _variable(environ: Mapping[str, str], name: str) -> list[str]:
    return [_folder(one) for one in environ.get(name, "").split(os.pathsep) if one]


def _site_folders() -> Iterator[str]:
    paths = sysconfig.get_paths()
    yield from (paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths)
    yield from getattr(site, "getsitepackages", list)()
    user = getattr(site, "getusersitepackages", lambda: None)()
    if user:
        yield user


def _package(main: Mapping[str, Any]) -> str:
    """The package that ``python -m`` started; empty for a script."""
    package = main.get("__package__")
    return package if type(package) is str else ""


def _home(main: Mapping[str, Any]) -> str:
    """The folder of ``__main__``, of the outermost package if it is in one; without a file, where the process is."""
    file = main.get("__file__")
    if type(file) is not str:
        return _folder(os.getcwd())
    folder = os.path.dirname(os.path.abspath(file))
    for _ in _package(main).split(".")[1:]:
        folder = os.path.dirname(folder)
    return _folder(folder)


def _distributions(path: list[str], pause: Callable[[], None]) -> Iterator[str]:
    """Folders of distributions: where each lies on ``path``, and the checkout of one that is installed editable."""
    from importlib import metadata  # here, for a process that never looks

    for one in metadata.distributions(path=path):
        pause()
        try:
            yield _folder(str(one.locate_file("")))
            about = json.loads(one.read_text("direct_url.json") or "{}")
            if about.get("dir_info", {}).get("editable") is True:
                yield _folder(unquote(urlsplit(about["url"]).path))
        except Exception:  # somebody else's file
            continue


def _checkouts(path: Iterable[str], pause: Callable[[], None]) -> Iterator[str]:
    """Folders on ``path`` that are a project's, though it is not installed."""
    for entry in filter(None, path):
        pause()
        project = _project(entry)
        if project is not None:
            yield project


def _project(entry: str) -> Optional[str]:
    """The project that a folder is, or is the ``src`` of."""
    folder = os.path.abspath(entry)
    project = os.path.dirname(folder) if os.path.basename(folder) == "src" else folder
    found = any(os.path.isfile(os.path.join(project, name)) for name in _PROJECT_FILES)
    return _folder(project) if found else None
