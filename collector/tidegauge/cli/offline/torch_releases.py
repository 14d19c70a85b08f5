"""A release of PyTorch as people write it behind ``--torch-version``."""

from __future__ import annotations

import argparse
import re

_RELEASE = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}[0-9A-Za-z.+]{0,40}", re.ASCII)


def torch_release(text: str) -> str:
    """``text``, such as ``2.11``, ``2.11.0`` or ``2.11.0+cu130``. What cannot be read would quietly stand for an old
    or an unknown release, and the answer for another allocator.

    Raises ``argparse.ArgumentTypeError``, so that it may be an argument's type.
    """
    if not _RELEASE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a PyTorch version such as 2.11.0")
    return text
