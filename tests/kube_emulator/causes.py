"""Why an object is refused, field by field: the texts that a 422 lists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]")

_SUBDOMAIN_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character"
)
_LABEL_WORDS = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'"
_VALUE_WORDS = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'"
_KEY_WORDS = "name part must consist of alphanumeric characters, '-', '_' or '.'"


def wrong(at: str, value: Any, why: str) -> str:
    return f"{at}: Invalid value: {json.dumps(value, separators=(',', ':'))}: {why}"


def unsupported(at: str, value: Any, *supported: str) -> str:
    return f"{at}: Unsupported value: {json.dumps(value)}: supported values: {', '.join(map(json.dumps, supported))}"


def missing(at: str, why: str = "") -> str:
    return f"{at}: Required value" + (f": {why}" if why else "")


def is_label(text: str) -> bool:
    """RFC 1123: 63 characters at most."""
    return len(text) <= 63 and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """RFC 1123: 253 characters at most."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def is_qualified(text: str) -> bool:
    """``name`` or ``domain/name``: keys of labels and annotations, finalizers."""
    prefix, slash, name = text.rpartition("/")
    return _NAME_PART.fullmatch(name) is not None and (not slash or is_subdomain(prefix))


def label_name_causes(at: str, text: str) -> Iterator[str]:
    """Of containers, volumes, namespaces."""
    if not text:
        yield missing(at)
    elif not is_label(text):
        yield wrong(at, text, _LABEL_WORDS)


def subdomain_causes(at: str, text: str) -> Iterator[str]:
    if not is_subdomain(text):
        yield wrong(at, text, _SUBDOMAIN_WORDS)


def labels_causes(at: str, labels: Mapping[str, str]) -> Iterator[str]:
    for key, value in labels.items():
        if not is_qualified(key):
            yield wrong(at, key, _KEY_WORDS)
        if len(value) > 63 or not _VALUE.fullmatch(value):
            yield wrong(at, value, _VALUE_WORDS)


def annotations_causes(at: str, annotations: Mapping[str, str]) -> Iterator[str]:
    for key in annotations:
        if not is_qualified(key.lower()):
            yield wrong(at, key, _KEY_WORDS)
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > 256 * 1024:
        yield f"{at}: Too long: may not be more than 262144 bytes"
