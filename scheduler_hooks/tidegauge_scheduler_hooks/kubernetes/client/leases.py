"""Leader election by a Lease (``coordination.k8s.io/v1``), after client-go's ``leaderelection``.

The official client's election is not used: it blocks its caller and cannot be stopped, never gives a lease back,
measures by the wall clock, uses global credentials, and writes times that the API server refuses once in a million.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from tidegauge_scheduler_hooks.kubernetes.events import micro_time
from tidegauge_scheduler_hooks.kubernetes.ports import LEASES, ConflictError, KubeApi, Object, ObjectNotFoundError
from tidegauge_scheduler_hooks.ports import SchedulerError

logger = logging.getLogger(__name__)

_CHANCE = random.Random()  # an own one: threads must not disturb what others drew by a seed
LEASE_S = 15.0
"""A holder that does not renew for this time counts as dead; client-go's default, like the next two."""
RENEW_DEADLINE_S = 10.0
"""A leader that could not renew for this time stops: 5 s before another may start."""
RETRY_S = 2.0
STOP_WITHIN_S = 4.0


LOOK_AGAIN_S = 6.0
"""Three renewal intervals."""


class Leader:
    """Leads while it holds the Lease ``namespace/name``. ``identity`` must be of this very process (a pod's name is
    not: its container may start again), because a process that finds it in the Lease goes on leading.

    ``on_started`` and ``on_stopped`` take turns, in threads of the Leader, and must be quick. Ask ``leading`` before
    each single act: it is right even in a process that was stopped and goes on."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        name: str,
        identity: str,
        on_started: Callable[[], None],
        on_stopped: Callable[[], None],
        *,
        lease_s: float = LEASE_S,
        renew_deadline_s: float = RENEW_DEADLINE_S,
        retry_s: float = RETRY_S,
        owner: Mapping[str, str] | None = None,
    ) -> None:
        """``owner``: of a Lease that it makes, as an owner reference."""
        assert lease_s > renew_deadline_s > retry_s
        self.identity = identity
        self._lock = LeaseLock(api, namespace, name, identity, lease_s=lease_s, owner=owner)
        self._place = f"lease {namespace}/{name}"
        self._on_started, self._on_stopped = on_started, on_stopped
        self._renew_deadline_s, self._retry_s = renew_deadline_s, retry_s
        self._changed = threading.Condition(threading.RLock())
        self._ending = False
        self._until_s: float | None = None
        """The end of its leadership unless it renews; ``None``: it does not lead."""
        self.problem: str | None = None
        """The last error of reading or writing the Lease, for people."""
        self._threads = [
            threading.Thread(target=self._campaign, name=self._place, daemon=True),
            threading.Thread(target=self._mind_the_deadline, name=f"deadline of {self._place}", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def leading(self) -> bool:
        until_s = self._until_s
        return until_s is not None and time.monotonic() < until_s

    @property
    def holder(self) -> str | None:
        """The known leader, this one included."""
        return self._lock.holder

    def stop(self) -> None:
        """Stop leading, and give the Lease back so that another may lead at once. Returns within seconds; if a request
        hangs, the Lease runs out by itself."""
        with self._changed:
            self._ending = True
            self._stop_leading("shutting down")
            self._changed.notify_all()
        deadline_s = time.monotonic() + STOP_WITHIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            logger.warning("%s is not released: a request is unanswered; it will expire", self._place)
            return
        try:
            self._lock.release()
        except SchedulerError as error:
            logger.warning("%s is not released and will expire: %s", self._place, error)

    def _campaign(self) -> None:
        while not self._ending:
            asked_s = time.monotonic()
            try:
                held = self._lock.hold()
            except SchedulerError as error:
                if self.problem is None:
                    logger.warning("%s cannot be renewed: %s", self._place, error)
                self.problem = str(error)
            except Exception as error:  # without this thread this replica would never lead again, and nobody see why
                logger.exception("%s: internal error; retrying", self._place)
                self.problem = f"internal error: {error!r}"
            else:
                self.problem = None
                if held:
                    self._lead(asked_s + self._renew_deadline_s)
                else:
                    self._stop_leading(f"{self._lock.holder or 'nobody'} holds it")
            with self._changed:
                self._changed.wait_for(lambda: self._ending, self._retry_s * _CHANCE.uniform(0.8, 1.2))

    def _mind_the_deadline(self) -> None:
        """A thread of its own: the other one may hang in the very request that is to renew."""
        with self._changed:
            while not self._ending:
                if self._until_s is not None and not self.leading:
                    self._stop_leading(f"not renewed for {self._renew_deadline_s:g} s")
                left_s = None if self._until_s is None else max(0.0, self._until_s - time.monotonic())
                self._changed.wait(left_s)

    def _lead(self, until_s: float) -> None:
        with self._changed:
            if self._ending or time.monotonic() >= until_s:
                return  # the answer came too late to count on it
            started = self._until_s is None
            self._until_s = until_s
            self._changed.notify_all()
            if started:
                logger.info("%s: %s is the leader", self._place, self.identity)
                self._on_started()

    def _stop_leading(self, why: str) -> None:
        with self._changed:
            if self._until_s is None:
                return
            self._until_s = None
            logger.info("%s: %s is no longer the leader: %s", self._place, self.identity, why)
            self._on_stopped()


class LeaseLock:
    """One Lease, seen by one candidate. For one thread; ``holder`` for all. ``clock`` only goes forward."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        name: str,
        identity: str,
        *,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
        owner: Mapping[str, str] | None = None,
    ) -> None:
        self._api = api
        self._owners = [] if owner is None else [dict(owner)]
        self._namespace, self._name = namespace, name
        self._identity = identity
        self._lease_s = lease_s
        self._clock = clock
        self._mine: Object | None = None
        """The Lease as written last, while no other has written."""
        self._seen: Mapping[str, Any] | None = None
        self._seen_s = 0.0
        """The time at which ``_seen`` was first seen: another's clock proves nothing here."""
        self.holder: str | None = None

    def hold(self) -> bool:
        """Take or renew it; false: another has it. If true, it is held for ``lease_s``, counted from the call. Raises
        ``SchedulerError`` if nothing is known."""
        if self._mine is not None:
            mine, self._mine = self._mine, None
            try:
                return self._write(mine)
            except (ConflictError, ObjectNotFoundError):
                pass  # somebody wrote to it: look who
        try:
            lease = self._api.get(LEASES, self._namespace, self._name)
        except ObjectNotFoundError:
            return self._may_take() and self._create()
        spec = lease.get("spec") or {}
        if spec != self._seen:
            self._seen, self._seen_s = spec, self._clock()  # not before the answer: it may be as new as that
        self.holder = spec.get("holderIdentity") or None
        if self.holder != self._identity and not self._may_take():
            return False
        try:
            return self._write(lease)
        except ConflictError:
            return False

    def release(self) -> None:
        """Free it, for the next to take at once; does nothing if it is not known to be ours."""
        mine, self._mine = self._mine, None
        if mine is not None:
            now = micro_time(time.time())
            spec = {**mine["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now}
            self._api.replace(LEASES, self._namespace, self._name, {**mine, "spec": spec})
            self.holder = None

    def _may_take(self) -> bool:
        """Whether it is free, or its holder has not renewed it for as long as the holder wanted it, seen from here."""
        if self._seen is None or not self._seen.get("holderIdentity"):
            return True
        return self._clock() - self._seen_s >= float(self._seen.get("leaseDurationSeconds") or self._lease_s)

    def _create(self) -> bool:
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            # Only here: to change owners takes the right to delete (OwnerReferencesPermissionEnforcement, OpenShift).
            "metadata": {"name": self._name, "namespace": self._namespace, "ownerReferences": self._owners},
            "spec": self._spec({}),
        }
        try:
            self._mine = self._api.create(LEASES, self._namespace, body)
        except ConflictError:
            return False
        self.holder = self._identity
        return True

    def _write(self, lease: Object) -> bool:
        body = {**lease, "spec": self._spec(lease.get("spec") or {})}
        self._mine = self._api.replace(LEASES, self._namespace, self._name, body)
        self.holder = self._identity
        return True

    def _spec(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """The spec to write; ``LeaseSpec`` of the API reference explains the fields."""
        now = micro_time(time.time())
        spec = {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._lease_s)),
            "renewTime": now,
        }
        if before.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + 1 if before else 0
        return spec


