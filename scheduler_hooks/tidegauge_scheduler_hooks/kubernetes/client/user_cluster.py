"""An API server as the user of a kubeconfig reaches it: for a command of theirs, not for the service."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from kubernetes.config import ConfigException, list_kube_config_contexts, new_client_from_config
from kubernetes.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION
from urllib3.exceptions import HTTPError
from yaml import YAMLError

from tidegauge_scheduler_hooks.ports import PermanentError

TOKEN_S = 3600
"""Of a token that is made for an account: a command ends long before, but `top` runs for as long as somebody looks."""
TIMEOUT_S = 75.0


class Answer(NamedTuple):
    """An HTTP answer, whole."""

    status: int
    content_type: str
    body: bytes


class UserCluster:
    """The API server of a kubeconfig, with its user's credentials."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        """``None``: kubectl's file, and the context that is current there. Raises ``PermanentError``."""
        self._whence = kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION
        try:
            contexts, current = list_kube_config_contexts(kubeconfig)  # type: ignore[no-untyped-call] # lacks types
            chosen = current if context is None else next((one for one in contexts if one["name"] == context), None)
            if chosen is None:
                known = ", ".join(one["name"] for one in contexts)
                raise PermanentError(f"the kubeconfig has no context {context!r}; its contexts are {known}")
            with self._logged_problems():
                self._client = new_client_from_config(  # type: ignore[no-untyped-call] # the same
                    kubeconfig, context=chosen["name"], persist_config=False
                )
        except (ConfigException, YAMLError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._unusable(str(error)) from error
        self._client.configuration.retries = False
        self.namespace: str = chosen["context"].get("namespace") or "default"

    def token(self) -> str | None:
        """The user's bearer token, renewed where its plugin says so; ``None``: they show something else."""
        shown: dict[str, str] = {}
        self._show_token(shown, "GET", "")
        authorization = next((value for key, value in shown.items() if key.lower() == "authorization"), "")
        scheme, _, token = authorization.partition(" ")
        return token.strip() if scheme.lower() == "bearer" and token.strip() else None

    def made_token(self, namespace: str, account: str, audience: str | None) -> str:
        """A TokenRequest's. Raises ``PermanentError``."""
        spec: dict[str, Any] = {"expirationSeconds": TOKEN_S, **({"audiences": [audience]} if audience else {})}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        try:
            answer = self.ask("POST", path, {"Content-Type": "application/json"}, json.dumps(body).encode())
            return str(json.loads(answer.body)["status"]["token"])
        except (PermanentError, ValueError, LookupError, TypeError) as error:
            raise PermanentError(f"no token for service account {account} in {namespace}: {error}") from error

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Raises ``PermanentError``, also with what the API server itself says against it."""
        shown = dict(headers)
        self._show_token(shown, method, path)
        pool = self._client.rest_client.pool_manager
        answer = asked(pool, method, f"{self._client.configuration.host}{path}", shown, body)
        said = _own_words(answer)
        if said is not None:
            raise PermanentError(f"the API server refuses: {said}")
        return answer

    def _show_token(self, headers: dict[str, str], method: str, path: str) -> None:
        with self._logged_problems():
            self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)

    @contextmanager
    def _logged_problems(self) -> Iterator[None]:
        """Raises ``PermanentError`` with what the library only logs: that a login program is missing, or fails."""
        logged = _RootMessages(logging.ERROR)
        logging.getLogger().addHandler(logged)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(logged)
        if logged.messages:
            raise self._unusable(logged.messages[-1])

    def _unusable(self, why: str) -> PermanentError:
        advice = "see `kubectl config view`, or name another with --kubeconfig FILE"
        return PermanentError(f"the kubeconfig {self._whence} cannot be used: {' '.join(why.split())}; {advice}")


class _RootMessages(logging.Handler):
    """Keeps messages of the root logger, with which the library logs, and which without a handler prints them."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "root":
            self.messages.append(record.getMessage())


def _own_words(answer: Answer) -> str | None:
    """The message of a ``Status``, which no page of the head is."""
    try:
        told = json.loads(answer.body) if answer.status >= 400 else None
    except ValueError:
        return None
    return str(told.get("message")) if isinstance(told, dict) and told.get("kind") == "Status" else None


def asked(pool: Any, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
    """Raises ``PermanentError``. Follows no redirection: the token is for one server."""
    try:
        answer = pool.request(
            method, url, body=body, headers=dict(headers), redirect=False, retries=False, timeout=TIMEOUT_S
        )
    except HTTPError as error:
        raise PermanentError(f"no answer: {error}") from error
    return Answer(answer.status, answer.headers.get("Content-Type", ""), answer.data)
