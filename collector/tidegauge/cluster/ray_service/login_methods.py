"""Opens the ways in to the coordinator's API that need more than files: a proxy's header, MUNGE, Kubernetes."""

from __future__ import annotations

import logging
import shutil

from tidegauge.http.credentials import BesideFiles
from tidegauge.http.munge import PROGRAM, MungeLogin, Unmunge
from tidegauge.http.namespace_rights import AccessReviewer, AccessReviews, AccessRight
from tidegauge.http.proxy_user import ProxyUser, parse_header, parse_networks
from tidegauge.http.token_reviews import ReviewedUser, ReviewUnavailableError, TokenReviewer, TokenReviews
from tidegauge.settings import Settings, comma_separated

log = logging.getLogger(__name__)


class LoginSetupError(ValueError):
    """The settings of a way in cannot be used; the message says which and what to do."""


def open_login_methods(settings: Settings) -> BesideFiles:
    """The ways in that are on. One that does not work now stays on and admits nobody. Raises ``LoginSetupError`` for
    settings that cannot be used at all."""
    beside = BesideFiles(
        proxy=_proxy_user(settings),
        munge=MungeLogin(Unmunge(settings.munge_socket).uid_of) if settings.munge_login else None,
    )
    if not settings.kubernetes_login:
        return beside
    try:
        tokens, access = _reviewers(settings)
    except LoginSetupError as error:
        log.error("tokens of Kubernetes are refused: %s", error)
        tokens = access = _NoReviewer(str(error))
    return beside._replace(kubernetes=TokenReviews(tokens), access=AccessReviews(access))


def check_login_methods(settings: Settings) -> None:
    """For the start of a head. Raises ``LoginSetupError``, also for what may work later but does not now."""
    _proxy_user(settings)
    if settings.munge_login and shutil.which(PROGRAM) is None:
        raise LoginSetupError("munge_login is on, but there is no unmunge here: install munge, or switch it off")
    socket = settings.munge_socket
    if settings.munge_login and socket is not None and not socket.is_socket():
        raise LoginSetupError(f"munge_socket {socket} is no socket: start munged, or name the one it listens on")
    if settings.kubernetes_login:
        _reviewers(settings)


def _proxy_user(settings: Settings) -> ProxyUser | None:
    header, trusted = settings.proxy_user_header, comma_separated(settings.trusted_proxies)
    if header is None and not trusted:
        if settings.proxy_user_domain is not None:
            raise LoginSetupError("proxy_user_domain is set without proxy_user_header: set that too")
        return None
    if header is None or not trusted:
        missing = "proxy_user_header" if header is None else "trusted_proxies"
        raise LoginSetupError(f"proxy_user_header and trusted_proxies need each other: set {missing} too")
    try:
        name = parse_header(header)
    except ValueError as error:
        raise LoginSetupError(f"proxy_user_header: {error}") from None
    try:
        networks = parse_networks(trusted)
    except ValueError as error:
        raise LoginSetupError(f"trusted_proxies: {error}") from None
    return ProxyUser(name, networks, domain=settings.proxy_user_domain)


def _reviewers(settings: Settings) -> tuple[TokenReviewer, AccessReviewer]:
    """Connects to nothing yet. Raises ``LoginSetupError``."""
    try:
        from tidegauge_scheduler_hooks.kubernetes.access_reviewer import BURST, QPS, ApiAccessReviewer
        from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
        from tidegauge_scheduler_hooks.kubernetes.token_reviewer import TIMEOUT_S, ApiTokenReviewer
        from tidegauge_scheduler_hooks.ports import PermanentError
    except ImportError as error:
        raise LoginSetupError(
            f"kubernetes_login is on, but the package {error.name} is missing: pip install 'tidegauge[kubernetes]'"
        ) from None
    try:
        api = open_api(settings.kubernetes_kubeconfig, timeout_s=TIMEOUT_S, qps=QPS, burst=BURST)
    except PermanentError as error:
        raise LoginSetupError(
            f"kubernetes_login is on, but the API server cannot be used: {error}; outside a pod, set "
            "kubernetes_kubeconfig"
        ) from None
    return ApiTokenReviewer(api, audience=settings.kubernetes_login_audience), ApiAccessReviewer(api)


class _NoReviewer:
    """``TokenReviewer`` and ``AccessReviewer`` that can check nothing."""

    def __init__(self, why: str) -> None:
        self._why = why

    def review(self, token: str) -> ReviewedUser | None:  # noqa: ARG002 - the port's
        raise ReviewUnavailableError(self._why)

    def may(self, user: ReviewedUser, wanted: AccessRight) -> bool:  # noqa: ARG002 - the port's
        raise ReviewUnavailableError(self._why)
