"""The official client behind ``kubernetes.ports``: requests, watches, leader election. Nothing else imports it."""

from tidegauge_scheduler_hooks.kubernetes.client.api import ClientApi, open_api
from tidegauge_scheduler_hooks.kubernetes.client.leases import Leader, lease_age_s
from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientWatches

__all__ = ["ClientApi", "ClientWatches", "Leader", "lease_age_s", "open_api"]
