"""Agreement of a job's ranks on a checkpoint: each at its own step boundary, either all of them save or none.

Saving is often collective, and a rank that enters it alone hangs the job. A step number alone cannot rule that
out: a request may reach one rank in time and another too late, or a deadline may fall between two ranks. So they agree
in ``torch.distributed``'s key-value store, where the verdict is written only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

PATIENCE_S = 30.0
"""How long a rank waits at its boundary for the others. After the last gradient exchange they are within a step of each
other; a job with a rank that never comes is delayed this long, once, and goes on."""
_POLL_S = 0.01
_GO, _NO = "go", "no"


class TorchStore(Protocol):
    """The part of ``torch.distributed.Store`` used here; TCPStore, FileStore and HashStore have it."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter; its new value."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set the key if it is not set yet (with an empty ``expected``); returns its value."""


def all_have_come(
    store: TorchStore,
    key: str,
    ranks: int,
    *,
    willing: bool,
    mono_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether all ``ranks`` came with this key, willing and in time. The answer is the same on each of them.

    One that is not willing does not wait, and ends the waiting of the others. Raises what the store raises.
    """
    come, verdict = f"{key}/come", f"{key}/verdict"
    if not willing:
        store.compare_set(verdict, "", _NO)
        store.add(come, ranks)
        return False
    until_s = mono_s() + PATIENCE_S
    present = store.add(come, 1)
    while present < ranks and mono_s() < until_s:
        sleep(_POLL_S)  # polls, for waiting inside the store would keep the job's other threads from using it
        present = store.add(come, 0)
    return store.compare_set(verdict, "", _GO if present >= ranks else _NO) == _GO.encode()
