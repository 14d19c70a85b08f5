"""What one scrape costs: a node of 8 ranks on 8 GPUs, and one target with 1,000 ranks; every series present.

Measures rendering in process and a whole request over HTTP on loopback (connection included), as text, as OpenMetrics
and with gzip as Prometheus asks for it. Prints one JSON object; times are milliseconds. Target: a median of at most
15 ms for nodes of 8 and of 16 ranks; of 1,000 ranks on one target, which no site has, the cost is told. Exits with 1 if
the slowest median of a number of ranks misses its target.

    python bench/scrape_cost.py [--ranks 8 16 1000] [--repeat 300]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, ProcessId, RankIdentity
from tidegauge.core.verdicts import Band, LeakState, Severity, Signal, Verdict
from tidegauge.core.views import GpuView, NodeView, RankView
from tidegauge_exporter.metrics.collector import NodeCollector
from tidegauge_exporter.metrics.families import exposition
from tidegauge_exporter.metrics.server import MetricsServer

NODE_RANKS, TARGET_MS = 16, 15.0
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
GIB = 1024**3


def node(ranks: int) -> NodeView:
    """The worst case: every rank leaks, so that every series is there."""
    verdict = Verdict(
        LeakState.LEAK,
        Severity.CRITICAL,
        Signal.ALLOCATED,
        bytes_per_step=Band(1e7, 1.2e7, 1.3e7),
        seconds_to_oom=Band(800.0, 1000.5, 1300.0),
    )
    return NodeView(
        hostname="gpu-node-0042.cluster.example",
        cluster="training-west",
        now_unix_s=1.8e9,
        ranks=tuple(_rank(index, verdict) for index in range(ranks)),
        gpus=tuple(
            GpuView(_uuid(index), index, "NVIDIA H200", 141 * GIB, 100 * GIB + index, 0) for index in range(ranks)
        ),
        collect_success={"rings": True, "nvml": True, "proc": True},
        collect_duration_s={"rings": 0.0004, "nvml": 0.0021, "proc": 0.0007},
        rings_skipped={"truncated": 0, "version": 0, "magic": 0, "symlink": 0, "owner": 0},
    )


def _uuid(index: int) -> DeviceUuid:
    return DeviceUuid(f"GPU-{index:08x}-5b0e-4c1e-9d3f-2f1c8a7b6e5d")


def _rank(index: int, verdict: Verdict) -> RankView:
    identity = RankIdentity(
        job_id=JobId("1234567_89"),
        attempt=1,
        rank=GlobalRank(512 + index),
        local_rank=LocalRank(index),
        world_size=1024,
        hostname="gpu-node-0042",
        torch_version="2.13.0",
        alloc_conf="expandable_segments:True,garbage_collection_threshold:0.8",
    )
    return RankView(
        identity=identity,
        process=ProcessId(40_000 + index, 123_456),
        uid=1001,
        user_name="ada",
        uuid=_uuid(index),
        gpu=index,
        last_sample_unix_s=1.8e9 - 0.25,
        step=100_000,
        allocated_bytes=50 * GIB + index,
        reserved_bytes=60 * GIB + index,
        active_bytes=51 * GIB + index,
        inactive_split_bytes=GIB + index,
        requested_bytes=49 * GIB + index,
        allocated_peak_bytes=70 * GIB + index,
        reserved_peak_bytes=72 * GIB + index,
        nontorch_bytes=3 * GIB + index,
        limit_bytes=141 * GIB,
        host_rss_bytes=20 * GIB + index,
        alloc_retries=index,
        ooms=0,
        steps=100_000,
        verdict=verdict,
        alive=True,
    )


def timed_ms(call: Callable[[], object], repeat: int) -> dict[str, float]:
    for _ in range(max(repeat // 15, 2)):
        call()
    times_ms = []
    for _ in range(repeat):
        began_ns = time.perf_counter_ns()
        call()
        times_ms.append((time.perf_counter_ns() - began_ns) / 1e6)
    return {
        "median": round(statistics.median(times_ms), 3),
        "p95": round(statistics.quantiles(times_ms, n=20)[-1], 3),
    }


def measured(ranks: int, repeat: int) -> dict[str, object]:
    view = node(ranks)
    collector = NodeCollector(lambda: view)
    server = MetricsServer(lambda: view)
    server.start()

    def request(**headers: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request(
            "GET", "/metrics", headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        body = connection.getresponse().read()
        connection.close()
        return body

    try:
        times = {
            "render_text": timed_ms(lambda: exposition(collector.collect(), None), repeat),
            "render_openmetrics": timed_ms(lambda: exposition(collector.collect(), OPENMETRICS), repeat),
            "http_text": timed_ms(request, repeat),
            "http_openmetrics": timed_ms(lambda: request(Accept=OPENMETRICS), repeat),
            "http_openmetrics_gzip": timed_ms(lambda: request(Accept=OPENMETRICS, Accept_Encoding="gzip"), repeat),
        }
        compressed = len(request(Accept=OPENMETRICS, Accept_Encoding="gzip"))
    finally:
        server.stop()
    body = exposition(collector.collect(), None).body
    worst_ms = max(each["median"] for each in times.values())
    target_ms = TARGET_MS if ranks <= NODE_RANKS else None
    return {
        "ranks": ranks,
        "samples": sum(not line.startswith(b"#") for line in body.splitlines()),
        "body_bytes": len(body),
        "gzip_bytes": compressed,
        "times_ms": times,
        "worst_median_ms": worst_ms,
        "target_ms": target_ms,
        "ok": target_ms is None or worst_ms <= target_ms,
        "repeat": repeat,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 1000])
    parser.add_argument("--repeat", type=int, default=300, help="scrapes of the smallest; fewer of larger ones")
    args = parser.parse_args()
    results = [measured(ranks, max(args.repeat * min(args.ranks) // ranks, 20)) for ranks in args.ranks]
    ok = all(result["ok"] for result in results)
    print(
        json.dumps(
            {
                "bench": "scrape_cost",
                "scrapes": results,
                "ok": ok,
                "load_1min": round(os.getloadavg()[0], 1),
                "python": platform.python_version(),
                "prometheus_client": version("prometheus_client"),
            },
            indent=2,
        )
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
