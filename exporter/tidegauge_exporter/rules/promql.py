"""Pieces of PromQL and of alert templates that several rules share."""

from __future__ import annotations

from typing import Final

from tidegauge.core.ids import MADE_UP
from tidegauge_exporter.rules.recording import JOB

RANK: Final = f"{JOB}, rank, hostname, gpu, UUID"
"""What a rank's alert is told apart by. Target labels are left out: an agent that is scraped under another name does
not begin the alert anew."""

KNOWN_FOR: Final = "15m"
"""As long as the coordinator may be away, or may not be scraped, before alerts lose the owner's name. Without a name an
alert is another one: people would hear that the leak is over."""

_OWNERS: Final = f"max by ({JOB}, user_name, job_name)"
_OWNER: Final = (
    f"topk by ({JOB}) (1, {_OWNERS} (tidegauge_job_info)\n"
    f"  or on ({JOB}) {_OWNERS} (last_over_time(tidegauge_job_info[{KNOWN_FOR}])))"
)

DURATION: Final = "{{ $value | humanizeDuration }}"
BYTES: Final = "{{ $value | humanize1024 }}B"
SHARE: Final = "{{ $value | humanizePercentage }}"
RATE: Final = "{{ $value | humanize }}"
COUNT: Final = '{{ $value | printf "%.0f" }}'
HOST: Final = "{{ $labels.hostname }}"

OF_OWNER: Final = "{{ with $labels.user_name }} (user {{ . }}){{ end }}"
ATTEMPT: Final = '{{ with $labels.attempt }}{{ if ne . "0" }} (attempt {{ . }}){{ end }}{{ end }}'
GROUP: Final = "{{ with $labels.group }}, {{ . }}{{ end }}"
_NAME: Final = (
    f'{{{{ if and (match "^{MADE_UP}" $labels.job_id) $labels.job_name }}}}{{{{ $labels.job_name }}}}'
    "{{ else }}{{ $labels.job_id }}{{ end }}"
)
THE_JOB: Final = f"job {_NAME}{GROUP}{ATTEMPT}"
THE_RANK: Final = f"rank {{{{ $labels.rank }}}} of {THE_JOB}"
PLACE: Final = f"on {HOST}{{{{ with $labels.gpu }}}}, GPU {{{{ . }}}}{{{{ end }}}}"


def with_owner(condition: str, *, like: str) -> str:
    """``condition`` with the labels ``user_name`` and ``job_name`` of ``tidegauge_job_info``.

    ``like`` is a metric that is there whenever the condition can be: once the coordinator has been away for longer than
    ``KNOWN_FOR`` and nobody knows the owner, the alert is told without one. A job with two owners (which the
    coordinator does not export) would have one of them, and not break the rule for all jobs.
    """
    return (
        f"({condition})\n"
        f"* on ({JOB}) group_left (user_name, job_name)\n"
        f"({_OWNER}\n"
        f" or on ({JOB}) group by ({JOB}) ({like}))"
    )


def grown(series: str, *, at_least_bytes: int) -> str:
    """By how much the floor of ``series`` rose within an hour, where it rose in both of its halves: a single step, such
    as communicators that are set up, is no growth.
    """
    now, half, whole = (f"min_over_time({series}[10m]{offset})" for offset in ("", " offset 30m", " offset 1h"))
    return (
        f"({now} - {whole})\n"
        f"and ({now} - {half} > {at_least_bytes})\n"
        f"and ({half} - {whole} > {at_least_bytes})"
    )  # fmt: skip


def looked_up(promql: str, labels: tuple[str, ...], shown: str) -> str:
    """A template that asks Prometheus when the alert is told. ``promql`` has ``SELECTOR`` where the matchers of these
    labels go; ``shown`` is what becomes of each result (``$index``, ``.Labels``, ``.Value``); no result: nothing.
    Sorted by rank, because results with the same value come in any order.
    """
    query = promql.replace("SELECTOR", "{" + ",".join(f"{label}=%q" for label in labels) + "}")
    values = " ".join(f"$labels.{label}" for label in labels)
    found = f'printf "{query}" {values} | query | sortByLabel "rank"'
    return f"{{{{ range $index, $sample := {found} }}}}{shown}{{{{ end }}}}"


JOB_NAMES: Final = ("cluster", "job_id", "attempt", "group")
RANK_NAMES: Final = (*JOB_NAMES, "rank")
