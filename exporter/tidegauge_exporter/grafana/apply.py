"""Putting dashboards into a Grafana: what is there, what has to change, and changing it.

``plan`` is pure. A second run finds nothing to change. What is not ours is never touched: a dashboard is ours if it has
our uid and our tag, and neither files nor ConfigMaps own it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Union

from tidegauge_exporter.grafana.annotations import TAG
from tidegauge_exporter.grafana.port import (
    DashboardModel,
    DataSource,
    Folder,
    GrafanaPort,
    GrafanaRefusedError,
    StoredDashboard,
    TakenError,
)
from tidegauge_exporter.notify.ports import RefusedError

FOLDER = Folder("tidegauge", "Tidegauge")
DATA_SOURCE_UID = "tidegauge-prometheus"
DATA_SOURCE_NAME = "Tidegauge Prometheus"
DATA_SOURCE_VARIABLE = "datasource"
"""The dashboards' variable that says which Prometheus they ask."""
GIVEN_BY_GRAFANA = frozenset({"id", "version"})
"""Keys of a dashboard that are different after every save."""
MAX_DIFFERENCES = 3


class Change(Enum):
    """What becomes of one thing."""

    CREATE = "create"
    UPDATE = "update"
    NONE = "unchanged"
    REFUSED = "refused"
    """It is somebody else's, or comes from a file: a person has to do something."""


@dataclass(frozen=True)
class DashboardSave:
    model: DashboardModel
    folder_uid: str
    overwrite: bool


@dataclass(frozen=True)
class ApplyStep:
    """One line of the plan, with what is to be sent."""

    what: str
    """``folder``, ``data source``, ``dashboard``."""
    uid: str
    change: Change
    why: str = ""
    value: Union[Folder, DataSource, DashboardSave, None] = None


@dataclass(frozen=True)
class Wanted:
    dashboards: tuple[DashboardModel, ...]
    prometheus_url: str | None = None
    """Where Grafana's server reaches Prometheus: a data source of ours is made for it."""
    data_source: str | None = None
    """Uid or name of a data source that is there already; then none is made."""


@dataclass(frozen=True)
class FoundInGrafana:
    """What Grafana has of it. A missing key is a thing that is not there."""

    folder: Folder | None = None
    data_source: DataSource | None = None
    dashboards: Mapping[str, StoredDashboard] = field(default_factory=dict)


def look(port: GrafanaPort, wanted: Wanted) -> FoundInGrafana:
    """Raises ``RetryLaterError``, and ``RefusedError``, also for a ``Wanted.data_source`` that is not there."""
    source = None
    if wanted.data_source is not None:
        source = _existing_source(port, wanted.data_source)
    elif wanted.prometheus_url is not None:
        source = port.data_source(DATA_SOURCE_UID)
    uids = [str(model["uid"]) for model in wanted.dashboards]
    stored = {uid: one for uid in uids if (one := port.dashboard(uid)) is not None}
    return FoundInGrafana(port.folder(FOLDER.uid), source, stored)


def plan(wanted: Wanted, found: FoundInGrafana) -> tuple[ApplyStep, ...]:
    """What there is to do, in the order in which it has to be done."""
    source = _plan_source(wanted, found.data_source)
    selected = source.value if isinstance(source.value, DataSource) else found.data_source
    dashboards = [_plan_dashboard(model, found, selected) for model in wanted.dashboards]
    if found.folder is None:
        folder = ApplyStep("folder", FOLDER.uid, Change.CREATE, value=FOLDER)
    else:
        folder = ApplyStep("folder", FOLDER.uid, Change.NONE)
    return (folder, source, *dashboards)


def carry_out(port: GrafanaPort, steps: tuple[ApplyStep, ...], *, message: str) -> Iterator[ApplyStep]:
    """Each step once it is done. A dashboard whose name was taken is refused and the others go on.

    Raises ``RetryLaterError`` and ``RefusedError``: run it again once that is mended."""
    for step in steps:
        value, done = step.value, step
        if isinstance(value, Folder):
            port.create_folder(value)
        elif isinstance(value, DataSource):
            if step.change is Change.CREATE:
                port.create_data_source(value)
            else:
                port.move_data_source(value.uid, url=value.url)
        elif isinstance(value, DashboardSave):
            try:
                port.save_dashboard(
                    value.model, folder_uid=value.folder_uid, overwrite=value.overwrite, message=message
                )
            except TakenError as error:
                done = replace(step, change=Change.REFUSED, why=str(error))
        yield done


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Where two JSON values differ: ``panels[3].title``."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        keys = [*ours, *(key for key in theirs if key not in ours)]
        inner = [(ours.get(key), theirs.get(key), f"{path}.{key}" if path else str(key)) for key in keys]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        inner = [(one, other, f"{path}[{place}]") for place, (one, other) in enumerate(zip(ours, theirs))]
    else:
        return [] if ours == theirs else [path]
    return [where for one, other, below in inner for where in differences(one, other, below)]


