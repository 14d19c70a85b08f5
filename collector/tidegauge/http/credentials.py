"""Checks what a client shows of who it is, by every way in that is on: files, MUNGE, Kubernetes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections.abc import Callable
from typing import NamedTuple

from tidegauge.http.access import LoginMethod, Refusal
from tidegauge.http.config import WebConfig
from tidegauge.http.munge import MungeLogin
from tidegauge.http.namespace_rights import AccessReviews, RightsOfUser
from tidegauge.http.passwords import Password, Passwords
from tidegauge.http.proxy_user import ProxyUser
from tidegauge.http.sessions import Identity, Shown
from tidegauge.http.token_reviews import ReviewedUser, TokenReviews
from tidegauge.http.tokens import PREFIX, ApiToken, digest_of, name_of_digest

BASIC, BEARER, MUNGE = (
    ("WWW-Authenticate", 'Basic realm="tidegauge", charset="UTF-8"'), ("WWW-Authenticate", "Bearer"),
    ("WWW-Authenticate", "Munge"),
)  # fmt: skip
UNKNOWN = "this token, or this name and password, is not known here"
LATER = "too many passwords were tried: try again in some seconds, or use a token"
NOT_A_USER = "this token is of a user whose name cannot be told from a group's"
MAX_HEADER_CHARS = 8192
GROUP = "group:"
"""Before the name of a group of Kubernetes in ``api_admins`` and ``metrics_readers``."""


class BesideFiles(NamedTuple):
    """The ways in that need more than files; ``None``: off."""

    proxy: ProxyUser | None = None
    munge: MungeLogin | None = None
    kubernetes: TokenReviews | None = None
    access: AccessReviews | None = None
    """With ``kubernetes``: what its users may."""

    def methods(self) -> frozenset[LoginMethod]:
        on = {
            LoginMethod.PROXY: self.proxy, LoginMethod.MUNGE: self.munge, LoginMethod.KUBERNETES: self.kubernetes,
        }  # fmt: skip
        return frozenset(method for method, adapter in on.items() if adapter is not None)


FILES_ALONE = BesideFiles()


class Credentials:
    """Thread-safe. ``config`` and ``tokens`` are those of the files in force."""

    def __init__(self, beside: BesideFiles, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._beside = beside
        self._passwords = Passwords(monotonic_s=monotonic_s)

    def challenges(self) -> tuple[tuple[str, str], ...]:
        return (BASIC, BEARER) if self._beside.munge is None else (BASIC, BEARER, MUNGE)

    def check(
        self, authorization: str, peer: str, *, config: WebConfig, tokens: tuple[ApiToken, ...]
    ) -> Identity | Refusal | None:
        """Who shows this; ``None``: it is of no scheme that is known here."""
        scheme, _, shown = authorization[:MAX_HEADER_CHARS].partition(" ")
        if scheme.lower() == "bearer":
            return self._by_token(shown.strip(), peer, tokens)
        if scheme.lower() == "basic":
            return self._by_password(shown, peer, config)
        if scheme.lower() == "munge" and self._beside.munge is not None:
            return self._by_munge(shown.strip(), peer, self._beside.munge)
        return None

    def stands(
        self, shown: Shown, peer: str, *, config: WebConfig, tokens: tuple[ApiToken, ...]
    ) -> Identity | Refusal | None:
        """Who a session is of now; ``None`` if what it was begun with does not count any more."""
        identity = shown.session.identity
        if identity.method is LoginMethod.KUBERNETES:
            now = None if self._beside.kubernetes is None else self._beside.kubernetes.user(shown.secret, peer)
            return self._reviewed(now) if isinstance(now, ReviewedUser) else now
        if identity.method is LoginMethod.TOKEN:
            holds = name_of_digest(identity.proof, tokens) == identity.name
        elif identity.method is LoginMethod.PASSWORD:
            hashed = config.users.get(identity.name)
            holds = hashed is not None and _digest(hashed) == identity.proof
        else:
            munge = self._beside.munge
            holds = munge is not None and munge.name_of(int(identity.proof)) == identity.name
        return identity if holds else None

    def unknown(self) -> Refusal:
        return Refusal(401, UNKNOWN, self.challenges())

    def _by_token(self, token: str, peer: str, tokens: tuple[ApiToken, ...]) -> Identity | Refusal:
        digest = digest_of(token)
        name = name_of_digest(digest, tokens)
        if name is not None:
            return Identity(name, LoginMethod.TOKEN, frozenset({name}), digest)
        if self._beside.kubernetes is None or token.startswith(PREFIX):
            return self.unknown()
        user = self._beside.kubernetes.user(token, peer)
        if isinstance(user, ReviewedUser):
            return self._reviewed(user)
        return self.unknown() if user is None else user

    def _by_password(self, shown: str, peer: str, config: WebConfig) -> Identity | Refusal:
        try:
            name, colon, password = base64.b64decode(shown.strip(), validate=True).partition(b":")
            user = name.decode()
        except (binascii.Error, ValueError):
            return self.unknown()
        if not colon or not config.users:
            return self.unknown()
        answer = self._passwords.check(config.users, user, password, peer=peer)
        if answer is Password.NOT_NOW:
            return Refusal(429, LATER, (("Retry-After", "5"),))
        if answer is Password.WRONG:
            return self.unknown()
        return Identity(user, LoginMethod.PASSWORD, frozenset({user}), _digest(config.users[user]))

    def _by_munge(self, credential: str, peer: str, munge: MungeLogin) -> Identity | Refusal:
        user = munge.user(credential, peer)
        if isinstance(user, Refusal):
            return user._replace(headers=(*user.headers, *self.challenges())) if user.status == 401 else user
        return Identity(user.name, LoginMethod.MUNGE, frozenset({user.name}), str(user.uid).encode())

    def _reviewed(self, user: ReviewedUser) -> Identity | Refusal:
        """By the full name, so that nobody becomes an admin by the name of a namespace."""
        if user.username.startswith(GROUP) or not user.username.isprintable():
            return Refusal(403, NOT_A_USER)
        assert self._beside.access is not None, "whoever reviews tokens asks for rights"
        roles = frozenset({user.username, *(f"{GROUP}{group}" for group in user.groups)})
        rights = RightsOfUser(self._beside.access, user)
        return Identity(user.username, LoginMethod.KUBERNETES, roles, rights=rights)


def _digest(hashed: bytes) -> bytes:
    return hashlib.sha256(hashed).digest()
