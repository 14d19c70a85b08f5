"""File descriptors of the probe in a process that is not its own.

A job may close every descriptor it did not open itself (``os.closerange``, a daemonising library), and the kernel then
gives our numbers to the job's own files. From then on our read would eat its data, our write and our close would hit
its files. So a number is used only while it still names what we opened.
"""

from __future__ import annotations

import errno
import os
from typing import Optional


class DescriptorLostError(OSError):
    """The job closed this descriptor of ours: its number may now be a file of the job."""

    def __init__(self) -> None:
        super().__init__(errno.EBADF, "the job closed the probe's file descriptors")


class OwnDescriptor:
    """An open descriptor, and the file that it named when we got it."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._named: Optional[tuple[int, int]] = _named_by(number)

    def number(self) -> int:
        """The number, to use at once and not to keep. Raises ``DescriptorLostError``. Costs an fstat(2), under 1 us."""
        if not self.is_ours():
            raise DescriptorLostError
        return self._number

    def is_ours(self) -> bool:
        """Whether it is open and still names what it named."""
        try:
            return self._named is not None and _named_by(self._number) == self._named
        except OSError:
            return False

    def close(self) -> None:
        """Close it, unless that was done before, by us or by the job."""
        if self.is_ours():
            os.close(self._number)
        self._named = None


def _named_by(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino
