"""Our remark in a job's comment, beside what its owner wrote there. Pure."""

from __future__ import annotations

import re

from tidegauge.core.text import one_line

MAX_COMMENT_BYTES = 1024
"""slurmctld refuses longer ones (``MAX_STR_LEN``)."""
MAX_REMARK_BYTES = 300
_REMARK = re.compile(r" ?\[tidegauge says: [^\[\]]*\]")
_WORD_MARK = re.compile("tidegauge:", re.IGNORECASE)


def with_remark(comment: str, text: str) -> str | None:
    """``comment`` with our remark in place of an earlier one; ``None`` if there is no room beside the owner's words.

    The remark holds no ``tidegauge:WORD``: only the owner says that a job may be requeued, or is to be left alone.
    """
    own = without_remark(comment)
    remark = f"[tidegauge says: {_tame(text)}]"
    found = f"{own} {remark}" if own else remark
    return found if len(found.encode(errors="surrogateescape")) <= MAX_COMMENT_BYTES else None


def without_remark(comment: str) -> str:
    """What the owner wrote."""
    return _REMARK.sub("", comment)


def _tame(text: str) -> str:
    line = " ".join(one_line(text, None, replacement=" ").split())
    plain = _WORD_MARK.sub("tidegauge ", line.replace("[", "(").replace("]", ")"))
    return plain.encode()[:MAX_REMARK_BYTES].decode(errors="ignore")
