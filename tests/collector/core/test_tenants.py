"""Every limit counts by tenant: values, and a look through the product for one that counts by a bare uid."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_views import rank_summary
from tidegauge.core.ids import JobKey
from tidegauge.core.jobs.kubernetes import PodPlace
from tidegauge.core.jobs.tenants import Tenant, tenant_of

REPOSITORY = Path(__file__).parents[3]
PRODUCT = ("collector/tidegauge", "exporter/tidegauge_exporter", "scheduler_hooks/tidegauge_scheduler_hooks")
KEYED = {"setdefault", "get", "add", "pop", "update"}
COUNTING = {"sum", "len", "Counter", "any", "sorted"}
NO_LIMITS = {
    "grouping.py: {rank.user_name for rank in ranks}": "whose a job is said to be",
    "record.py: (view.user_name for view in views)": "whose a job is said to be",
    "persons.py: (row.user_name for row in rows)": "whose data is looked for",
    "persons.py: {row.uid for row in rows if row.user_name in theirs and namespace_of(row.job_id) is None}": "the same",
    "waste.py: of_user.setdefault(usage.user_name, [])": "who gets a mail",
    "waste_round.py: record.get(waste.user_name)": "who had a mail",
    "messages.py: {one.user_name for one in incidents}": "people, in a sentence",
    "pod_directory.py: self._below[reference.uid]": "owners of a pod in Kubernetes",
    "facts_of_jobs.py: rank.uid == uid": "whether a Slurm job is the rank's",
    "record_api.py: {one.job.uid for one in found if one.job.job_id == record.job.job_id}": "who else has the id",
    "job.py: {one.key.uid for one in found if one.key.job_id == chosen.key.job_id}": "whether a name means one job",
}
"""Places where users are told apart and nothing is counted, as the scan finds them."""


@pytest.mark.parametrize(
    ("job", "tenant"),
    [
        (JobKey("4711", 0, 1001), Tenant(1001)),
        (JobKey("local-vm-1-2", 3, 0, "step 1"), Tenant(0)),
        (JobKey("team-a/train", 0, 0), Tenant(None, "team-a")),
    ],
)
def test_a_job_is_its_users_or_its_namespaces(job: JobKey, tenant: Tenant) -> None:
    assert tenant_of(job) == tenant


def test_a_rank_is_its_namespaces_its_pods_its_containers_or_its_users() -> None:
    rank = rank_summary
    assert rank(uid=7, pod=PodPlace("u1", "team-a")).tenant == Tenant(None, "team-a")
    assert rank(uid=7, pod=PodPlace("u1")).tenant == Tenant(None, pod_uid="u1")
    assert rank(uid=7, container_id="a" * 64).tenant == Tenant(7, container_id="a" * 64)
    assert rank(uid=7).tenant == Tenant(7)
    assert rank(uid=200_007, user_namespace_owner=7).tenant == Tenant(7)


@pytest.mark.parametrize(
    ("tenant", "text"),
    [
        (Tenant(1001), "uid 1001"),
        (Tenant(0, container_id="7f3a" * 16), "uid 0 in container 7f3a7f3a7f3a"),
        (Tenant(None, "team-a"), "namespace team-a"),
        (Tenant(None, pod_uid="1f2e"), "pod 1f2e"),
    ],
)
def test_people_read_whom_a_limit_is_about(tenant: Tenant, text: str) -> None:
    assert str(tenant) == text


def counted_by_user(source: str) -> Iterator[str]:
    """Expressions that group or count by an attribute ``uid`` or ``user_name``: keys, sets, comparisons in a sum."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript):
            keys: list[ast.AST] = [node.slice]
        elif isinstance(node, (ast.SetComp, ast.ListComp, ast.GeneratorExp)):
            keys = [node.elt]
        elif isinstance(node, ast.DictComp):
            keys = [node.key]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEYED:
            keys = [*node.args[:1]]
        else:
            keys = []
        if any(map(_is_user, keys)):
            yield ast.unparse(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in COUNTING:
            compared = (part for part in ast.walk(node) if isinstance(part, ast.Compare))
            yield from (ast.unparse(one) for one in compared if any(map(_is_user, [one.left, *one.comparators])))


def _is_user(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in {"uid", "user_name"}


@pytest.mark.parametrize(
    "source",
    [
        "ended.setdefault(self.ranks[key].uid, deque()).append(key)",
        "of_user = sum(watch.facts.uid == facts.uid for watch in watches)",
        "left[watch.facts.uid] -= 1",
        "held = Counter(place.uid for place in kept)",
        "users = {rank.uid for rank in ranks}",
        "share = {rank.user_name: 0 for rank in ranks}",
        "self._events.setdefault(event.user_name, deque()).append(event)",
    ],
)
def test_the_scan_finds_limits_that_count_by_uid(source: str) -> None:
    assert list(counted_by_user(source))


def test_no_limit_counts_by_bare_uid() -> None:
    found = {
        f"{path.name}: {expression}"
        for top in PRODUCT
        for path in (REPOSITORY / top).rglob("*.py")
        for expression in counted_by_user(path.read_text())
    }
    assert found == NO_LIMITS.keys()
