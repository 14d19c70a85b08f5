"""What a job offers for a checkpoint on request: its callback, the signal and the paths that its owner declared, or the
word that it has nothing to save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Optional

from tidegauge.probe.checkpoint.files import PATH_VARIABLE, declared_paths
from tidegauge.probe.checkpoint.signal import ALLOWED, SIGNAL_VARIABLE, parse_signal, why_not_sent
from tidegauge.probe.requests import CALLBACK, NONE, SIGNAL, Save

NOTHING_VARIABLE = "TIDEGAUGE_CHECKPOINT"
"""``none``: these ranks have nothing to save (an evaluator, an inference server)."""


class Means(NamedTuple):
    """What there is at this moment: a job may register a callback, or set the variables, while it runs."""

    save: Optional[Save]
    signal_text: str
    signal: Optional[int]
    """``None``: no signal is declared, or one that is not allowed."""
    paths: tuple[str, ...]
    """Where checkpoints are written to, absolute."""
    nothing_text: str = ""
    """What ``TIDEGAUGE_CHECKPOINT`` says."""

    @property
    def way(self) -> Optional[str]:
        """How this process can be asked in a way that gives proof, or ``None``."""
        if self.save is not None:
            return CALLBACK
        if self.signal is not None and self.paths:
            return SIGNAL
        return NONE if self.nothing_text.lower() == NONE else None

    def complaint(self) -> Optional[str]:
        """What is wrong with the variables, for people."""
        if self.signal_text and self.signal is None:
            return f"{SIGNAL_VARIABLE}={self.signal_text[:40]!r} is not {ALLOWED}: no signal is sent for a checkpoint"
        if self.nothing_text and self.nothing_text.lower() != NONE:
            return f"{NOTHING_VARIABLE}={self.nothing_text[:40]!r} is not {NONE!r}: it says nothing"
        if self.signal is not None and not self.paths:
            return f"{SIGNAL_VARIABLE} is set without {PATH_VARIABLE}: nobody could see a checkpoint, none is asked for"
        return None

    def why_unable(self, way: str) -> Optional[str]:
        """Why the job cannot be asked that way now, or ``None``."""
        if way == CALLBACK:
            return None if self.save is not None else "no callback is registered (tidegauge.on_checkpoint_request)"
        if not self.signal_text:
            return f"{SIGNAL_VARIABLE} is not set: which signal asks for a checkpoint is the owner's to say"
        if self.signal is None or not self.paths:
            return self.complaint()
        return why_not_sent(self.signal)


def means_of(environ: Mapping[str, str], save: Optional[Save]) -> Means:
    """The means that the environment and a registered callback are."""
    text = environ.get(SIGNAL_VARIABLE, "").strip()
    nothing = environ.get(NOTHING_VARIABLE, "").strip()
    return Means(save, text, parse_signal(text), declared_paths(environ.get(PATH_VARIABLE, "")), nothing)
