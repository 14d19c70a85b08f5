"""Whether the API server, the credentials and the role are of any use: asked once, before anything starts."""

from __future__ import annotations

import logging
from contextlib import suppress

from tidegauge_scheduler_hooks.kubernetes.controller.options import Options
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS
from tidegauge_scheduler_hooks.kubernetes.ports import (
    LEASES,
    PODS,
    ForbiddenError,
    KubeApi,
    ObjectNotFoundError,
    Resource,
)
from tidegauge_scheduler_hooks.ports import PermanentError

log = logging.getLogger(__name__)

NOBODY = "metadata.name=tidegauge-preflight"
"""Selects nothing, so that the right to list is all that is asked for."""


def check_usable(api: KubeApi, options: Options) -> None:
    """Raises ``TemporaryError`` (no answer) or ``PermanentError`` with what is missing and what to do. A kind whose CRD
    is not installed is none of that: it may come later."""
    with suppress(ObjectNotFoundError):  # whoever leads first makes it
        api.get(LEASES, options.namespace, options.lease)
    for namespace in options.namespaces or (None,):
        _check_list(api, namespace, PODS, "it is needed to see when pods have ended")
        for name in options.kinds:
            _check_list(api, namespace, KINDS[name].resource, f"allow it, or leave {name} out of --kinds")


def _check_list(api: KubeApi, namespace: str | None, resource: Resource, advice: str) -> None:
    try:
        api.list(resource, namespace, field_selector=NOBODY)
    except ObjectNotFoundError as error:
        log.info("%s is not watched until it is there: %s", resource.kind, error)
    except ForbiddenError as error:
        raise PermanentError(f"{error} ({advice})") from error
