"""What of Tidegauge reached the environment of a batch script or a task: printed inside the box, read here."""

from __future__ import annotations

from integration.slurm.box import SlurmBox

SCRIPT = """#!/bin/sh
# One line in one write, so that the lines of several tasks do not mix.
found=$(env | grep -E '^(TIDEGAUGE_[A-Z_]*|PYTHONPATH)=' | sort | tr '\\n' '\\t')
printf 'seen:%s\\t%s\\n' "$1" "$found"
"""

Environ = dict[str, str]


def install(box: SlurmBox) -> None:
    """Make ``./show NAME`` available in ``box.work``."""
    path = box.work / "show"
    path.write_text(SCRIPT)
    path.chmod(0o755)


def seen(output: str) -> list[tuple[str, Environ]]:
    """The name that each ``./show NAME`` was given, with what it saw."""
    found = []
    for line in output.splitlines():
        if line.startswith("seen:"):
            name, *entries = line.removeprefix("seen:").split("\t")
            found.append((name, dict(entry.split("=", 1) for entry in entries if entry)))
    return found


def in_task(box: SlurmBox, *options: str, environ: Environ | None = None) -> Environ:
    """What the one task of ``srun OPTIONS`` sees; srun is started with ``environ``."""
    done = box.run("srun", *options, "./show", "task", user="alice", environ=environ)
    ((_, found),) = seen(done.stdout)
    return found


def in_job(box: SlurmBox, script: str, *options: str, environ: Environ | None = None) -> list[tuple[str, Environ]]:
    """What is seen in a batch job, at its end."""
    job = box.sbatch(script, *options, environ=environ)
    box.wait(job, "COMPLETED")
    return seen(box.output(job))
