"""Errors of ``kubernetes.ports`` for refusals and lost answers: request, object, the server's text, advice. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from tidegauge.core.text import one_line
from tidegauge_scheduler_hooks.kubernetes.ports import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    ObjectNotFoundError,
    Resource,
)
from tidegauge_scheduler_hooks.ports import PermanentError, SchedulerError, TemporaryError

MAX_ERROR_CHARS = 400
"""Of the server's text: a refused pod can list dozens of fields, with texts of its owner."""
READS = frozenset({"get", "list", "watch"})


class ApiCall(NamedTuple):
    """One request, in the terms of a role (``kubectl auth can-i``)."""

    verb: str
    """``get``, ``list``, ``watch``, ``create``, ``patch``, ``update``."""
    resource: Resource
    namespace: str | None
    name: str = ""
    subresource: str | None = None

    @property
    def reads(self) -> bool:
        return self.verb in READS

    @property
    def thing(self) -> str:
        """The kind in the terms of roles and ``kubectl``: ``jobs.batch``, ``pods/status``."""
        group = f".{self.resource.group}" if self.resource.group else ""
        below = f"/{self.subresource}" if self.subresource else ""
        return f"{self.resource.plural}{group}{below}"

    @property
    def where(self) -> str:
        if not self.resource.namespaced:
            return "of the cluster"
        return "in all namespaces" if self.namespace is None else f"in namespace {self.namespace}"

    def __str__(self) -> str:
        """``patch jobs.batch train in namespace research``."""
        return " ".join(filter(None, (self.verb, self.thing, self.name, self.where)))


class ExpiredError(TemporaryError):
    """410: the version to watch from, or the next page, is no longer known. List again."""


def refusal(ask: ApiCall, status: int, body: bytes, *, retry_after_s: float | None = None) -> SchedulerError:
    said = _status(body)
    words = _words(said, status, body)
    reason = said.get("reason")
    if status == HTTPStatus.NOT_FOUND:
        return _not_found(ask, said, words)
    if status == HTTPStatus.CONFLICT and (ask.verb != "create" or reason == "AlreadyExists"):
        return ConflictError(f"{ask}: {words}")
    if status == HTTPStatus.GONE:
        return ExpiredError(f"{ask}: {words}")
    if status == HTTPStatus.UNAUTHORIZED:
        return ForbiddenError(
            f"{ask}: the API server does not accept the credentials ({words}): is the token or certificate of "
            "Tidegauge's service account still valid?"
        )
    if status == HTTPStatus.FORBIDDEN:
        return _forbidden(ask, words)
    if status == HTTPStatus.UNPROCESSABLE_ENTITY and "metadata.uid" in _fields(said):
        return ConflictError(f"{ask}: another object has the name by now: {words}")
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        return InvalidError(f"{ask}: rejected by the API server: {words}")
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.CONFLICT):  # a quota that many changed at once
        return TemporaryError(f"{ask}: not possible now: {words}", retry_after_s=retry_after_s or 10.0)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT:
        return TemporaryError(f"{ask}: {words}{_doubt(ask)}", retry_after_s=retry_after_s or 10.0)
    return PermanentError(f"{ask}: the API server answers {status}: {words}")


def not_connected(ask: ApiCall, address: str, why: object) -> TemporaryError:
    """The error where nothing was sent."""
    return TemporaryError(f"{ask}: no connection to the API server {address}: {_short(why)}")


def lost(ask: ApiCall, address: str, why: object) -> TemporaryError:
    """The error where the request was sent, and there is no whole answer."""
    return TemporaryError(f"{ask}: no complete answer from the API server {address}: {_short(why)}{_doubt(ask)}")


def _not_found(ask: ApiCall, said: Mapping[str, Any], words: str) -> ObjectNotFoundError:
    # For a path that it does not know a server answers a line of text, or a Status that names nothing.
    details = said.get("details")
    if isinstance(details, Mapping) and details.get("name"):
        return ObjectNotFoundError(f"{ask}: {words}")
    kind = f"{ask.resource.kind} ({ask.resource.api_version})"
    text = f"{ask}: the API server does not know {kind}: its CRD is not installed, or in another version"
    return ObjectNotFoundError(text, kind_missing=True)


def _forbidden(ask: ApiCall, words: str) -> ForbiddenError:
    if f"cannot {ask.verb} " not in words:  # Pod Security, a quota, a webhook, a namespace that is being deleted
        return ForbiddenError(f"{ask}: forbidden by the API server: {words}")
    group = ask.resource.group or '""'
    thing = ask.thing.replace(f".{ask.resource.group}", "")
    return ForbiddenError(f'no right to {ask}: Tidegauge\'s role needs the verb "{ask.verb}" on "{thing}" of the API '
                          f"group {group} {ask.where} ({words})")  # fmt: skip


def _doubt(ask: ApiCall) -> str:
    return "" if ask.reads else " (it may have taken effect)"


def _status(body: bytes) -> Mapping[str, Any]:
    """The ``Status`` object of an answer; empty for anything else."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) and said.get("kind") == "Status" else {}


def _fields(said: Mapping[str, Any]) -> Sequence[object]:
    """Those of the object that are refused."""
    details = said.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return [one.get("field") for one in causes or () if isinstance(one, Mapping)]


def _words(said: Mapping[str, Any], status: int, body: bytes) -> str:
    text = str(said.get("message") or said.get("reason") or body[:MAX_ERROR_CHARS].decode(errors="replace").strip())
    return _short(text) or f"HTTP status {status}"


def _short(text: object) -> str:
    return one_line(" ".join(str(text).split()), MAX_ERROR_CHARS)
