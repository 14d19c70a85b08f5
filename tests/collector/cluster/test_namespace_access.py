"""Every page for users of Kubernetes: the jobs of namespaces that they may read there, and their own by annotation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from login_world import FakeAccess, FakeReviewer, FakeTime
from page_site import NAMES, NUMBERS, Site, job_of, pages, running_site
from tidegauge.cluster.api.route_access import ROUTE_ACCESS, Access
from tidegauge.core.jobs.kubernetes import NamespaceScope
from tidegauge.http.credentials import BesideFiles
from tidegauge.http.namespace_rights import CHANGE, READ, READ_ALL, READ_METRICS, AccessReviews, AccessRight
from tidegauge.http.token_reviews import ReviewedUser, TokenReviews
from waiting import PATIENCE_S

NAMESPACES = {"ada": "team-a", "bob": "team-b"}
VIEWER_A, EDITOR_A, EVERYWHERE, NOWHERE = "view.a.x", "edit.a.x", "every.where.x", "no.where.x"
NAMESAKE, OWNER_B, PROMETHEUS = "name.sake.x", "own.er.x", "prom.e.x"
USERS = {
    VIEWER_A: "system:serviceaccount:team-a:view", EDITOR_A: "edda", EVERYWHERE: "eve", NOWHERE: "nora",
    NAMESAKE: "team-b", OWNER_B: "olga@site.org", PROMETHEUS: "system:serviceaccount:mon:prometheus",
}  # fmt: skip
RIGHTS = {
    USERS[VIEWER_A]: {AccessRight(READ, "team-a")},
    USERS[EDITOR_A]: {AccessRight(READ, "team-a"), AccessRight(CHANGE, "team-a")},
    USERS[EVERYWHERE]: {READ_ALL},
    USERS[PROMETHEUS]: {READ_METRICS},
}
OWN = [name for name in pages("ada") if ROUTE_ACCESS[name.split()[0]] is Access.OWN]
ONE = [name for name in OWN if pages("ada")[name].about_one]


@pytest.fixture(scope="module")
def access() -> FakeAccess:
    return FakeAccess(RIGHTS)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, access: FakeAccess) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site"), beside(access), namespaces=NAMESPACES) as site:
        yield site


def beside(access: FakeAccess) -> BesideFiles:
    reviewer = FakeReviewer({token: ReviewedUser(name, frozenset()) for token, name in USERS.items()})
    return BesideFiles(
        kubernetes=TokenReviews(reviewer), access=AccessReviews(access, within_s=PATIENCE_S, monotonic_s=FakeTime())
    )


def path_of(whose: str, name: str) -> str:
    return pages(whose, NAMESPACES[whose])[name].path


@pytest.mark.parametrize("token", [VIEWER_A, EDITOR_A, EVERYWHERE])
@pytest.mark.parametrize("name", ONE)
def test_whoever_may_read_the_jobs_of_a_namespace_sees_all_of_its_pages(site: Site, name: str, token: str) -> None:
    status, told = site.ask(path_of("ada", name), token)
    assert status == 200, told


@pytest.mark.parametrize("token", [VIEWER_A, NOWHERE, NAMESAKE])
@pytest.mark.parametrize("name", OWN)
def test_no_page_tells_anything_of_a_namespace_that_one_may_not_read(site: Site, name: str, token: str) -> None:
    """Also to a user who is called like it, which owns its jobs where nobody else does."""
    assert "bob" not in site.ask(path_of("ada", name), token)[1]
    _, told = site.ask(path_of("bob", name), token)
    for echo in ("bobs-job", "bob"):  # some answers repeat what was asked for
        told = told.replace(f"'team-b/{echo}'", "").replace(f'"job_id":"team-b/{echo}"', "")
    assert "bob" not in told


@pytest.mark.parametrize("name", ONE)
def test_a_job_of_another_namespace_is_told_like_one_that_does_not_exist(
    site: Site, access: FakeAccess, name: str
) -> None:
    """And with as many questions, at the API server too: else the time would tell."""
    site.ask("/api/v1/jobs", VIEWER_A)
    access.asked.clear()
    theirs = site.ask(path_of("bob", name), VIEWER_A)
    path = path_of("bob", name).replace("bobs-job", "nobodys-job").replace("bobs-model", "nobodys-model")
    nobodys = site.ask(path.replace("=2", "=999"), VIEWER_A)
    assert theirs[0] == nobodys[0] == 404
    assert theirs[1].replace("bobs-job", "nobodys-job").replace("incident 2", "incident 999") == nobodys[1]
    assert access.asked == []


def test_lists_hold_the_namespaces_that_one_may_read(site: Site) -> None:
    def jobs(token: str) -> list[str]:
        return sorted(job["job_id"] for job in json.loads(site.ask("/api/v1/jobs", token)[1])["jobs"])

    assert jobs(VIEWER_A) == ["team-a/adas-job"]
    assert jobs(EVERYWHERE) == ["team-a/adas-job", "team-b/bobs-job"]
    assert jobs(NOWHERE) == jobs(NAMESAKE) == []
    for page in ("incidents?all=1", "ended-jobs", "profiled-jobs", "usage", "decisions?since=0"):
        told = site.ask(f"/api/v1/{page}", VIEWER_A)[1]
        assert ("ada" in told, "bob" in told) == (True, False), page
    seen_as = json.loads(site.ask("/api/v1/jobs", VIEWER_A)[1])["seen_as"]
    assert seen_as == "system:serviceaccount:team-a:view (here with the jobs of 1 namespaces)"


def test_an_owner_by_annotation_sees_and_acts_without_a_right(tmp_path: Path) -> None:
    access = FakeAccess()
    with running_site(tmp_path, beside(access), namespaces=NAMESPACES, owners={"bob": USERS[OWNER_B]}) as site:
        assert site.ask(path_of("bob", "/api/v1/job"), OWNER_B)[0] == 200
        assert site.ask(path_of("ada", "/api/v1/job"), OWNER_B)[0] == 404
        sent = {"incident": str(NUMBERS["bob"]), "act": "acknowledge"}
        assert site.ask("/api/v1/acts", OWNER_B, sent)[0] == 200


FORMS = {
    "/api/v1/acts": {"act": "exempt", "hours": "4"}, "/act": {"act": "exempt", "hours": "4"},
    "/api/v1/grades": {"grade": "leak"}, "/grade": {"grade": "leak"},
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("token", "may"), [(VIEWER_A, False), (EVERYWHERE, False), (EDITOR_A, True), (NOWHERE, False)])
def test_acts_take_the_right_to_change_jobs_there(tmp_path: Path, form: str, token: str, may: bool) -> None:
    with running_site(tmp_path, beside(FakeAccess(RIGHTS)), namespaces=NAMESPACES) as site:
        number = NUMBERS["ada"]
        status, told = site.ask(form, token, {"incident": str(number), **FORMS[form]})
        done = [one.by for one in site.store.acts.of_incident(number) if one.by == USERS[token] and one.detail is None]
        answered = [(one.by, one.as_admin) for one in site.store.grades.answers(number)]
        assert bool(done or answered) is may
        assert status == (200 if may or (form == "/act" and token != NOWHERE) else 404 if token == NOWHERE else 403)
        if token in (VIEWER_A, EVERYWHERE):
            assert "`patch` on jobs.batch in namespace team-a" in told
        assert answered in ([], [(USERS[token], False)])


@pytest.mark.parametrize(("token", "status"), [(VIEWER_A, 403), (EDITOR_A, 200), (NOWHERE, 404)])
def test_profiles_are_asked_for_by_those_who_may_change_jobs_there(site: Site, token: str, status: int) -> None:
    fields = {key: str(value) for key, value in job_of("ada", "team-a")._asdict().items() if value != ""}
    code, told = site.ask("/api/v1/profiles", token, fields)
    assert code == status, told


@pytest.mark.parametrize(("token", "status"), [(PROMETHEUS, 200), (VIEWER_A, 403), (EVERYWHERE, 403)])
@pytest.mark.parametrize("path", ["/metrics", "/sd"])
def test_metrics_are_for_whoever_may_get_that_path(site: Site, path: str, token: str, status: int) -> None:
    assert site.ask(path, token)[0] == status


def test_nobody_without_a_name_gets_anything(site: Site) -> None:
    assert {site.ask(path_of("ada", name), None)[0] for name in OWN} == {401}


def test_while_nothing_is_known_a_page_says_so_and_shows_nothing(tmp_path: Path) -> None:
    access = FakeAccess(RIGHTS, is_away=True)
    with running_site(tmp_path, beside(access), namespaces=NAMESPACES) as site:
        for name in ("/api/v1/jobs", "/api/v1/job", "/api/v1/status"):
            status, told = site.ask(path_of("ada", name), VIEWER_A)
            assert (status, "cannot say just now what you may read" in told) == (503, True)


def test_names_of_files_see_what_they_saw(site: Site) -> None:
    for name in NAMES:
        assert site.ask(path_of("ada", "/api/v1/job"), name)[0] == (200 if name == "root" else 404)


def test_a_scope_is_by_owner_or_namespace_and_never_by_the_name_of_one() -> None:
    scope = NamespaceScope("team-b", frozenset({"team-a"}))
    assert scope.covers("carol", "team-a/train")
    assert scope.covers("team-b", "team-c/train")
    assert scope.covers("team-b", "4711")
    assert not scope.covers("team-b", "team-b/train")
    assert not scope.covers("team-a", "team-ab/train")
    assert not scope.covers("carol", "4711")
    assert not scope.covers(None, "team-a")
