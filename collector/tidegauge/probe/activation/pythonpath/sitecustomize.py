"""Loads the probe into an interpreter whose environment has no Tidegauge: put this folder first on PYTHONPATH.

Only the package ``tidegauge`` becomes importable, not its neighbours: they belong to the service's environment, not
to the job's. Python imports only the first ``sitecustomize`` on the path, so the next one is run from here.

Any Python 3 of the job may run this file (a system's own 3.6 too), hence no ``from __future__ import annotations``.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _TidegaugeFinder:
    """Finds the package ``tidegauge`` beside this file; last in line, so that an installed one has precedence."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> object:
        if name != "tidegauge":
            return None
        from importlib.machinery import PathFinder

        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(_HERE))))
        return PathFinder.find_spec(name, [root])


def _start_probe() -> None:
    if not os.environ.get("TIDEGAUGE_PROFILE") or sys.version_info < (3, 9):
        return
    try:
        sys.meta_path.append(_TidegaugeFinder)  # type: ignore[arg-type] # SAFETY: only find_spec is asked for
        __import__("tidegauge.probe.activation.boot")
    except Exception:
        return


def _run_next_sitecustomize() -> None:
    """Run the ``sitecustomize`` that this one hides; what it raises is reported by ``site`` as ever."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    rest = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != os.path.realpath(_HERE)]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_start_probe()
_run_next_sitecustomize()
