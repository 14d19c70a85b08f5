"""What Grafana's refusals, and its silence, mean for whoever asked: an error with the next thing to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from tidegauge_exporter.grafana.port import GrafanaRefusedError, TakenError
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

LONGEST_WORDS = 300
"""Characters of an answer in a message."""
LONGEST_WAIT_S = 3600.0
"""A server that asks for more is asked again after an hour."""

ADVICE: Final[Mapping[int, str]] = {
    401: "the token is not one of this Grafana, or was revoked or has expired: make a new one for the service account "
    "and put it into the token file",
    403: "the token's service account may not do this: it needs the role Editor, and Admin to create or change data "
    "sources (or name an existing one by --data-source)",
    404: "is this Grafana's address, with the path if it is served below one?",
    409: "something else has this name already: rename it in Grafana, or remove it",
    412: "somebody else's dashboard or folder has this name, or it was changed just now: rename theirs in Grafana, "
    "then run this again",
}
"""What to do about a refusal, by HTTP's status."""


def read_refusal(
    request: str, *, status: int, text: str, headers: Mapping[str, str]
) -> RetryLaterError | RefusedError | None:
    """The error for an answer to ``request`` ("GET URL"); ``None`` for a good one."""
    if status < 300:
        return None
    if status < 400:
        return RefusedError(f"{request} is redirected to {headers.get('Location', 'nowhere')}: set Grafana's "
                            "address to where it really is")  # fmt: skip
    said = f"Grafana refuses {request} with {status}: {_words(text) or 'no reason given'}"
    if status == 429 or status >= 500:
        return RetryLaterError(said, after_s=_wait_s(headers.get("Retry-After")))
    message = f"{said}; {ADVICE[status]}" if status in ADVICE else said
    return (TakenError if status in (409, 412) else GrafanaRefusedError)(message, status=status)


def explain_failure(url: str, error: OSError) -> RetryLaterError | RefusedError:
    """The error for no answer at all."""
    innermost: BaseException = error
    while innermost.__context__ is not None:  # the transport wraps what happened three times over
        innermost = innermost.__context__
    reason = str(innermost) or type(innermost).__name__
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return RefusedError(f"the certificate of {url} cannot be trusted: {reason}. If it is of an authority of your "
                            "own, name that authority's file in REQUESTS_CA_BUNDLE")  # fmt: skip
    return RetryLaterError(f"Grafana at {url} does not answer: {reason}")


def _words(text: str) -> str:
    """What Grafana says in an answer, on one line."""
    try:
        raw = json.loads(text)
    except ValueError:
        raw = None
    said = raw.get("message") if isinstance(raw, dict) else None
    words = " ".join((said if isinstance(said, str) else text).split())
    return words if len(words) <= LONGEST_WORDS else f"{words[:LONGEST_WORDS]} …"


def _wait_s(header: str | None) -> float:
    """``Retry-After`` in seconds; the form with a date is not used by Grafana."""
    if header is not None and header.isascii() and header.isdigit():
        return min(float(header), LONGEST_WAIT_S)
    return 30.0
