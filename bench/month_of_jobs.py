"""A month of ended jobs in the head's database: its size, and how long what people ask takes. Prints JSON.

    .venv/bin/python bench/month_of_jobs.py [--jobs 20000] [--url sqlite:////tmp/x/tidegauge.db]

Each job has a record, peaks of all its ranks and four curves of 120 points, as the coordinator writes them. Names,
users and figures are drawn with a fixed seed: 40 users with 12 jobs each, 1 to 64 GPUs, most of them half empty. The
bounds: each answer within 0.2 s, the database below 1 GB.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tidegauge.cluster.store import open_store, sqlite_url
from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.memory import MAX_JOB_CURVES, JobMemory, RankMemory
from tidegauge.core.job_records.record import JobEnd, JobRecord, RankPeak
from tidegauge.core.job_records.search import RecordFilter, RecordSought
from tidegauge.core.jobs.right_size import UsageBy
from tidegauge.core.memory_history import BUCKETS, MemoryPoint
from tidegauge.core.verdicts import LeakState

MAX_ANSWER_S = 0.2
MAX_DATABASE_BYTES = 1_000_000_000
MONTH_S, DAY_S = 30 * 86_400.0, 86_400.0
NOW_S = 1_790_000_000.0
GIB = 1 << 30
GPUS = (1, 1, 1, 2, 4, 8, 8, 16, 32, 64)
CARDS = (24 * GIB, 40 * GIB, 80 * GIB, 141 * GIB)
ENDS = (JobEnd.COMPLETED, JobEnd.COMPLETED, JobEnd.COMPLETED, JobEnd.FAILED, JobEnd.CANCELLED, JobEnd.OOM)
USERS, JOBS_EACH = 40, 12
AT_ONCE = 200


def job(number: int, chance: random.Random) -> tuple[JobRecord, JobMemory]:
    user, kind = chance.randrange(USERS), chance.randrange(JOBS_EACH)
    of_kind = random.Random(user * JOBS_EACH + kind)  # the same job asks for the same each time
    gpus, card, share = of_kind.choice(GPUS), of_kind.choice(CARDS), of_kind.betavariate(2.0, 2.5)
    ended_s = NOW_S - chance.random() * MONTH_S
    ran_s = math.exp(chance.gauss(8.5, 1.5))
    peaks = tuple(peak(rank, card, share, chance) for rank in range(gpus))
    fullest_first = tuple(sorted(peaks, key=lambda one: -one.reserved_bytes))
    record = JobRecord(
        job=JobKey(str(4_000_000 + number), 0, 1000 + user), job_name=f"train-{user}-{kind}", user_name=f"user{user}",
        scheduler="slurm", array=None, nodes=-(-gpus // 8), world_size=gpus, started_unix_s=ended_s - ran_s,
        updated_unix_s=ended_s, ended_unix_s=ended_s, end=chance.choice(ENDS), steps=int(ran_s / 0.4),
        fullest=fullest_first[0], state=LeakState.OK, severity=None, signal=None, ooms=0, account=f"group{user % 8}",
        partition=f"gpu{user % 3}", script=f"/home/user{user}/train.py", script_sha256="0" * 64,
        arguments="--config large.yaml --lr 3e-4", torch_version="2.11.0", alloc_conf="expandable_segments:True",
        gpus=gpus,
    )  # fmt: skip
    curves = tuple(curve(one, record, chance) for one in fullest_first[:MAX_JOB_CURVES])
    return record, JobMemory(fullest_first, curves)


def peak(rank: int, card: int, share: float, chance: random.Random) -> RankPeak:
    reserved = int(card * share * (1.0 - 0.1 * chance.random())) >> 21 << 21
    allocated = int(reserved * (0.8 + 0.15 * chance.random())) >> 9 << 9
    return RankPeak(
        rank, f"node{rank // 8:04}", allocated, reserved, card, nontorch_bytes=500 << 20,
        host_bytes=chance.randrange(4 * GIB, 40 * GIB), inactive_split_bytes=reserved - allocated, alloc_retries=0,
        ooms=0, steps=10_000, step_s=0.4, gpu_bytes=card,
    )  # fmt: skip


def curve(one: RankPeak, record: JobRecord, chance: random.Random) -> RankMemory:
    width_s = (record.updated_unix_s - record.started_unix_s) / BUCKETS
    points = [
        MemoryPoint(
            record.started_unix_s + (place + 1) * width_s,
            (place + 1) * record.steps // BUCKETS,
            int(one.allocated_bytes * (0.9 + 0.1 * chance.random())),
            one.reserved_bytes,
            one.nontorch_bytes,
        )
        for place in range(BUCKETS)
    ]
    return RankMemory(one.rank, tuple(points))


def took_s(ask: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    ask()
    return time.perf_counter() - began_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--url", help="an empty database; default: SQLite in a temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="month-of-jobs-") as scratch:
        store = open_store(args.url or sqlite_url(Path(scratch)))
        chance = random.Random(1)
        slowest_s, before_s, some = 0.0, time.perf_counter(), None
        for at in range(0, args.jobs, AT_ONCE):
            made = dict(job(number, chance) for number in range(at, min(at + AT_ONCE, args.jobs)))
            began_s = time.perf_counter()
            store.jobs.save(list(made))
            store.jobs.save_memory(made)
            slowest_s = max(slowest_s, time.perf_counter() - began_s)
            some = next(iter(made))
        assert some is not None
        filled_s = time.perf_counter() - before_s
        month = RecordFilter(since_s=NOW_S - MONTH_S)
        week_s, month_s = NOW_S - 7 * DAY_S, NOW_S - MONTH_S
        asked: dict[str, Callable[[], object]] = {
            "the last 20": lambda: store.jobs.ended(month, limit=20),
            "the last 1000 of one user": lambda: store.jobs.ended(month._replace(user_name="user7"), limit=1000),
            "the last 200 of names like": lambda: store.jobs.ended(month._replace(job_name="train-1*"), limit=200),
            "the last 200 OOMs of an account": lambda: store.jobs.ended(
                month._replace(account="group3", how=JobEnd.OOM), limit=200
            ),
            "a job by name": lambda: store.jobs.starts(RecordSought(job_name="train-7-7"), limit=1),
            "a job by id": lambda: store.jobs.starts(RecordSought(job_id=some.job.job_id), limit=100),
            "how many": lambda: store.jobs.count_ended(month),
            "one job": lambda: store.jobs.latest([some.job]),
            "its memory": lambda: store.jobs.memory(some),
            **{
                f"usage of a {name} by {by.value}": partial(store.usage.usage, by, since_s=since_s, limit=200)
                for by in UsageBy
                for name, since_s in (("week", week_s), ("month", month_s))
            },
        }
        answers_ms = {name: round(1e3 * took_s(ask), 1) for name, ask in asked.items()}
        store.close()
        size_bytes = sum(one.stat().st_size for one in Path(scratch).iterdir())
    met = {
        "answers": max(answers_ms.values()) <= 1e3 * MAX_ANSWER_S,
        "database": args.url is not None or size_bytes <= MAX_DATABASE_BYTES,
    }
    result = {
        "jobs": args.jobs,
        "filled_s": round(filled_s, 1),
        f"slowest_{AT_ONCE}_jobs_written_s": round(slowest_s, 2),
        "database_bytes": size_bytes,
        "answers_ms": answers_ms,
        "met": met,
    }
    print(json.dumps(result, indent=2))
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
