"""The forecast plot as a PNG, and as a reply in a thread."""

from __future__ import annotations

import logging

from tidegauge.core.incidents.wording import incident_sentence, name_job
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.ports import Chat, PlotDrawer, Posted

log = logging.getLogger(__name__)


def drawn_plot(draw: PlotDrawer, story: Story, *, now_unix_s: float) -> bytes | None:
    """A PNG, if there is anything to draw and it can be drawn. Never raises."""
    try:
        return draw(story, now_unix_s=now_unix_s)
    except Exception:  # the message is worth more than its picture
        log.exception("the plot of incident %d could not be drawn", story.incident.number)
        return None


def upload_plot(chat: Chat, draw: PlotDrawer, story: Story, *, thread: Posted, now_unix_s: float) -> bool:
    """Draw and upload the plot. False: there is nothing to draw. Raises ``RetryLaterError`` and ``RefusedError``."""
    incident = story.incident
    png = drawn_plot(draw, story, now_unix_s=now_unix_s)
    if png is None:
        return False
    title = f"Memory of rank {incident.findings[0].rank} of {name_job(incident.called)}"
    chat.upload(png, title=title, alt_text=incident_sentence(incident), thread=thread)
    return True
