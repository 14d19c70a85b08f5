"""Now, in the two forms of the API."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone


def now(later_s: float = 0.0) -> str:
    """``metav1.Time``: whole seconds, UTC."""
    return (datetime.now(timezone.utc) + timedelta(seconds=later_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
