"""A job's program: notes that it was started, and with which environment, and runs until it is told to end.

``job.py FOLDER``: writes ``FOLDER/PID.json`` and ends with 0 once ``FOLDER/end`` is there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
part = folder / f"{os.getpid()}.part"
part.write_text(json.dumps(dict(os.environ)))
part.rename(folder / f"{os.getpid()}.json")
while not (folder / "end").exists():
    time.sleep(0.05)
