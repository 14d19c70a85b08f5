"""The closed loop on a real GPU: a leaking job and a fragmenting one are saved, started again and finish."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.closed_loop_site import Site, done
from integration.service import Service
from tidegauge.cli.demo.jobs import last_lines

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

STEPS = 2400
CAP = 0.058
"""Of an H200 (139.8 GiB): 8.1 GiB, which a job that leaks 4 MiB a step reaches before step 2,100."""


@pytest.fixture(params=[True])
def site(request: pytest.FixtureRequest, gpu_python: str, tmp_path: Path) -> Iterator[Site]:
    """Incidents open with growth if ``request.param``, else with danger, as in a service without settings."""
    service = Service(os.environ)
    one = Site(service, gpu_python, os.environ, tmp_path, early=request.param)
    one.set_mode("act")
    try:
        service.up()
        yield one
    finally:
        service.close()


def test_jobs_that_would_run_out_of_memory_finish(site: Site) -> None:
    capped = ("--requeue", "--memory-fraction", str(CAP))
    with (
        site.job("leaky", "--leak-rank", "1", steps=STEPS, run_flags=capped) as leaky,
        site.job("fragmenting", "--fragment", steps=STEPS) as fragmenting,
        site.job("healthy", steps=STEPS) as healthy,
    ):
        jobs = {"leaky": leaky, "fragmenting": fragmenting, "healthy": healthy}
        codes = {name: job.wait(300) for name, job in jobs.items()}
    logs = "\n".join(f"{name}:\n{last_lines(job.log, 15)}" for name, job in jobs.items())
    logs += f"\n{site.service.call('policy', 'log').out}\n{site.service.logs()}"
    assert set(codes.values()) == {0}, f"{codes}\n{logs}"

    assert len(leaky.told("began")) > 1, logs
    assert [one["step"] for one in leaky.told("began")[1:]] == [one["step"] for one in leaky.told("saved")]
    assert leaky.told("finished")[0]["step"] == STEPS
    assert done(site.decisions("leaky")).count("requeue") == len(leaky.told("began")) - 1

    began, finished = fragmenting.told("began"), fragmenting.told("finished")
    assert [start["alloc_conf"] for start in began] == [None, "expandable_segments:True"], logs
    assert finished[0]["reserved_bytes"] < fragmenting.told("saved")[0]["reserved_bytes"] / 2
    assert site.incidents("healthy") == []


@pytest.mark.parametrize("site", [False], indirect=True)
def test_a_leak_is_saved_in_time_when_it_is_dangerous(site: Site) -> None:
    with site.job(
        "leaky", "--leak-rank", "1", steps=STEPS, run_flags=("--requeue", "--memory-fraction", str(CAP))
    ) as leaky:
        code = leaky.wait(300)
    logs = f"{last_lines(leaky.log, 15)}\n{site.service.call('policy', 'log').out}\n{site.service.logs()}"
    assert code == 0, logs
    saved = [one["step"] for one in leaky.told("saved")]
    assert [one["step"] for one in leaky.told("began")[1:]] == saved, logs
    assert leaky.told("finished")[0]["step"] == STEPS
    assert "OutOfMemoryError" not in leaky.log.read_text()
    assert {incident["severity"] for incident in site.incidents("leaky")} == {"critical"}
    assert saved[0] > STEPS / 4, "growth alone restarts nothing"


def test_same_leak_without_consent_dies_of_its_cap_and_its_owner_is_told_why(site: Site) -> None:
    with site.job("leaky", "--leak-rank", "1", steps=STEPS, run_flags=("--memory-fraction", str(CAP))) as leaky:
        assert leaky.wait(200) != 0
    log = leaky.log.read_text()
    assert "OutOfMemoryError" in log
    assert "tidegauge: rank 1 ran out of memory" in log
    assert len(leaky.told("began")) == 1
    assert set(done(site.decisions("leaky"))) == {"notify"}
    (oom,) = [incident for incident in site.incidents("leaky") if incident["key"]["cause"] == "out_of_memory"]
    print(oom["explanation"])
    assert "live tensors grew" in oom["explanation"]
    assert "The memory fraction set the limit" in oom["explanation"]
