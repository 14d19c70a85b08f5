"""Runs one estimate in the interpreter that has the user's torch, for ``tidegauge estimate``: JSON on stdout.

Started as a file, by whatever Python trains: only the package ``tidegauge`` becomes importable, not what is installed
beside it, which belongs to another environment. What FUNCTION prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


class _TidegaugeFinder:
    """Imports the package that this file belongs to, whatever version the environment may have."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> Any:
        if name != "tidegauge":
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [os.path.dirname(os.path.dirname(_HERE))])


def main(options: dict[str, Any]) -> dict[str, Any]:
    """``{"estimate": …}``, or ``{"problem": KIND, "message": TEXT}``; KIND is usage, function or environment."""
    from tidegauge.core.wire import to_wire
    from tidegauge.estimator.functions import BadFunctionError, find_function, own_frames
    from tidegauge.estimator.recording import EstimateError

    try:
        import torch  # noqa: F401
    except ImportError as error:
        return {"problem": "environment", "message": f"{sys.executable} cannot import torch: {error}"}
    from tidegauge.estimator.estimate import estimate
    from tidegauge.estimator.training import declare_torchvision

    try:
        declare_torchvision()  # FUNCTION's module may import it first of all
        build = find_function(options.pop("function"))
        answer = estimate(build, say=_say, **options)
    except (BadFunctionError, EstimateError) as error:
        return {"problem": "usage", "message": str(error)}
    except Exception as error:
        frames = own_frames(error)
        if not frames and isinstance(error, ValueError):
            return {"problem": "usage", "message": str(error)}
        return {"problem": "function", "message": f"{frames}{type(error).__name__}: {error}"}
    return {"estimate": to_wire(answer)}


def _say(sentence: str) -> None:
    print(f"tidegauge estimate: {sentence} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # it was this folder, whose modules would hide the user's own of the same names
    sys.meta_path.insert(0, _TidegaugeFinder)
    answer_to = os.dup(1)
    os.dup2(2, 1)
    result = main(json.loads(sys.argv[1]))
    with os.fdopen(answer_to, "w", encoding="utf-8") as out:
        json.dump(result, out)
