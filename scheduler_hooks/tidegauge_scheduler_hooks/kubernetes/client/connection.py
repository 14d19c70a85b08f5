"""Connection to one API server: the official client's transport and credentials, without its models.

``ApiClient`` may be shared by threads as it is used here: a request changes nothing in it but the token, and urllib3's
pool hands every request a connection of its own.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import SSLError

from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError

MAX_IDLE_CONNECTIONS = 64
"""Kept open for later requests: as many as the webhook answers at once. Of each one more urllib3 warns."""
RENEW_AFTER_S = 30.0
"""Refused credentials are read again, but not more often than this."""


class Connection:
    """The connection. ``kubeconfig=None``: the service account of this pod. Raises ``PermanentError`` if there are no
    credentials."""

    def __init__(self, kubeconfig: Path | None, *, user_agent: str) -> None:
        self._kubeconfig = kubeconfig
        self._user_agent = user_agent
        self._lock = threading.Lock()
        self._client = self._load()
        self._renewed_s = -math.inf

    @property
    def address(self) -> str:
        return str(self._client.configuration.host)

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Any = None,
        content_type: str = "application/json",
        connect_s: float,
        read_s: float,
    ) -> BaseHTTPResponse:
        """The answer once its head is there; its body is still to be read, and the response to be released.

        Tokens are read again every minute, and everything once more after a 401, as bound tokens, certificates and
        token files of a kubeconfig are replaced while this runs. Raises what urllib3 raises (``HTTPError``), and
        ``TemporaryError`` if the credentials cannot be read just now."""

        def answer(client: ApiClient) -> BaseHTTPResponse:
            headers = {"Accept": "application/json", "User-Agent": self._user_agent}
            if body is not None:
                headers["Content-Type"] = content_type
            try:
                client.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
            except (ConfigException, OSError) as error:
                raise TemporaryError(f"the token for the API server cannot be read: {error}") from error
            url = f"{client.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
            try:
                found = client.call_api(method, url, headers, body, _request_timeout=(connect_s, read_s))
            except ApiException as error:  # what the client makes of urllib3's SSLError, which it hides in the reason
                raise SSLError(error.reason) from error
            response: BaseHTTPResponse = found.response
            return response

        client = self._client
        response = answer(client)
        if response.status != 401 or not self._renew(client):
            return response
        response.drain_conn()
        response.release_conn()
        return answer(self._client)

    def _renew(self, refused: ApiClient) -> bool:
        """Read the credentials again; false if they are as new as can be."""
        with self._lock:
            if self._client is not refused:
                return True  # another thread just did
            if time.monotonic() - self._renewed_s < RENEW_AFTER_S:
                return False
            self._renewed_s = time.monotonic()
            try:
                self._client = self._load()
            except PermanentError:
                return False  # half written: the 401 says enough
            return True

    def _load(self) -> ApiClient:
        configuration = Configuration()
        configuration.retries = False  # urllib3 would send a PUT again, and follow redirections with the token
        configuration.keep_alive = True  # else a watch on a connection that a firewall forgot is silent for ever
        configuration.connection_pool_maxsize = MAX_IDLE_CONNECTIONS
        try:
            if self._kubeconfig is None:
                load_incluster_config(configuration)  # type: ignore[no-untyped-call] # the client's lacks types
            else:
                load_kube_config(  # type: ignore[no-untyped-call] # the same
                    str(self._kubeconfig), client_configuration=configuration, persist_config=False
                )
        except (ConfigException, yaml.YAMLError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            why = " ".join(str(error).split())  # one of YAML has lines
            raise PermanentError(f"no credentials for a Kubernetes API server: {self._whence}: {why}") from error
        return ApiClient(configuration)

    @property
    def _whence(self) -> str:
        if self._kubeconfig is None:
            return "not in a pod with a service account, and no kubeconfig given"
        return f"the kubeconfig {self._kubeconfig}"
