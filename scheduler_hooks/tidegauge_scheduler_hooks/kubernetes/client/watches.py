"""``Watches`` on the official client's ``SharedInformer``: one for each kind and namespace, and one index above them.

The informer goes on from the last version after a cut, lists again after a 410, and finds missed changes by comparing.
``feeds`` adds the rest. Each informer is a thread with one connection.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kubernetes import informer as client_informer
from kubernetes.informer import ADDED, DELETED, ERROR, MODIFIED, SharedInformer

from tidegauge_scheduler_hooks.kubernetes.client.api import ClientApi, drop_managed_fields
from tidegauge_scheduler_hooks.kubernetes.client.feeds import Feed
from tidegauge_scheduler_hooks.kubernetes.ports import Object, Resource

logger = logging.getLogger(__name__)

# A traceback for every watch that is cut; the feeds say what is worth saying, once.
logging.getLogger(f"{client_informer.__name__}.informer").setLevel(logging.CRITICAL)

CLOSE_WITHIN_S = 5.0

OnChange = Callable[[Object, bool], None]


class ClientStore:
    """``ObjectStore``: the objects of the informers of one kind."""

    def __init__(self, feeds: Sequence[Feed], on_change: OnChange | None) -> None:
        self._feeds = feeds
        self._on_change = on_change
        self._lock = threading.Lock()
        self._by_uid: dict[str, Object] = {}
        self._by_name: dict[tuple[str | None, str], Object] = {}
        self._informers = [self._informer(feed) for feed in feeds]

    def start(self) -> None:
        for informer in self._informers:
            informer.start()

    def get(self, namespace: str | None, name: str) -> Object | None:
        with self._lock:
            return self._by_name.get((namespace, name))

    def by_uid(self, uid: str) -> Object | None:
        with self._lock:
            return self._by_uid.get(uid)

    def all(self) -> Sequence[Object]:
        with self._lock:
            return list(self._by_uid.values())

    @property
    def synced(self) -> bool:
        return all(feed.synced for feed in self._feeds)

    @property
    def current(self) -> bool:
        return all(feed.current for feed in self._feeds)

    @property
    def problem(self) -> str | None:
        return next(filter(None, (feed.problem for feed in self._feeds)), None)

    @property
    def kind_missing(self) -> bool:
        return any(feed.kind_missing for feed in self._feeds)

    def endings(self) -> list[Callable[[], None]]:
        """Functions that each end one informer, and block until its thread is done."""
        for feed in self._feeds:
            feed.close()
        return [partial(_end, informer) for informer in self._informers]

    def _informer(self, feed: Feed) -> Any:
        informer: Any = SharedInformer(feed.read, key_func=_uid)  # type: ignore[no-untyped-call] # it lacks types
        informer.add_event_handler(ADDED, self._seen)
        informer.add_event_handler(MODIFIED, self._seen)
        informer.add_event_handler(DELETED, self._gone)
        informer.add_event_handler(ERROR, feed.interrupted)
        return informer

    def _seen(self, item: dict[str, Any]) -> None:
        drop_managed_fields(item)  # the informer keeps this very dictionary
        with self._lock:
            self._by_uid[_uid(item)] = item
            self._by_name[_name(item)] = item
        self._tell(item, deleted=False)

    def _gone(self, item: dict[str, Any]) -> None:
        with self._lock:
            # What has gone is told before its namesake comes, by a watch and by a list.
            self._by_uid.pop(_uid(item), None)
            self._by_name.pop(_name(item), None)
        self._tell(item, deleted=True)

    def _tell(self, item: Object, *, deleted: bool) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(item, deleted)
        except Exception:  # a defect of whoever listens must not end the watch
            logger.exception("a listener failed on a change of %s %s", item.get("kind"), _name(item))


class ClientWatches:
    """``Watches``. ``namespaces``: only these, so that roles in them are enough; none: the whole cluster.

    All objects are listed again, and reported, every ``resync_s`` seconds: that finds changes that a watch has lost."""

    def __init__(self, api: ClientApi, *, namespaces: Sequence[str] | None = None, resync_s: float = 300.0) -> None:
        self._api = api
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._resync_s = resync_s
        self._lock = threading.Lock()
        self._stores: dict[tuple[Resource, str | None, OnChange | None], ClientStore] = {}
        self._closed = False

    def store(
        self, resource: Resource, *, label_selector: str | None = None, on_change: OnChange | None = None
    ) -> ClientStore:
        key = (resource, label_selector, on_change)
        with self._lock:
            assert not self._closed, "the watches are closed"
            if key not in self._stores:
                namespaces = self._namespaces if resource.namespaced else (None,)
                feeds = [
                    Feed(self._api, resource, namespace, label_selector=label_selector, resync_s=self._resync_s)
                    for namespace in namespaces
                ]
                self._stores[key] = ClientStore(feeds, on_change)
                self._stores[key].start()
            return self._stores[key]

    def close(self) -> None:
        """End all watches. A thread in the middle of a request ends with it, seconds later."""
        with self._lock:
            self._closed = True
            endings = [ending for store in self._stores.values() for ending in store.endings()]
        enders = [threading.Thread(target=ending, name="end of a watch", daemon=True) for ending in endings]
        for ender in enders:
            ender.start()
        deadline_s = time.monotonic() + CLOSE_WITHIN_S
        for ender in enders:
            ender.join(max(0.0, deadline_s - time.monotonic()))


def _end(informer: Any) -> None:
    try:
        informer.stop()
    except AttributeError:  # it looks at its watch twice, and the watch ended in between; no other one begins
        informer.stop()


def _uid(item: Any) -> str:
    return str(item["metadata"]["uid"])


def _name(item: Any) -> tuple[str | None, str]:
    return item["metadata"].get("namespace"), item["metadata"]["name"]
