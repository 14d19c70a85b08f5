"""Every page of the API, for a stranger, two users, Prometheus and an admin: over HTTP, with a real store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest

from evidence_values import evidence
from page_site import NAMES, NOW_S, NUMBERS, TOKENS, UIDS, Site, job_of, pages, ranks_of, running_site
from rank_profiles import rank_profile
from sample_views import job_record
from scheduler_values import incident
from tidegauge.cluster.api.act_api import FOR_OTHERS
from tidegauge.cluster.api.grade_api import GradePages
from tidegauge.cluster.api.http_api import HttpApi, Request, UnavailableError
from tidegauge.cluster.api.loop_reads import IncidentReads, JobReads
from tidegauge.cluster.api.route_access import ROUTE_ACCESS, Access, may_read, ownership
from tidegauge.cluster.store import Store, StoreError
from tidegauge.core.ids import JobId, JobKey
from tidegauge.core.incidents import ChangeKind, IncidentCause, IncidentChange
from tidegauge.core.incidents.acts import ActKind, ActOutcome, PersonAct
from tidegauge.core.incidents.grades import EXAMPLES, RULE, RULE_NOTE, Grade, GradedIncident
from tidegauge.core.incidents.wording import capitalised
from tidegauge.core.views import NodeSummary
from tidegauge.core.wire import from_wire
from tidegauge.http.access import EVERYBODY, Viewer
from tidegauge.http.door_start import open_door
from tidegauge.http.server import Response
from tidegauge.http.tokens import token_line
from tidegauge.settings import Settings


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Site]:
    """For a test that adds to it."""
    with running_site(tmp_path) as site:
        yield site


def access_of(name: str) -> Access:
    return ROUTE_ACCESS[name.split()[0]]


OWN = [name for name in pages("ada") if access_of(name) is Access.OWN]


def test_every_page_has_a_decision_and_every_decision_a_page_and_a_question_here(site: Site) -> None:
    assert set(site.service.routes()) == set(ROUTE_ACCESS)
    assert {name.split()[0] for name in pages("ada")} == set(ROUTE_ACCESS)


def test_a_page_without_a_decision_is_for_admins_alone(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("\n".join(token_line(name, TOKENS[name]) for name in NAMES))
    tokens.chmod(0o600)
    door = open_door(Settings(api_tokens_file=tokens, api_admins="root"), what="a test")
    api = HttpApi({"/new": lambda _: Response(b"new")}, host="127.0.0.1", port=0, door=door)
    api.start()
    try:
        site = Site(None, api, None)  # type: ignore[arg-type]  # only the API is asked
        assert [site.ask("/new", name)[0] for name in (None, "ada", "prometheus", "root")] == [401, 403, 403, 200]
    finally:
        api.stop()


@pytest.mark.parametrize("name", pages("ada"))
def test_a_stranger_gets_nothing_but_health_and_the_forms_to_log_in_and_out(site: Site, name: str) -> None:
    for page in (pages("ada")[name].path, "/no-such-page"):
        status, body = site.ask(page, None)
        if page == "/healthz":
            assert (status, body) == (200, "ok\n")
        elif page in ("/ui/site.css", "/ui/site.js"):
            assert status == 200
        elif page in ("/login", "/logout"):
            assert (status, "ada" in body, "bob" in body) == (200, False, False)
        else:
            assert status == 401
            assert json.loads(body).keys() == {"error"}, "not even which pages there are"


@pytest.mark.parametrize("name", pages("ada"))
def test_an_admin_gets_all(site: Site, name: str) -> None:
    if name not in site.service.routes() and " " not in name:
        pytest.skip("not served yet")
    assert site.ask(pages("bob")[name].path, "root")[0] == 200


@pytest.mark.parametrize("name", [name for name in pages("ada") if access_of(name) in (Access.METRICS, Access.ADMIN)])
def test_route_with_data_of_all_jobs_is_for_admins_and_metrics_readers_only(site: Site, name: str) -> None:
    path = pages("ada")[name].path
    status, body = site.ask(path, "ada")
    assert (status, "metrics_readers" in body, "bob" in body) == (403, True, False)
    assert site.ask(path, "prometheus")[0] == 200


@pytest.mark.parametrize("name", pages("ada"))
@pytest.mark.parametrize("viewer", ["ada", "prometheus"])
def test_no_page_tells_a_user_anything_of_anothers_job(site: Site, name: str, viewer: str) -> None:
    if access_of(name) is Access.METRICS and viewer == "prometheus":
        return  # it is what they are for
    assert "bob" not in site.ask(pages("ada")[name].path, viewer)[1]
    _, body = site.ask(pages("bob")[name].path, viewer)
    for echo in ("'bobs-job'", '"job_id":"bobs-job"'):  # some answers repeat what was asked for
        body = body.replace(echo, "", 1) if "bobs-job" in pages("bob")[name].path else body
    assert "bob" not in body


@pytest.mark.parametrize("name", [name for name in OWN if pages("ada")[name].about_one])
def test_anothers_job_looks_exactly_like_one_that_does_not_exist(site: Site, name: str) -> None:
    theirs = site.ask(pages("bob")[name].path, "ada")
    nobodys = site.ask(pages("bob")[name].path.replace("bobs-job", "nobodys-job").replace("=2", "=999"), "ada")
    assert theirs[0] == nobodys[0] == 404
    assert theirs[1].replace("bobs-job", "nobodys-job").replace("incident 2", "incident 999") == nobodys[1]


def test_a_refusal_takes_no_less_for_anothers_job_than_for_one_that_does_not_exist(site: Site) -> None:
    """Else its time would tell that there is one."""
    asked: list[str] = []

    def incidents() -> IncidentReads:
        asked.append("incidents")
        return site.store.incidents

    def records() -> JobReads:
        asked.append("records")
        return site.store.jobs

    owns = ownership(site.service.coordinator.jobs, incidents, records)
    ada = Viewer("ada", sees_all=False, reads_metrics=False)
    for key in (job_of("bob"), job_of("bob")._replace(job_id=JobId("nobodys-job"))):
        asked.clear()
        assert not owns(ada, key)
        assert asked == ["incidents", "records"]
    assert owns(ada, job_of("ada"))


@pytest.mark.parametrize("name", ["/api/v1/memory", "/api/v1/memory without uid", "/api/v1/evidence"])
def test_of_anothers_job_there_are_no_figures(site: Site, name: str) -> None:
    answer = json.loads(site.ask(pages("bob")[name].path, "ada")[1])
    assert [answer[key] for key in ("ranks", "evidence") if key in answer] == [[]]


@pytest.mark.parametrize("name", [name for name in OWN if name != "/api/v1/policy"])
def test_ones_own_job_is_told_in_full(site: Site, name: str) -> None:
    """As an admin has it, but for what is somebody else's."""
    path = pages("ada")[name].path
    status, body = site.ask(path, "ada")
    assert status == 200
    mine = {"/api/v1/memory": "points", "/api/v1/heat-map": "percent", "/api/v1/incident-marks": '"1"'}.get(
        name.split()[0], "ada"
    )
    assert mine in body
    if pages("ada")[name].about_one and name.startswith("/api"):
        assert {**json.loads(body), "now_unix_s": 0} == {**json.loads(site.ask(path, "root")[1]), "now_unix_s": 0}


