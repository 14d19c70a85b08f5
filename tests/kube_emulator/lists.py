"""Lists in pages, and watches."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

from kube_emulator.errors import bad_request, expired, no_version
from kube_emulator.objects import list_item, shown
from kube_emulator.requests import Reply, Request
from kube_emulator.selectors import Matches, field_selector, label_selector
from kube_emulator.store import CompactedError, Object, Store, key_of

BOOKMARK_EVERY_S = 1.0
"""The API server: about once a minute."""
_INITIAL_END = "k8s.io/initial-events-end"


def selection(request: Request) -> Matches:
    """What the request's selectors (and the name, for a watch of one object) choose."""
    labels = label_selector(request.query.get("labelSelector", ""))
    fields = field_selector(request.query.get("fieldSelector", ""), request.resource)
    return lambda value: labels(value) and fields(value)


def _place(request: Request) -> tuple[str, str, str | None]:
    key = key_of(request.resource, "", "")
    return key.group, key.plural, request.namespace or None


def list_page(store: Store, request: Request) -> Reply:
    """A list, or its next page: all pages show the objects as they were when the first one was asked for."""
    text = request.query.get("resourceVersion", "")
    if text and not text.isdigit():
        raise no_version(text, watch=False)
    matches, limit = selection(request), int(request.query.get("limit") or 0)
    version, after = store.version, ""
    if request.query.get("continue"):
        version, after = _continued(request.query["continue"])
    try:
        with store.changed:
            values = store.as_of(version, *_place(request))
    except CompactedError:
        raise expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list "
            "without the continue parameter."
        ) from None
    left = [value for value in values if matches(value) and _position(value) > after]
    page = left[:limit] if limit else left
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if len(page) < len(left):
        token = json.dumps({"v": version, "start": _position(page[-1])}).encode()
        metadata["continue"] = base64.urlsafe_b64encode(token).decode()
        if not request.query.get("labelSelector") and not request.query.get("fieldSelector"):
            metadata["remainingItemCount"] = len(left) - len(page)
    resource = request.resource
    items = [list_item(resource, value) for value in page]
    return Reply(
        {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata, "items": items}
    )


def _position(value: Object) -> str:
    return f"{value['metadata'].get('namespace', '')}/{value['metadata']['name']}"


def _continued(token: str) -> tuple[int, str]:
    try:
        decoded = json.loads(base64.urlsafe_b64decode(token))
        return int(decoded["v"]), str(decoded["start"])
    except (ValueError, KeyError, TypeError):
        raise bad_request("continue key is not valid") from None


def watch(store: Store, request: Request) -> Iterator[dict[str, Any] | None]:
    """Events, and ``None`` whenever nothing happened for a moment, so that the caller can look around.

    Ends after ``timeoutSeconds``. Raises a 500 before the first event for a version that is none, as the real server.
    """
    query, resource, matches = request.query, request.resource, selection(request)
    group, plural, namespace = _place(request)
    text = query.get("resourceVersion", "")
    if text and not text.isdigit():
        raise no_version(text, watch=True)
    ends_s = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
    bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
    initial = query.get("sendInitialEvents") in ("1", "true")
    version = int(text or 0)
    if version == 0 or initial:
        with store.changed:
            version, values = store.version, store.of_kind(group, plural, namespace)
        for value in values:
            if matches(value):
                yield {"type": "ADDED", "object": shown(resource, value)}
        if initial:
            yield _bookmark(request, version, {_INITIAL_END: "true"})
    bookmark_s = time.monotonic() + BOOKMARK_EVERY_S
    while True:
        try:
            with store.changed:
                changes = store.changes_after(version)
                if not changes:
                    store.changed.wait(timeout=0.5)
                    changes = store.changes_after(version)
        except CompactedError:
            error = expired(f"too old resource version: {version} ({store.compacted})")
            yield {"type": "ERROR", "object": error.status}  # not with the store held: the reader may be gone
            return
        for change in changes:
            version = change.version
            if (change.key.group, change.key.plural) == (group, plural) and namespace in (None, change.key.namespace):
                event = _event(change.before, change.after, change.deleted_as, matches, version)
                if event is not None:
                    yield {"type": event[0], "object": shown(resource, event[1])}
        now_s = time.monotonic()
        if bookmarks and now_s > bookmark_s:
            bookmark_s = now_s + BOOKMARK_EVERY_S
            yield _bookmark(request, version, {})
        if now_s > ends_s:
            return
        if not changes:
            yield None


def _event(
    before: Object | None, after: Object | None, deleted_as: Object | None, matches: Matches, version: int
) -> tuple[str, Object] | None:
    """An object that leaves the selected set is DELETED for this watch, one that comes into it ADDED."""
    was, remains = before is not None and matches(before), after is not None and matches(after)
    if remains and after is not None:
        return ("MODIFIED" if was else "ADDED"), after
    if was and before is not None:
        last = deleted_as or {**before, "metadata": {**before["metadata"], "resourceVersion": str(version)}}
        return "DELETED", last
    return None


def _bookmark(request: Request, version: int, annotations: dict[str, str]) -> dict[str, Any]:
    metadata = {"resourceVersion": str(version), **({"annotations": annotations} if annotations else {})}
    resource = request.resource
    return {
        "type": "BOOKMARK",
        "object": {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata},
    }
