"""PyTorch's version as ``torch.__version__`` writes it (``2.11.0+cu130``)."""

from __future__ import annotations


def torch_at_least(version: str, major: int, minor: int) -> bool:
    """Whether ``version`` is at least ``major.minor``; false for one that is odd."""
    try:
        first, second = version.split(".")[:2]
        return (int(first), int(second)) >= (major, minor)
    except ValueError:
        return False
