"""What the pages of the web UI cost the coordinator: time and bytes of each, at 10,000 ranks on 1,430 nodes.

    .venv/bin/python bench/web_pages.py [--nodes 1430] [--json]

One process, loopback, no other viewer. The first answer of each page is cold, the others come from caches where there
are some; the ratio to /api/v1/overview says what a page costs beside what `tidegauge top` asks for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from web_world import LEAKY, fill, web_service

PATHS = ("api/v1/overview", "jobs", f"job?job_id={LEAKY}", f"api/v1/heat-map?job_id={LEAKY}", "nodes", "history",
         "incidents", "policy", "report?incident=1")  # fmt: skip
TIMES = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1430)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, web_service(Path(folder), nodes=0) as service:
        fill(service, nodes=args.nodes, steps=3)
        found = {path: _ask(f"{service.url}/{path}") for path in PATHS}
    base = found[PATHS[0]]["median_ms"]
    if args.json:
        print(json.dumps(found))
        return
    print(f"{'page':<36}{'first ms':>10}{'median ms':>11}{'of overview':>13}{'kB':>8}")
    for path, one in found.items():
        share = one["median_ms"] / base
        print(f"{path:<36}{one['first_ms']:>10.1f}{one['median_ms']:>11.1f}{share:>13.1f}{one['bytes'] / 1000:>8.0f}")


def _ask(url: str) -> dict[str, float]:
    times_ms, size = [], 0
    for _ in range(TIMES):
        began_s = time.perf_counter()
        with urllib.request.urlopen(url, timeout=60) as answer:
            size = len(answer.read())
        times_ms.append(1000 * (time.perf_counter() - began_s))
    return {"first_ms": times_ms[0], "median_ms": statistics.median(times_ms[1:]), "bytes": size}


if __name__ == "__main__":
    main()