def _existing_source(port: GrafanaPort, uid_or_name: str) -> DataSource:
    try:
        source = port.data_source(uid_or_name) or port.data_source_named(uid_or_name)
    except GrafanaRefusedError as error:
        if error.status != 403:
            raise
        # Editors may use data sources and not look at them: it is taken by its word.
        return DataSource(uid_or_name, uid_or_name, url="")
    if source is None:
        raise RefusedError(f"{port.url} has no data source with the uid or name {uid_or_name!r}: "
                           f"{port.url}/connections/datasources lists those that there are")  # fmt: skip
    if source.type != "prometheus":
        raise RefusedError(f"the data source {uid_or_name!r} is of the type {source.type}; the dashboards need one of "
                           "the type prometheus")  # fmt: skip
    return source


def _plan_source(wanted: Wanted, found: DataSource | None) -> ApplyStep:
    if wanted.data_source is not None:
        assert found is not None, "it was looked for"
        return ApplyStep("data source", found.uid, Change.NONE, "an existing one, as was asked for")
    if wanted.prometheus_url is None:
        return ApplyStep(
            "data source", "-", Change.NONE, "none was named: the dashboards use Grafana's default Prometheus"
        )
    ours = DataSource(DATA_SOURCE_UID, DATA_SOURCE_NAME, wanted.prometheus_url)
    if found is None:
        return ApplyStep("data source", ours.uid, Change.CREATE, ours.url, ours)
    if found.url.rstrip("/") == ours.url.rstrip("/"):
        return ApplyStep("data source", ours.uid, Change.NONE, found.url)
    if found.read_only:
        return ApplyStep("data source", ours.uid, Change.REFUSED,
                    f"it comes from a file, which says {found.url}: change it there")  # fmt: skip
    return ApplyStep("data source", ours.uid, Change.UPDATE, f"from {found.url} to {ours.url}",
                replace(found, url=ours.url))  # fmt: skip


def _plan_dashboard(model: DashboardModel, found: FoundInGrafana, source: DataSource | None) -> ApplyStep:
    uid = str(model["uid"])
    stored = found.dashboards.get(uid)
    if stored is None:
        return ApplyStep("dashboard", uid, Change.CREATE,
                    value=DashboardSave(_asking(model, _selection(source)), FOLDER.uid, overwrite=False))  # fmt: skip
    if TAG not in (stored.model.get("tags") or ()):
        title = stored.model.get("title")
        return ApplyStep("dashboard", uid, Change.REFUSED,
                    f"{title!r} has this uid and is not ours (no tag {TAG!r}): give it another uid, or delete it"
                    )  # fmt: skip
    # Without a data source named here, the one that an earlier run or a person has chosen stays.
    selection = _selection(source) or (_variable(stored.model) or {}).get("current")
    ours = _asking(model, selection)
    differ = differences(_comparable(ours), _comparable(stored.model))
    if not differ:
        return ApplyStep("dashboard", uid, Change.NONE)
    more = f" and {len(differ) - MAX_DIFFERENCES} more" if len(differ) > MAX_DIFFERENCES else ""
    where = f"differs in {', '.join(differ[:MAX_DIFFERENCES])}{more}"
    if stored.provisioned:
        return ApplyStep("dashboard", uid, Change.REFUSED, f"{where}, and comes from a file: change that file")
    # It stays in the folder that somebody has moved it to.
    return ApplyStep("dashboard", uid, Change.UPDATE, where, DashboardSave(ours, stored.folder_uid, overwrite=True))


def _asking(model: DashboardModel, selection: Mapping[str, Any] | None) -> DashboardModel:
    """The dashboard with this choice of its data source variable; ``None``: as it is."""
    if selection is None or _variable(model) is None:
        return model
    templating = model["templating"]
    variables = [
        {**one, "current": dict(selection)} if one.get("name") == DATA_SOURCE_VARIABLE else one
        for one in templating["list"]
    ]
    return {**model, "templating": {**templating, "list": variables}}


def _variable(model: DashboardModel) -> Mapping[str, Any] | None:
    variables = (model.get("templating") or {}).get("list") or ()
    return next((one for one in variables if one.get("name") == DATA_SOURCE_VARIABLE), None)


def _selection(source: DataSource | None) -> Mapping[str, Any] | None:
    return None if source is None else {"selected": False, "text": source.name, "value": source.uid}


def _comparable(model: DashboardModel) -> Any:
    """As it looks after a way through JSON, without what Grafana changes at every save."""
    return json.loads(json.dumps({key: value for key, value in model.items() if key not in GIVEN_BY_GRAFANA}))
