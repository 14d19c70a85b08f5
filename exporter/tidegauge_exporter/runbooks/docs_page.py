"""docs/runbooks.md, made from the tables of runbooks: ``python -m tidegauge_exporter.runbooks.docs_page``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from tidegauge_exporter.runbooks.job_alerts import JOB_RUNBOOK
from tidegauge_exporter.runbooks.sections import (
    EXEMPTION,
    EXEMPTION_COMMAND,
    EXEMPTION_TITLE,
    LOGS,
    LOGS_STEPS,
    LOGS_TITLE,
    START,
    START_STEPS,
    START_TITLE,
)
from tidegauge_exporter.runbooks.service_alerts import SERVICE_RUNBOOK
from tidegauge_exporter.runbooks.values import CONTACT, LOG_COMMANDS, RunbookEntry, Step


def page() -> str:
    """The whole page, Markdown."""
    return "\n".join(
        [
            _INTRODUCTION,
            *_section(START_TITLE, START, START_STEPS),
            "## About a job\n",
            *_entries(JOB_RUNBOOK),
            "## About the service\n",
            *_entries(SERVICE_RUNBOOK),
            *_section(LOGS_TITLE, LOGS, LOGS_STEPS),
            *_section(EXEMPTION_TITLE, EXEMPTION, (Step(EXEMPTION_COMMAND),)),
        ]
    ).rstrip() + "\n"  # fmt: skip


def _section(title: str, texts: Iterable[str], steps: Iterable[Step]) -> Iterator[str]:
    yield f"## {title}\n"
    yield from (f"{text}\n" for text in texts)
    yield _terminal(steps)


def _entries(entries: Iterable[RunbookEntry]) -> Iterator[str]:
    for entry in entries:
        yield f"### {entry.alert}\n"
        yield f"{entry.means}\n"
        yield f"**Who is affected.** {entry.affects}\n"
        yield f"**First look.** {entry.first_look}\n"
        yield _terminal(entry.steps)
        yield f"**What to do.** {entry.what_to_do}\n"
        yield f"**Logs {entry.logs.value}.**\n"
        yield _code(line for how, commands in LOG_COMMANDS[entry.logs] for line in (f"# {how}", *_typed(commands)))
        yield f"**When to silence.** {entry.when_to_silence}\n"
        if entry.silence:
            yield _terminal(entry.silence)
        yield f"**Whom to call.** {entry.escalate} For Tidegauge itself: {CONTACT}.\n"


def _terminal(steps: Iterable[Step]) -> str:
    return _code(line for step in steps for line in (*_typed([step.command]), *step.shows.splitlines()))


def _typed(commands: Iterable[str]) -> list[str]:
    return [f"$ {command}" for command in commands]


def _code(lines: Iterable[str]) -> str:
    return "\n".join(["```console", *lines, "```", ""])


_INTRODUCTION: Final = """<!-- Made by python -m tidegauge_exporter.runbooks.docs_page from the tables in
exporter/tidegauge_exporter/runbooks; edit those. -->
# Runbooks

This page tells whoever gets one of Tidegauge's [alerts](alerts.md) what it means and what to type, and the owner of a
job how to [keep it running](#keep-my-job-running). The same is a page for browsers in three places: the coordinator
serves it (`/runbooks`, with the setting `contact` as whom to call), `deploy/observability/prometheus.sh` has Prometheus
serve it (`/consoles/tidegauge-runbooks.html`, with `--contact`), and the file lies in
`deploy/observability/prometheus/consoles/` for any other web server. Alerts link to the copy that does not need
Tidegauge. Outputs are examples, taken from running services; names and addresses are those of a cluster `lab`.
"""

if __name__ == "__main__":
    sys.stdout.write(page())
