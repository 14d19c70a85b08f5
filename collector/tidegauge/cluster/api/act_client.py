"""Passes people's acts from the notifier to the coordinator, over the head's own socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from tidegauge.cluster.api import client
from tidegauge.core.incidents.acts import ActKind, PersonAct
from tidegauge.core.wire import from_wire
from tidegauge_exporter.notify.ports import ActAnswer, ActRequest, RetryLaterError

AGAIN_AFTER_S = 5.0
ANSWER_TIMEOUT_S = 30.0
"""A rank that is asked for evidence answers within 15 s."""
NOT_FOUND = 404


class ApiActs:
    """A ``notify.ports.ActDesk``. Each request calls ``api_url``: a restarted coordinator may have moved."""

    def __init__(self, api_url: Callable[[], str | None]) -> None:
        self._api_url = api_url

    def may(self, number: int, *, by: str) -> Sequence[ActKind] | None:
        try:
            answer = client.get(self._url(), f"/api/v1/acts?{urlencode({'incident': number, 'by': by})}")
            return [ActKind(one) for one in answer["may"]]
        except client.ApiError as error:
            if error.status == NOT_FOUND and error.refusal is not None:
                return None
            raise RetryLaterError(str(error), after_s=AGAIN_AFTER_S) from error
        except (KeyError, ValueError) as error:
            raise RetryLaterError(f"unexpected form of an answer of the service: {error}") from error

    def ask(self, request: ActRequest) -> ActAnswer:
        try:
            answer = client.send(self._url(), "/api/v1/acts", _fields(request), timeout_s=ANSWER_TIMEOUT_S)
            return ActAnswer(from_wire(PersonAct, answer["act"]).outcome, str(answer["text"]))
        except client.ApiError as error:
            raise RetryLaterError(str(error), after_s=AGAIN_AFTER_S) from error
        except (KeyError, ValueError) as error:
            raise RetryLaterError(f"unexpected form of an answer of the service: {error}") from error

    def _url(self) -> str:
        url = self._api_url()
        if url is None:
            raise RetryLaterError("the coordinator is not available", after_s=AGAIN_AFTER_S)
        return url


def _fields(request: ActRequest) -> Mapping[str, Any]:
    optional = {"by": request.by, "refused": request.refused}
    return {
        "incident": str(request.number), "act": request.kind.value, "request_id": request.request_id,
        "opened_ms": str(request.opened_ms), "sender": request.account,
        **{name: value for name, value in optional.items() if value is not None},
    }  # fmt: skip
