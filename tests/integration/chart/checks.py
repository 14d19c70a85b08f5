"""All that is looked at in manifests, so that a test of one is a test of every one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from integration.chart import pod_checks, reference_checks, syntax_checks
from integration.chart.rendering import Object
from integration.chart.schema_checks import unlike_their_schemas

CHECKS: tuple[Callable[[Sequence[Object]], Iterable[str]], ...] = (
    *syntax_checks.CHECKS,
    *pod_checks.CHECKS,
    *reference_checks.CHECKS,
)


def problems(objects: Sequence[Object], version: str, *, given: Collection[str] = ()) -> list[str]:
    """What an API server of this version, or a careful reader, would object to. ``given``: ``Kind/name`` of what the
    site makes itself."""
    found = list(unlike_their_schemas(objects, version))
    for check in CHECKS:
        found += check(objects)
    wanted_elsewhere = tuple(f"there is no {name}" for name in given)
    return [problem for problem in found if not problem.endswith(wanted_elsewhere)] if given else found
