"""The disruption controller: how many pods of a PodDisruptionBudget may go."""

from __future__ import annotations

from kube_emulator.api import Api
from kube_emulator.deletion import budget_status
from kube_emulator.resources import BUDGETS
from kube_emulator.store import key_of


def sync_budgets(api: Api) -> None:
    """Raises ``StaleError``."""
    for budget in api.store.of_kind(BUDGETS.group, BUDGETS.plural):
        metadata = budget["metadata"]
        key = key_of(BUDGETS, metadata["namespace"], metadata["name"])
        api.store.update(
            key, budget, {**budget, "status": {**(budget.get("status") or {}), **budget_status(api.store, budget)}}
        )
