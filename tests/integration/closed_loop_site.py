"""A real service with a policy that acts, and jobs under ``tidegauge run``: for tests of the closed loop."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.service import Service
from tidegauge.cli.demo.jobs import last_lines, stop_job
from whole_lines import whole_lines

SCRIPT = Path(__file__).with_name("rig_jobs") / "resumable.py"
POLICY = """
version: 1
mode: {mode}
brakes:
  {{min_severity: warning, warnings_before_stop: 2, warning_interval: 1s, min_age: 1s, actions_per_job_per_hour: 100,
   actions_per_user_per_hour: 100, actions_per_hour: 100, requeues_per_job: 100}}
rules:
  - name: fragmentation
    when: {{cause: fragmentation, severity: warning, checkpoint: true, requeueable: true}}
    ladder:
      - {{action: notify}}
      - {{action: notify, after: 1s}}
      - {{action: checkpoint, after: 1s, grace: 60s}}
      - {{action: requeue, alloc_conf: {{expandable_segments: True}}}}
  - name: leak
    when: {{cause: leak, severity: warning, checkpoint: true, requeueable: true}}
    ladder:
      - {{action: notify}}
      - {{action: notify, after: 1s}}
      - {{action: checkpoint, after: 1s, grace: 60s}}
      - {{action: requeue}}
  - name: everything-else
    ladder: [{{action: notify}}]
"""
EARLY = {"TIDEGAUGE_INCIDENT_SEVERITY": "warning"}
"""For a service: incidents open with growth, so that a loop takes seconds and not minutes."""
LADDER = ["notify", "notify", "checkpoint", "requeue"]
"""What the rules for leaks and fragmentation do, one after the other."""


@dataclass
class Job:
    """One ``tidegauge run``."""

    process: subprocess.Popen[bytes]
    log: Path
    state: Path

    def story(self) -> list[dict[str, Any]]:
        """What the script told of its attempts; not a line that it is writing."""
        return [json.loads(line) for line in whole_lines(self.state.with_suffix(".story"))]

    def told(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.story() if line["what"] == what]

    def wait(self, within_s: float) -> int:
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the job did not end; it said:\n{last_lines(self.log, 30)}") from error


class Site:
    """A service with a policy, and jobs under it. Incidents open with growth if ``early``, else with danger."""

    def __init__(
        self, service: Service, python: str, environ: Mapping[str, str], folder: Path, *, early: bool = True
    ) -> None:
        self.service = service
        self._python = python
        self._environ = {**environ, "TIDEGAUGE_RUN_DIR": str(service.run_dir), "OMP_NUM_THREADS": "1"}
        self._folder = folder
        service.environ["TIDEGAUGE_POLICY_FILE"] = str(folder / "policy.yaml")
        # The jobs live for a minute or two: what takes report periods should not take seconds of that.
        service.environ["TIDEGAUGE_REPORT_PERIOD_S"] = "0.25"
        if early:
            service.environ |= EARLY

    @contextlib.contextmanager
    def job(self, name: str, *flags: str, steps: int, run_flags: tuple[str, ...] = ("--requeue",)) -> Iterator[Job]:
        state = self._folder / f"{name}.state"
        with self.run(name, self._torchrun(state, steps, flags), run_flags) as (process, log):
            yield Job(process, log, state)

    @contextlib.contextmanager
    def two_launches(
        self, name: str, first: Sequence[str], second: Sequence[str], *, steps: int, max_restarts: int = 0
    ) -> Iterator[tuple[Job, Job]]:
        """Two torchrun side by side under one ``tidegauge run``, each with flags of its own."""
        states = [self._folder / f"{name}-{which}.state" for which in ("first", "second")]
        commands = [
            self._torchrun(state, steps, flags, max_restarts=max_restarts)
            for state, flags in zip(states, (first, second), strict=True)
        ]
        script = " & ".join(map(shlex.join, commands)) + " & wait"
        with self.run(name, ["bash", "-c", script], ("--requeue",)) as (process, log):
            yield Job(process, log, states[0]), Job(process, log, states[1])

    def _torchrun(self, state: Path, steps: int, flags: Sequence[str], *, max_restarts: int = 0) -> list[str]:
        restarts = f"--max-restarts={max_restarts}"
        # Else ranks of a second attempt find the addresses of the first in the launcher's store (PyTorch 2.13, Gloo).
        store = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"] if max_restarts else []
        command = [*store, self._python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", restarts]
        return [*command, str(SCRIPT), "--state", str(state), "--steps", str(steps), *flags]

    @contextlib.contextmanager
    def run(
        self, name: str, of_user: Sequence[str], run_flags: Sequence[str]
    ) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        log = self._folder / f"{name}.log"
        command = [sys.executable, "-m", "tidegauge", "run", "--job-name", name, *run_flags, "--", *of_user]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=self._environ, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        try:
            yield process, log
        finally:
            stop_job(process)

    def set_mode(self, mode: str) -> None:
        policy = self._folder / "policy.yaml"
        fresh = policy.with_suffix(".new")
        fresh.write_text(POLICY.format(mode=mode))
        fresh.replace(policy)

    def incidents(self, name: str) -> list[dict[str, Any]]:
        listed = self.service.answer("/api/v1/incidents?all=1")["incidents"]
        return [incident for incident in listed if incident["job_name"] == name]

    def decisions(self, name: str) -> list[dict[str, Any]]:
        """All decisions about a job, oldest first."""
        numbers = sorted(incident["number"] for incident in self.incidents(name))
        pages = [self.service.answer(f"/api/v1/incident?number={number}") for number in numbers]
        return [record for page in pages for record in page["decisions"]]


def check_went_on(told: Callable[[str], Sequence[Mapping[str, Any]]], *, steps: int) -> None:
    """That a training was started again, each time at the step that it had saved, and came to its end. ``told``: what
    its script told, by the word that it told it with."""
    first, *rest = told("began")
    starts, saves = [start["step"] for start in rest], [saved["step"] for saved in told("saved")]
    assert first["step"] == 0, first
    assert starts, "it was not started again"
    assert starts == saves[: len(starts)], f"each goes on from what it saved: {saves}, not {starts}"
    assert told("finished")[0]["step"] >= steps, told("finished")


def to_the_requeue(actions: list[str]) -> list[str]:
    """Those that led to the first requeue, and itself: the next attempt leaks too, and may be warned by now. There may
    be a message before the ladder's, of a leak that was not critical yet."""
    return actions[: actions.index("requeue") + 1] if "requeue" in actions else []


def done(decisions: list[dict[str, Any]]) -> list[str]:
    """The actions that were carried out, in order."""
    return [record["decision"]["action"] for record in decisions if record["outcome"] == "done"]