def test_lists_hold_ones_own_alone_and_say_how_many_of_those_are_left_out(site: Site) -> None:
    def numbers(path: str, key: str, name: str) -> int:
        return len(json.loads(site.ask(path, name)[1])[key])

    for path, key in (("/api/v1/jobs", "jobs"), ("/api/v1/incidents", "incidents"), ("/api/v1/decisions", "decisions"),
                      ("/api/v1/incident-changes", "changes"), ("/api/v1/incident-marks", "marks"),
                      ("/api/v1/overview", "jobs"), ("/api/v1/ended-jobs", "jobs")):  # fmt: skip
        found = {name: numbers(path, key, name) for name in ("ada", "bob", "prometheus", "root")}
        assert found == {"ada": 1, "bob": 1, "prometheus": 0, "root": 2}, path
    assert json.loads(site.ask("/api/v1/decisions", "ada")[1])["left_out"] == 0


def test_events_of_nodes_are_everybodys_and_those_of_ranks_their_owners(site: Site) -> None:
    events = {name: json.loads(site.ask("/api/v1/events", name)[1])["events"] for name in ("ada", "root")}
    assert {one["user_name"] for one in events["root"]} == {None, "ada", "bob"}
    assert {one["user_name"] for one in events["ada"]} == {None, "ada"}


def test_the_clusters_figures_are_the_same_for_all(site: Site) -> None:
    overviews = [json.loads(site.ask("/api/v1/overview", name)[1]) for name in ("ada", "root")]
    assert overviews[0]["nodes"] == overviews[1]["nodes"]
    status = json.loads(site.ask("/api/v1/status", "ada")[1])
    assert (status["jobs_running"], len(status["nodes"])) == (2, 1)


