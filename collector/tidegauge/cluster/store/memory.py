"""The memory of jobs' and incidents' ranks as bytes of the database: the text of ``values``, compressed."""

from __future__ import annotations

import zlib

from tidegauge.cluster.store.values import ValueText
from tidegauge.core.job_records.memory import JobMemory

_MEMORY = ValueText(JobMemory)
_MAX_BYTES = 32 << 20
"""Of a text."""


def write_memory(memory: JobMemory) -> bytes:
    """The bytes that ``read_memory`` reads."""
    return zlib.compress(_MEMORY.write(memory).encode())


def read_memory(data: bytes) -> JobMemory:
    """The value. Raises ``ValueError`` for bytes that ``write_memory`` did not make."""
    try:
        return _MEMORY.read(zlib.decompressobj().decompress(data, _MAX_BYTES).decode())
    except zlib.error as error:
        raise ValueError(str(error)) from error