def account_in(token_file: Path, namespace: str) -> Mapping[str, str] | None:
    """The ServiceAccount of this pod as an owner reference, by the claims of its own token ("Service account token
    structure" in the Kubernetes documentation): what it owns goes with it when a release is uninstalled, and no right
    is needed to know its uid. ``None``: there is no such token, or it is of another namespace."""
    try:
        claims = token_file.read_text().split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["kubernetes.io"]
        account = said["serviceaccount"]
        if said["namespace"] != namespace:
            return None
        return {"apiVersion": "v1", "kind": "ServiceAccount", "name": account["name"], "uid": account["uid"]}
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return None


def lease_age_s(
    api: KubeApi,
    namespace: str,
    name: str,
    *,
    wall_s: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> float | None:
    """Seconds since the holder of a Lease renewed it; ``None``: it has no holder.

    Clocks differ. Where this machine's says that it was renewed in the future, or too long ago, the Lease is read again
    after a time in which a living holder renews it: that blocks for ``LOOK_AGAIN_S``. ``math.inf``: it was not renewed,
    and its age is unknown. Raises ``SchedulerError``."""
    renewed = _renewed(api, namespace, name)
    if renewed is None:
        return None
    age_s = wall_s() - renewed.timestamp()
    if 0 <= age_s <= LEASE_S:
        return age_s
    sleep(LOOK_AGAIN_S)
    again = _renewed(api, namespace, name)
    if again is None:
        return None
    if again != renewed:
        return 0.0
    return age_s if age_s > 0 else math.inf


def _renewed(api: KubeApi, namespace: str, name: str) -> datetime | None:
    try:
        spec = api.get(LEASES, namespace, name).get("spec") or {}
        if not spec.get("holderIdentity"):
            return None
        return datetime.fromisoformat(spec["renewTime"].replace("Z", "+00:00"))
    except (ObjectNotFoundError, KeyError, ValueError):
        return None
