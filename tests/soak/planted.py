"""The control: processes that leak on purpose, judged as the service is. One that is not caught means that the soak
proves nothing.

    python planted.py BYTES_PER_S
"""

from __future__ import annotations

import subprocess
import sys
import time

FAST_BYTES_PER_S = 50_000
"""What the soak must catch at any length: 180 MB an hour."""
SLOW_BYTES_PER_S = 2_500
"""9 MB an hour: what a full hour must catch, and two minutes cannot."""
TURN_S = 0.1


def planted(bytes_per_s: int) -> subprocess.Popen[bytes]:
    """Begin one. The caller ends it."""
    return subprocess.Popen([sys.executable, __file__, str(bytes_per_s)], stdin=subprocess.DEVNULL)


def main() -> None:
    bytes_per_s = int(sys.argv[1])
    kept: list[bytes] = []
    while True:
        # Objects of a few hundred bytes, as a service loses them, not pages of their own.
        left = int(bytes_per_s * TURN_S)
        while left > 0:
            kept.append(bytes(min(left, 400)))
            left -= 400
        time.sleep(TURN_S)


if __name__ == "__main__":
    main()