def test_route_shows_actions_under_way_to_admins_only(site: Site) -> None:
    for path in ("/api/v1/policy", "/api/v1/overview"):
        told = [json.loads(site.ask(path, name)[1]) for name in ("ada", "root")]
        ways = [one.get("actions", one)["under_way"] for one in told]
        assert ways[0] == []
        assert len(ways[1]) == 1


def test_a_job_with_a_rank_of_anothers_is_nobodys_but_an_admins(own_site: Site) -> None:
    """Pods of two namespaces may run as one uid: then a claimed job id is not enough to see the job."""
    mixed = [
        replace(rank, user_name=name)
        for rank, name in zip(ranks_of("bob", job_of("bob"), "bob"), ("ada", "bob"), strict=True)
    ]
    own_site.service.coordinator.report(NodeSummary("other", "node8", 1, "i", "node8:9494", 1.0, tuple(
        replace(rank, identity=rank.identity._replace(job_id=JobId("mixed"))) for rank in mixed
    )))  # fmt: skip
    for name, seen in (("ada", False), ("bob", False), ("root", True)):
        assert ("mixed" in own_site.ask("/api/v1/jobs", name)[1]) is seen
        asked = urlencode({"job_id": "mixed", "attempt": 0, "uid": UIDS["bob"]})
        assert bool(json.loads(own_site.ask(f"/api/v1/memory?{asked}", name)[1])["ranks"]) is seen


def test_evidence_of_a_job_that_is_gone_is_its_owners_as_its_incident_says(own_site: Site) -> None:
    gone = JobKey("gone", 0, UIDS["bob"])
    asked = f"/api/v1/evidence?{urlencode(gone._asdict())}"
    own_site.store.evidence.keep([evidence(1, job=gone)], at_s=NOW_S)
    assert [len(json.loads(own_site.ask(asked, name)[1])["evidence"]) for name in ("ada", "bob", "root")] == [0, 0, 1]
    of_bob = incident(job=gone, number=3, user_name="bob")
    own_site.store.incidents.save([IncidentChange(ChangeKind.OPENED, NOW_S, of_bob)])
    assert [len(json.loads(own_site.ask(asked, name)[1])["evidence"]) for name in ("ada", "bob", "root")] == [0, 1, 1]


FORMS = ("/api/v1/grades", "/grade")
PROFILES = "/api/v1/profiles"
ACTS = ("/api/v1/acts", "/act")


def answers_of(site: Site, whose: str) -> list[tuple[str, str, bool]]:
    answers = site.store.grades.answers(NUMBERS[whose])
    return [(answer.by, answer.grade.value, answer.as_admin) for answer in answers]


def grade_of(whose: str, grade: str = "not_a_leak") -> dict[str, str]:
    return {"incident": str(NUMBERS[whose]), "grade": grade}


SESSIONS = ("/login", "/logout")
"""Asked in ``test_login_pages``: they are for people without a name."""


def test_every_form_is_asked_about_here(site: Site) -> None:
    assert set(site.service.forms()) == {*FORMS, *ACTS, PROFILES, *SESSIONS}


@pytest.mark.parametrize(
    ("name", "status"), [(None, 401), ("ada", 404), ("prometheus", 404), ("bob", 200), ("root", 200)]
)
def test_profiles_of_a_job_are_asked_for_by_its_owner_and_admins(own_site: Site, name: str | None, status: int) -> None:
    fields = {part: str(value) for part, value in job_of("bob")._asdict().items() if value != ""}
    found, body = own_site.ask(PROFILES, name, fields)
    assert found == status
    if status == 404:
        nobodys = own_site.ask(PROFILES, name, {**fields, "job_id": "nobodys-job"})
        assert nobodys == (found, body)


def test_profiles_of_a_job_that_ended_without_an_incident_are_its_owners(own_site: Site) -> None:
    ended = JobKey("ended", 0, UIDS["bob"])
    own_site.store.profiles.keep([rank_profile(1, job=ended)], at_s=NOW_S)
    own_site.store.jobs.save([job_record(job=ended, user_name="bob")])
    path = f"/api/v1/profile?{urlencode(ended._asdict())}&rank=1"
    assert {name: own_site.ask(path, name)[0] for name in ("ada", "bob", "root")} == {
        "ada": 404,
        "bob": 200,
        "root": 200,
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "status"), [(None, 401), ("ada", 404), ("prometheus", 404)])
def test_an_incident_is_not_graded_by_those_whose_it_is_not(
    own_site: Site, form: str, name: str | None, status: int
) -> None:
    found = own_site.ask(form, name, grade_of("bob"))
    assert found[0] == status
    assert (
        found[1].replace("incident 2", "incident 999")
        == own_site.ask(form, name, {**grade_of("bob"), "incident": "999"})[1]
    )
    assert answers_of(own_site, "bob") == []


