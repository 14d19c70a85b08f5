"""A job's name in a table: its id, the name that ``squeue`` shows of a task of a Slurm array, its group of ranks where
it has several, and a later attempt."""

from __future__ import annotations


def job_name(job_id: str, attempt: int, array: str | None = None, *, group: str = "") -> str:
    """ "4711", "4711 (123_4)", "4711 (step 1, attempt 2)": the first attempt is 0 and goes without saying."""
    return _name(job_id, array, group or None, f"attempt {attempt}" if attempt else None)


def short_job_name(job_id: str, attempt: int, array: str | None = None, *, group: str = "") -> str:
    """The same where there is little room: "4711 (2)"."""
    return _name(job_id, array, group or None, str(attempt) if attempt else None)


def _name(job_id: str, *more: str | None) -> str:
    known = [one for one in more if one is not None]
    return f"{job_id} ({', '.join(known)})" if known else job_id
