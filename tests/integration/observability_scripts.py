"""The scripts of deploy/observability as child processes: what they start is what a site has."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.server_process import end, free_port, wait_until_ready

OBSERVABILITY = Path(__file__).parents[2] / "deploy" / "observability"


@contextmanager
def brought_up(
    script: str, folder: Path, *options: str, port: int | None = None, scripts: Path = OBSERVABILITY
) -> Iterator[str]:
    """The script at work, from ready until the block ends; gives its server's address. Its data is in
    ``folder/data``, what it says in ``folder/SCRIPT.log``."""
    port = port or free_port()
    log_path = folder / f"{script}.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [scripts / script, "--port", str(port), "--data", str(folder / "data"), *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(process, url, log_path)
        yield url
    finally:
        end(process)  # the script has become the server
