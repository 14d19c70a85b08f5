"""Growth into what has a bound is no danger, and the same growth without one is. All real but the GPUs: the jobs, the
service on Ray, evidence that it collects by itself, incidents by the default rules."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.service import Service, eventually
from tidegauge.core.evidence import Evidence
from tidegauge.core.evidence.words import advice_of, because_lines
from tidegauge.core.wire import from_wire
from tidegauge.probe.activation.launch import activation_environ

pytestmark = [pytest.mark.rig, pytest.mark.timeout(900)]

FILLING = Path(__file__).with_name("rig_jobs") / "filling.py"
KINDS = ("cache", "window", "unbounded")
GPU_BYTES = 2 << 30
ITEMS = 640
"""1.25 GiB, four fifths of what is free: dangerous long before they are full."""
WITHIN_S = 400.0


@pytest.fixture
def environ(rig: Rig, tmp_path: Path) -> dict[str, str]:
    return rig.environ(devices=len(KINDS), total_bytes=GPU_BYTES, context_bytes=400 << 20, state=tmp_path / "gpus")


@pytest.fixture
def service(environ: dict[str, str]) -> Iterator[Service]:
    service = Service(environ)
    try:
        service.up()
        yield service
    finally:
        service.close()


@contextlib.contextmanager
def running(kind: str, rig: Rig, service: Service, environ: Mapping[str, str], scratch: Path) -> Iterator[None]:
    """A job of this name on a GPU of its own."""
    said = {"TIDEGAUGE_RUN_DIR": str(service.run_dir), "TIDEGAUGE_JOB_ID": kind, "OMP_NUM_THREADS": "1"}
    said |= {"CUDA_VISIBLE_DEVICES": str(KINDS.index(kind))}
    with (scratch / f"{kind}.log").open("wb") as log:
        job = subprocess.Popen(
            [str(rig.python), str(FILLING), kind, str(ITEMS)], stdout=log, stderr=log,
            env={**environ, **activation_environ("auto", environ, pythonpath=True), **said},
        )  # fmt: skip
        try:
            yield
        finally:
            job.kill()
            job.wait(30.0)


def rank_of(service: Service, kind: str) -> dict[str, Any] | None:
    jobs = service.get("/api/v1/jobs")["jobs"]
    return next((rank for job in jobs if job["job_id"] == kind for rank in job["ranks"]), None)


def is_full(service: Service, kind: str) -> bool:
    rank = rank_of(service, kind)
    return rank is not None and rank["step"] > ITEMS + 30


def incidents_of(service: Service, kind: str) -> list[dict[str, Any]]:
    found = service.get("/api/v1/incidents?all=1")["incidents"]
    return [one for one in found if one["key"]["job"]["job_id"] == kind]


def with_evidence(service: Service, kind: str) -> list[dict[str, Any]]:
    """Incidents of it, once all have some: a rank that answers late has it behind its incident."""
    found = incidents_of(service, kind)
    return found if all(one["evidence"] for one in found) else []


def bound_of(service: Service, kind: str) -> dict[str, Any] | None:
    rank = rank_of(service, kind)
    return None if rank is None else rank.get("bound")


def evidence_on(service: Service, kind: str) -> Evidence | None:
    """With a bound, as the service collected it."""
    rank = rank_of(service, kind)
    uid = 0 if rank is None else rank["uid"]
    found = service.get(f"/api/v1/evidence?job_id={kind}&attempt=0&uid={uid}")["evidence"]
    return next((from_wire(Evidence, one) for one in found if one["bound"]), None)


def test_a_bound_proves_the_end_and_nobody_is_told(
    rig: Rig, service: Service, environ: dict[str, str], tmp_path: Path
) -> None:
    bounded = {
        "cache": ("lru_cache of kept (filling.py)", "answers", "maxsize"),
        "window": ("window (deque, filling.py)", "items", "maxlen"),
    }
    with contextlib.ExitStack() as jobs:
        for kind in KINDS:
            jobs.enter_context(running(kind, rig, service, environ, tmp_path))
        for kind, (name, unit, attribute) in bounded.items():
            bound = eventually(partial(bound_of, service, kind), f"the bound of {kind}", within_s=WITHIN_S)
            assert (bound["state"], bound["most_items"]) == ("holds", ITEMS), bound
            assert bound["level_bytes"] + bound["left_bytes"]["likely"] == pytest.approx(ITEMS * (2 << 20), rel=0.05)
            found = eventually(partial(evidence_on, service, kind), f"the evidence of {kind}")
            ends = because_lines(found)[-1]
            assert f"{name} fills, and ends at about 1.3 GiB (" in ends
            assert ends.endswith(f" of {ITEMS} {unit}).")
            assert advice_of(found) == (
                f"nothing to do; lower its `{attribute}` if the memory is needed for something else"
            )
        eventually(lambda: "ends at about 1.3 GiB" in service.call("jobs").out, "where it ends, in the table")
        [opened] = eventually(partial(with_evidence, service, "unbounded"), "the leak's incident", within_s=WITHIN_S)
        assert opened["severity"] == "critical"
        assert opened["evidence"][0]["bound"] is None
        for kind in bounded:
            eventually(partial(is_full, service, kind), f"the end of {kind}", within_s=WITHIN_S)
            assert incidents_of(service, kind) == [], service.logs()
