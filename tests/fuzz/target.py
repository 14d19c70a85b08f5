"""What a fuzz target is, and the table of all of them. Imports nothing of the product."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

CORPUS = Path(__file__).with_name("corpus")
FOUND = Path(__file__).with_name("found")
"""New failures; not kept in the repository (``corpus`` keeps those that were mended)."""


@dataclass(frozen=True)
class Target:
    """One reader and what has to hold for whatever it is given."""

    one: Callable[[bytes], None]
    """Gives one input to the reader. Anything that it raises is a finding; refusals in the reader's words are not."""
    seeds: Callable[[], Iterable[bytes]]
    """Real inputs, from the files that the other tests keep: not repeated in the corpus."""
    mend: Callable[[bytes, Random], bytes] | None = None
    """Puts checksums and compression right after bytes were changed, so that the changes are met behind them."""
    words: tuple[bytes, ...] = ()
    """What mutations put in: words of the format."""
    most_bytes: int = 1 << 16
    most_s: float = 2.0
    """Processor time for one input, with the instruments that fuzzing adds (three to ten times slower than without)."""
    most_new_bytes: int = 512 << 20
    """Address space for one input, beyond what the reader's modules take."""
    sandboxed: bool = True
    """No file may be opened, no socket made, nothing imported, run or started while an input is read."""
    allowed: frozenset[str] = frozenset()
    """Audit events that the target itself needs for its oracles."""


_PLACES = {
    "ring": "ring",
    "pickle": "snapshots:PICKLE",
    "columns": "snapshots:COLUMNS",
    "packing": "snapshots:PACKING",
    "npz": "snapshots:NPZ",
    "evidence": "evidence:EVIDENCE",
    "evidence_snapshot": "evidence:SNAPSHOT",
    "oom": "texts:OOM",
    "listpids": "texts:LISTPIDS",
    "squeue": "texts:SQUEUE",
    "policy": "policy",
    "web_config": "web_config",
    "opener": "opener",
    "job_settings": "json_bodies:JOB_SETTINGS",
    "webhook": "json_bodies:WEBHOOK",
    "wire": "json_bodies:WIRE",
    "messages": "messages",
    "commands": "commands",
    "pods": "pods",
    "http": "requests",
}
NAMES = tuple(_PLACES)
"""In the order of the table."""


def load(name: str) -> Target:
    """The target called ``name``, with the modules that it tries."""
    module, _, attribute = _PLACES[name].partition(":")
    target = getattr(importlib.import_module(f"fuzz.targets.{module}"), attribute or "TARGET")
    assert isinstance(target, Target)
    return target


def kept(name: str) -> list[Path]:
    """The corpus of a target: inputs that reached something new once, and those that found a bug."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())
