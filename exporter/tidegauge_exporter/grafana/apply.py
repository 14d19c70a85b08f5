"""The import of dashboards into a Grafana: a look at what exists, a plan of changes, and the changes.

A second run finds nothing to change. Tidegauge changes only its own dashboards: they have its uid and its tag, and
neither a file nor a ConfigMap owns them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Union

from tidegauge_exporter.grafana.annotations import TAG
from tidegauge_exporter.grafana.values import (
    DashboardModel,
    DataSource,
    Folder,
    GrafanaRefusedError,
    StoredDashboard,
    TakenError,
)
from tidegauge_exporter.notify.ports import RefusedError

if TYPE_CHECKING:
    from tidegauge_exporter.grafana.client import GrafanaClient

FOLDER = Folder("tidegauge", "Tidegauge")
DATA_SOURCE_UID = "tidegauge-prometheus"
DATA_SOURCE_NAME = "Tidegauge Prometheus"
DATA_SOURCE_VARIABLE = "datasource"
"""The dashboards' variable that says which Prometheus they ask."""
GIVEN_BY_GRAFANA = frozenset({"id", "version"})
"""Keys of a dashboard that are different after every save."""
SCHEMA_VERSION = "schemaVersion"
"""The key that newer Grafanas raise when they save a dashboard."""
MAX_DIFFERENCES = 3
Selection = Mapping[str, Any]
"""The choice of a variable of a dashboard: ``text`` and ``value``."""


class Change(Enum):
    """The change of one folder, data source or dashboard."""

    CREATE = "create"
    UPDATE = "update"
    NONE = "unchanged"
    REFUSED = "refused"
    """It belongs to somebody else, or comes from a file: a person has to do something."""


@dataclass(frozen=True)
class DashboardSave:
    model: DashboardModel
    folder_uid: str
    overwrite: bool


@dataclass(frozen=True)
class ApplyStep:
    """A line of the plan, with the value to send."""

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
    """The address at which Grafana's server reaches Prometheus; a data source is made for it."""
    data_source: str | None = None
    """Uid or name of an existing data source; then none is made."""


@dataclass(frozen=True)
class FoundInGrafana:
    """The wanted things that exist in Grafana. A missing key is a thing that does not."""

    folder: Folder | None = None
    data_source: DataSource | None = None
    dashboards: Mapping[str, StoredDashboard] = field(default_factory=dict)


def look(grafana: GrafanaClient, wanted: Wanted) -> FoundInGrafana:
    """Raises ``RetryLaterError``, and ``RefusedError``, also for a server that is not Grafana and for a
    ``Wanted.data_source`` that is not there."""
    grafana.check_health()
    source = None
    if wanted.data_source is not None:
        source = _existing_source(grafana, wanted.data_source)
    elif wanted.prometheus_url is not None:
        source = grafana.data_source(DATA_SOURCE_UID)
    uids = [str(model["uid"]) for model in wanted.dashboards]
    stored = {uid: one for uid in uids if (one := grafana.dashboard(uid)) is not None}
    return FoundInGrafana(grafana.folder(FOLDER.uid), source, stored)


def plan(wanted: Wanted, found: FoundInGrafana) -> tuple[ApplyStep, ...]:
    """The steps in their order."""
    kept = _selections(found)
    source = _plan_source(wanted, found.data_source, kept)
    selected = source.value if isinstance(source.value, DataSource) else found.data_source
    # A new dashboard takes what all others have.
    selection = _selection(selected) or (kept[0] if len(kept) == 1 else None)
    dashboards = [_plan_dashboard(model, found, selected, selection) for model in wanted.dashboards]
    if found.folder is None:
        folder = ApplyStep("folder", FOLDER.uid, Change.CREATE, value=FOLDER)
    else:
        folder = ApplyStep("folder", FOLDER.uid, Change.NONE)
    return (folder, source, *dashboards)


