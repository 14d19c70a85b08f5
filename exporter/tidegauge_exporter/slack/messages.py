"""Everything that is said on Slack, as messages: one function an occasion. Pure; nothing here knows how it is sent."""

from __future__ import annotations

from tidegauge_exporter.slack.incident_messages import action_reply, change_reply, incident_message
from tidegauge_exporter.slack.ops_messages import alert_message, storm_message
from tidegauge_exporter.slack.owner_messages import owner_evidence, owner_followup, owner_message

__all__ = [
    "action_reply",
    "alert_message",
    "change_reply",
    "incident_message",
    "owner_evidence",
    "owner_followup",
    "owner_message",
    "storm_message",
]
