"""Who asks: bearer tokens of users and of service accounts."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kube_emulator.errors import ApiError
from kube_emulator.resources import SERVICE_ACCOUNTS
from kube_emulator.store import Store, key_of

ADMINS = "system:masters"
API_AUDIENCE = "https://kubernetes.default.svc.cluster.local"
"""Of tokens for the API server itself."""
AUTHENTICATED = "system:authenticated"


@dataclass(frozen=True)
class User:
    """As ``SubjectAccessReview`` and admission reviews write them."""

    name: str
    groups: frozenset[str] = frozenset()

    @property
    def admin(self) -> bool:
        return ADMINS in self.groups


ANONYMOUS = User("system:anonymous", frozenset({"system:unauthenticated"}))


def service_account(namespace: str, name: str) -> User:
    groups = {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED}
    return User(f"system:serviceaccount:{namespace}:{name}", frozenset(groups))


@dataclass(frozen=True)
class _BoundToken:
    namespace: str
    name: str
    uid: str
    expires_s: float
    audiences: frozenset[str]


@dataclass
class Accounts:
    """Thread-safe. Tokens of a service account end with it, and when they expire."""

    store: Store
    followed: dict[str, dict[Any, None]] = field(default_factory=dict)
    """By a user's name what it has asked for (``rbac.Asked``), in order and without repetition; see
    ``Emulator.follow``."""
    _users: dict[str, User] = field(default_factory=dict)
    _bound: dict[str, _BoundToken] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def token_of(self, name: str, *groups: str) -> str:
        """A token for a user; the same one for the same user."""
        user = User(name, frozenset({*groups, AUTHENTICATED}))
        with self._lock:
            known = next((token for token, each in self._users.items() if each == user), None)
            if known is None:
                known = secrets.token_urlsafe(24)
                self._users[known] = user
            return known

    def bind_token(self, account: Mapping[str, Any], lifetime_s: float, audiences: Iterable[str] = ()) -> str:
        metadata = account["metadata"]
        token = secrets.token_urlsafe(32)
        expires_s = time.time() + lifetime_s
        with self._lock:
            self._bound[token] = _BoundToken(
                metadata["namespace"], metadata["name"], metadata["uid"], expires_s,
                frozenset(audiences) or frozenset({API_AUDIENCE}),
            )  # fmt: skip
        return token

    def user_of(self, authorization: str | None) -> User:
        """By the request's ``Authorization`` header. Raises a 401 for a token that is none (any more)."""
        if not authorization:
            return ANONYMOUS
        known = self.owner_of(authorization.removeprefix("Bearer ").strip())
        if known is None or API_AUDIENCE not in known[1]:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return known[0]

    def owner_of(self, token: str) -> tuple[User, frozenset[str]] | None:
        """Whose token it is, and for which audiences; ``None``: it is none (any more)."""
        with self._lock:
            user, bound = self._users.get(token), self._bound.get(token)
        if user is not None:
            return user, frozenset({API_AUDIENCE})
        if bound is not None and bound.expires_s > time.time():
            account = self.store.get(key_of(SERVICE_ACCOUNTS, bound.namespace, bound.name))
            if account is not None and account["metadata"]["uid"] == bound.uid:
                return service_account(bound.namespace, bound.name), bound.audiences
        return None