def carry_out(grafana: GrafanaClient, steps: tuple[ApplyStep, ...], *, message: str) -> Iterator[ApplyStep]:
    """Each step once it is done. A dashboard whose name was taken is refused and the others go on.

    Raises ``RetryLaterError`` and ``RefusedError``: run it again once that is mended."""
    for step in steps:
        value, done = step.value, step
        if isinstance(value, Folder):
            grafana.create_folder(value)
        elif isinstance(value, DataSource):
            if step.change is Change.CREATE:
                grafana.create_data_source(value)
            else:
                grafana.move_data_source(value.uid, url=value.url)
        elif isinstance(value, DashboardSave):
            try:
                grafana.save_dashboard(
                    value.model, folder_uid=value.folder_uid, overwrite=value.overwrite, message=message
                )
            except TakenError as error:
                done = replace(step, change=Change.REFUSED, why=str(error))
        yield done


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """The paths at which two JSON values differ: ``panels[3].title``."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        keys = [*ours, *(key for key in theirs if key not in ours)]
        inner = [(ours.get(key), theirs.get(key), f"{path}.{key}" if path else str(key)) for key in keys]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        inner = [(one, other, f"{path}[{place}]") for place, (one, other) in enumerate(zip(ours, theirs))]
    else:
        return [] if ours == theirs else [path]
    return [where for one, other, below in inner for where in differences(one, other, below)]


def _existing_source(grafana: GrafanaClient, uid_or_name: str) -> DataSource:
    try:
        source = grafana.data_source(uid_or_name) or grafana.data_source_named(uid_or_name)
    except GrafanaRefusedError as error:
        if error.status != 403:
            raise
        # Editors may use data sources and not look at them: it is taken by its word.
        return DataSource(uid_or_name, uid_or_name, url="")
    if source is None:
        raise RefusedError(f"{grafana.url} has no data source with the uid or name {uid_or_name!r}: "
                           f"{grafana.url}/connections/datasources lists those that there are")  # fmt: skip
    if source.type != "prometheus":
        raise RefusedError(f"the data source {uid_or_name!r} is of the type {source.type}; the dashboards need one of "
                           "the type prometheus")  # fmt: skip
    return source


def _plan_source(wanted: Wanted, found: DataSource | None, kept: Sequence[Selection]) -> ApplyStep:
    if wanted.data_source is not None:
        assert found is not None, "it was looked for"
        return ApplyStep("data source", found.uid, Change.NONE, "an existing one, as was asked for")
    if wanted.prometheus_url is None:
        names = ", ".join(sorted(str(selection.get("text")) for selection in kept))
        used = f"keep {names}" if names else "use Grafana's default Prometheus"
        return ApplyStep("data source", "-", Change.NONE, f"none named: the dashboards {used}")
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


def _plan_dashboard(
    model: DashboardModel, found: FoundInGrafana, source: DataSource | None, of_new: Selection | None
) -> ApplyStep:
    uid = str(model["uid"])
    stored = found.dashboards.get(uid)
    if stored is None:
        return ApplyStep("dashboard", uid, Change.CREATE,
                    value=DashboardSave(_asking(model, of_new), FOLDER.uid, overwrite=False))  # fmt: skip
    if TAG not in (stored.model.get("tags") or ()):
        title = stored.model.get("title")
        return ApplyStep("dashboard", uid, Change.REFUSED,
                    f"{title!r} has this uid and is not ours (no tag {TAG!r}): give it another uid, or delete it"
                    )  # fmt: skip
    # Without a data source named here, the one that an earlier run or a person has chosen stays.
    selection = _selection(source) or (_variable(stored.model) or {}).get("current")
    ours = _asking(model, selection)
    compared, theirs = _comparable(ours), _comparable(stored.model)
    if theirs.get(SCHEMA_VERSION, 0) > compared.get(SCHEMA_VERSION, 0):
        theirs.pop(SCHEMA_VERSION)
        compared.pop(SCHEMA_VERSION, None)
    differ = differences(compared, theirs)
    if not differ:
        return ApplyStep("dashboard", uid, Change.NONE)
    more = f" and {len(differ) - MAX_DIFFERENCES} more" if len(differ) > MAX_DIFFERENCES else ""
    where = f"differs in {', '.join(differ[:MAX_DIFFERENCES])}{more}"
    if stored.provisioned:
        return ApplyStep("dashboard", uid, Change.REFUSED, f"{where}, and comes from a file: change that file")
    # It stays in the folder that somebody has moved it to.
    return ApplyStep("dashboard", uid, Change.UPDATE, where, DashboardSave(ours, stored.folder_uid, overwrite=True))


def _asking(model: DashboardModel, selection: Selection | None) -> DashboardModel:
    """The dashboard with this choice of its data source variable; ``None``: unchanged."""
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


def _selection(source: DataSource | None) -> Selection | None:
    return None if source is None else {"selected": False, "text": source.name, "value": source.uid}


def _selections(found: FoundInGrafana) -> list[Selection]:
    """The data sources that dashboards of ours in Grafana have chosen, each once."""
    ours = [stored.model for stored in found.dashboards.values() if TAG in (stored.model.get("tags") or ())]
    chosen = [(_variable(model) or {}).get("current") for model in ours]
    return list(
        {str(selection["value"]): selection for selection in chosen if selection and "value" in selection}.values()
    )


def _comparable(model: DashboardModel) -> dict[str, Any]:
    """The dashboard as JSON returns it, without the keys that Grafana changes at every save."""
    kept: dict[str, Any] = json.loads(
        json.dumps({key: value for key, value in model.items() if key not in GIVEN_BY_GRAFANA})
    )
    return kept