@pytest.mark.parametrize("form", FORMS)
def test_its_owner_grades_an_incident_and_an_admins_word_counts_more(own_site: Site, form: str) -> None:
    assert own_site.ask(form, "bob", grade_of("bob"))[0] == 200
    assert own_site.ask(form, "root", grade_of("bob", "leak"))[0] == 200
    assert own_site.ask(form, "bob", {**grade_of("bob"), "comment": "a  replay\nbuffer"})[0] == 200
    assert answers_of(own_site, "bob") == [
        ("bob", "not_a_leak", False), ("root", "leak", True), ("bob", "not_a_leak", False),
    ]  # fmt: skip
    listed = json.loads(own_site.ask("/api/v1/grades", "bob")[1])
    assert (listed["seen_as"], listed["left_out"], [one["number"] for one in listed["incidents"]]) == ("bob", 0, [2])
    (incident,) = map(partial(from_wire, GradedIncident), listed["incidents"])
    assert incident.answer is not None
    assert (incident.answer.by, incident.answer.grade, incident.told) == ("root", Grade.LEAK, True)
    assert incident.answers[2].comment == "a replay buffer"
    story = json.loads(own_site.ask(pages("bob")["/api/v1/incident"].path, "bob")[1])
    assert [one["by"] for one in story["answers"]] == ["bob", "root", "bob"]


@pytest.mark.parametrize("form", ACTS)
@pytest.mark.parametrize(
    ("name", "status"), [(None, 401), ("ada", 404), ("prometheus", 404), ("bob", 200), ("root", 200)]
)
def test_acts_on_an_incident_are_its_owners_and_admins(
    own_site: Site, form: str, name: str | None, status: int
) -> None:
    fields = {"incident": str(NUMBERS["bob"]), "act": "exempt", "hours": "4"}
    assert own_site.ask(form, name, fields)[0] == status
    done = exempting(own_site)
    told = [(one.by, one.outcome is ActOutcome.DONE) for one in done]
    assert told == ([] if name is None else [(name, status == 200)])
    assert bool(own_site.store.acts.exemptions(now_s=NOW_S)) is (status == 200)
    for speaking_for_others in FOR_OTHERS:
        refused = own_site.ask(form, name, {**fields, speaking_for_others: "root"})[0]
        assert refused == (401 if name is None else 400)
    own_site.ask(f"{form}?incident=2&act=exempt", name)
    assert exempting(own_site) == done, "opening a page asks for nothing"


def exempting(site: Site) -> list[PersonAct]:
    return [one for one in site.store.acts.of_incident(NUMBERS["bob"]) if one.kind is ActKind.EXEMPT]


def test_opening_a_page_answers_nothing(own_site: Site) -> None:
    """Programs that look at the links of a message open them."""
    for path in ("/grade?incident=2&grade=leak", "/api/v1/grades?incident=2&grade=leak"):
        assert own_site.ask(path, "bob")[0] == 200
        assert own_site.ask(path, "bob", {})[0] == 400, "the query of a form says nothing"
    assert answers_of(own_site, "bob") == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"incident": "2"}, "grade is missing"),
        ({"incident": "x", "grade": "leak"}, "incident must be a whole number"),
        ({"incident": "2", "grade": "perhaps"}, "grade must be leak or not_a_leak, not 'perhaps'"),
        ({"incident": "2", "grade": "leak", "comment": "x" * 501}, "comment may have at most 500 characters"),
    ],
)
def test_an_answer_that_is_none_is_refused_in_words(site: Site, fields: dict[str, str], words: str) -> None:
    status, body = site.ask("/api/v1/grades", "bob", fields)
    assert (status, words in json.loads(body)["error"]) == (400, True)
    assert answers_of(site, "bob") == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"grade": "leak"}, "the form has grade twice"),
        ({"grade": "not_a_leak"}, "the form has grade twice"),
        ({"grade": ""}, "the form has grade twice"),
        ({"incident": "1"}, "the form has incident twice"),
        ({"comment": "a", "number": "2"}, "the form has an unknown field 'number'"),
        ({"number": ""}, "its fields are incident, grade and comment"),
    ],
)
def test_a_form_that_contradicts_itself_or_says_more_than_is_read_is_refused(
    own_site: Site, form: str, more: dict[str, str], words: str
) -> None:
    status, body = own_site.ask(form, "bob", [*grade_of("bob").items(), *more.items()])
    assert (status, words in json.loads(body)["error"]) == (400, True)
    assert answers_of(own_site, "bob") == []


def test_a_comment_that_is_left_empty_is_none(own_site: Site) -> None:
    """As a browser sends the page's form."""
    assert own_site.ask("/grade", "bob", {**grade_of("bob"), "comment": ""})[0] == 200
    assert [answer.comment for answer in own_site.store.grades.answers(2)] == [None]


def test_a_fact_is_not_graded(own_site: Site) -> None:
    error = incident(IncidentCause.OUT_OF_MEMORY, job=job_of("bob"), number=3, user_name="bob")
    own_site.store.incidents.save([IncidentChange(ChangeKind.OPENED, NOW_S, error)])
    status, body = own_site.ask("/api/v1/grades", "bob", {"incident": "3", "grade": "leak"})
    assert (status, "a fact, so it is not graded" in json.loads(body)["error"]) == (400, True)


def test_the_page_asks_with_two_buttons_and_shows_what_was_answered(own_site: Site) -> None:
    page = own_site.ask("/grade?incident=2", "bob")[1]
    assert page.count('<button name="grade" value="leak">') == page.count('value="not_a_leak">') == 1
    assert '<form method="post">' in page
    rule = (*map(capitalised, RULE.values()), RULE_NOTE, *(text for _, text in EXAMPLES))
    assert all(text in page for text in rule)
    assert "Answers so far" not in page
    told = own_site.ask("/grade", "bob", {**grade_of("bob"), "comment": "<b>buffer</b>"})[1]
    assert "Not a leak, says bob: &lt;b&gt;buffer&lt;/b&gt;" in told
    assert own_site.ask("/grade?incident=2", "bob")[1] == told


def test_the_page_tells_its_viewer_whether_their_answer_counts(own_site: Site) -> None:
    counts, overruled = "Your answer is recorded, and it counts.", "Your answer is recorded. It does not count:"
    assert counts in own_site.ask("/grade", "bob", grade_of("bob"))[1]
    page = own_site.ask("/grade", "root", grade_of("bob", "leak"))[1]
    assert (counts in page, overruled in page) == (True, False)
    for page in (own_site.ask("/grade?incident=2", "bob")[1], own_site.ask("/grade", "bob", grade_of("bob"))[1]):
        assert f"{overruled} root (admin) answered &quot;a leak&quot; on 2027-01-" in page
        assert counts not in page
    assert "Your answer" not in own_site.ask("/grade?incident=1", "root")[1]


def test_a_page_without_an_incident_says_where_its_number_is(own_site: Site) -> None:
    for status, page in (
        own_site.ask("/grade", "bob"), own_site.ask("/grade?incident=", "bob"),
        own_site.ask("/grade", "bob", {"grade": "leak"}),
    ):  # fmt: skip
        assert status == 400
        assert page.startswith("<!doctype html>")
        assert "Say whether it is a leak" in page
        assert "tidegauge policy grade" in page
        assert '<form method="get">' in page
    status, body = own_site.ask("/api/v1/grades", "bob", {"grade": "leak"})
    assert (status, json.loads(body)["error"]) == (
        400, "incident is missing: its number is in the notification, and `tidegauge policy grade` lists incidents "
        "without an answer"
    )  # fmt: skip
    assert answers_of(own_site, "bob") == []


def test_a_database_that_is_away_is_said_so_and_no_answer_is_taken_for_kept() -> None:
    def away() -> Store:
        raise StoreError("disk full")

    pages = GradePages(away, lambda: NOW_S, lambda _: "")
    asked = Request({"incident": "1", "grade": "leak"}, None, Viewer("ada", sees_all=False, reads_metrics=False))
    for route in (*pages.routes().values(), *pages.forms().values()):
        with pytest.raises(UnavailableError, match="is unavailable: disk full"):
            route(asked)


def test_without_authentication_everybody_may_read_everything() -> None:
    assert all(may_read(EVERYBODY, access) for access in Access)
    nobody = Viewer("x", sees_all=False, reads_metrics=False)
    assert [access for access in Access if may_read(nobody, access)] == [Access.OPEN, Access.SIGNED_IN, Access.OWN]
