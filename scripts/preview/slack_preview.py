"""Draw what Tidegauge says on Slack: messages and plots of made-up incidents as a page that looks like Slack, and its
pictures in docs/img by Chromium. Run it from the repository's root:

    PYTHONPATH=tests .venv/bin/python scripts/preview/slack_preview.py docs/img

Debian's fonts-noto-color-emoji has the signs; without it they are empty boxes.
"""

from __future__ import annotations

import argparse
import base64
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from sample_views import NOW_S
from slack_stories import bad_night, closed, explained, leak, notify_decision
from tidegauge.core.incidents import ChangeKind, IncidentChange
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Alert, AlertGroup
from tidegauge_exporter.notify.ports import Message
from tidegauge_exporter.slack.messages import (
    action_reply,
    alert_message,
    change_reply,
    incident_message,
    owner_evidence,
    owner_followup,
    owner_message,
    storm_message,
)
from tidegauge_exporter.slack.plot import forecast_png

LINKS = Links("https://grafana.example", "https://tidegauge.example")

STYLE = """
body { margin: 0; font: 15px/1.46 "Lato", "Liberation Sans", "DejaVu Sans", "Noto Color Emoji", sans-serif; }
.dark { background: #1a1d21; color: #d1d2d3; --faint: #ababad; --line: #35373b; --code: #e8912d; --codebg: #232529;
  --link: #1d9bd1; }
.light { background: #fff; color: #1d1c1d; --faint: #616061; --line: #ddd; --code: #c01343; --codebg: #f6f6f6;
  --link: #1264a3; }
main { width: 640px; padding: 14px 18px; }
.bar { font-weight: 900; font-size: 17px; border-bottom: 1px solid var(--line); padding-bottom: 8px; }
article { display: flex; gap: 10px; padding: 6px 0; }
.reply { margin-left: 46px; }
.face { flex: 0 0 36px; height: 36px; border-radius: 6px; background: #0b7285; color: #fff; text-align: center;
  font: 900 20px/36px sans-serif; }
.who { font-weight: 900; } .app { font-size: 10px; background: var(--line); border-radius: 2px; padding: 1px 3px; }
.when { font-size: 12px; color: var(--faint); margin-left: 4px; }
.body { min-width: 0; flex: 1; } .block { margin: 4px 0 8px; white-space: pre-line; overflow-wrap: anywhere; }
h1 { font-size: 18px; line-height: 1.33; margin: 4px 0; }
.fields { display: grid; grid-template-columns: 1fr 1fr; gap: 8px 16px; }
.context { font-size: 13px; color: var(--faint); }
code { font: 12px "DejaVu Sans Mono", monospace; color: var(--code); background: var(--codebg); padding: 2px 3px;
  border: 1px solid var(--line); border-radius: 3px; }
a { color: var(--link); text-decoration: none; } img { max-width: 100%; border-radius: 6px; }
"""


class Shown(NamedTuple):
    """One message on the page."""

    message: Message
    is_reply: bool = False
    png: bytes | None = None


def page(title: str, shown: Sequence[Shown], *, theme: str) -> str:
    """A conversation as a page of its own."""
    articles = "\n".join(map(_article, shown))
    return (
        f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style><body class="{theme}"><main>'
        f'<div class="bar">{escape(title)}</div>{articles}</main></body>'
    )


def _article(one: Shown) -> str:
    blocks = "".join(map(_block, one.message.blocks))
    image = "" if one.png is None else f'<img src="data:image/png;base64,{base64.b64encode(one.png).decode()}">'
    return (
        f'<article class="{"reply" if one.is_reply else ""}"><div class="face">T</div><div class="body">'
        f'<span class="who">Tidegauge</span> <span class="app">APP</span><span class="when">{_clock(NOW_S)}</span>'
        f"{blocks}{image}</div></article>"
    )


def _block(block: Mapping[str, Any]) -> str:
    kind = block["type"]
    if kind == "header":
        return f"<h1>{_text(block['text'])}</h1>"
    if kind == "rich_text":
        parts = block["elements"][0]["elements"]
        return f'<div class="block">{"".join(map(_rich, parts))}</div>'
    if kind == "context":
        return f'<div class="block context">{_text(block["elements"][0])}</div>'
    if "fields" in block:
        fields = "".join(f"<div>{_text(field)}</div>" for field in block["fields"])
        return f'<div class="block fields">{fields}</div>'
    return f'<div class="block">{_text(block["text"])}</div>'


def _rich(part: Mapping[str, Any]) -> str:
    words = escape(part["text"]).replace(" ", "&nbsp;")
    return f'<a href="{escape(part["url"])}"><b>{words}</b></a>' if part["type"] == "link" else words


def _text(value: Mapping[str, Any]) -> str:
    """``mrkdwn`` as far as Tidegauge writes it; entities are decoded as Slack does."""
    if value["type"] == "plain_text":
        return escape(value["text"])
    text = re.sub(r"<!date\^(\d+)\^[^|]*\|[^>]*>", lambda found: _clock(float(found[1])), value["text"])
    text = re.sub(r"`([^`]*)`", r"<code>\1</code>", text)
    return re.sub(r"\*([^*\n]+)\*", r"<b>\1</b>", text)


def _clock(at_unix_s: float) -> str:
    """As a reader in Berlin sees it."""
    return f"{datetime.fromtimestamp(at_unix_s + 3600, timezone.utc):%H:%M}"


def incident_page() -> list[Shown]:
    """A thread in the channel of those who run the cluster."""
    story = explained()
    escalated = IncidentChange(ChangeKind.ESCALATED, NOW_S - 300.0, story.incident)
    return [
        Shown(incident_message(story, cluster="prod", links=LINKS, now_unix_s=NOW_S)),
        Shown(Message(""), is_reply=True, png=forecast_png(story, now_unix_s=NOW_S)),
        Shown(action_reply(story.decisions[0]), is_reply=True),
        Shown(change_reply(story.history[-1]), is_reply=True),
        Shown(change_reply(escalated), is_reply=True),
        Shown(action_reply(story.decisions[1]), is_reply=True),
    ]


def owner_page() -> list[Shown]:
    """What the owner gets."""
    story = leak()
    message = owner_message(notify_decision(story), story, cluster="prod", links=LINKS, now_unix_s=NOW_S)
    return [
        Shown(message),
        Shown(Message(""), is_reply=True, png=forecast_png(story, now_unix_s=NOW_S)),
        Shown(owner_evidence(explained()), is_reply=True),
        *(Shown(owner_followup(record), is_reply=True) for record in closed().decisions[1:]),
    ]


def channel_page() -> list[Shown]:
    """The rest of what the channel may see: the end of an incident, alerts, a bad night."""
    alerts = tuple(
        Alert(
            number < 3,
            {"alertname": "TidegaugeAgentDown", "severity": "critical", "hostname": f"gpu-a-{number:03}"},
            {"summary": f"No agent answers on gpu-a-{number:03}: its GPUs are not watched"},
            str(number),
            "2027-01-15T08:00:00Z",
        )
        for number in range(4)
    )
    group = AlertGroup("key", True, alerts, {"alertname": "TidegaugeAgentDown"}, "https://alertmanager.example")
    return [
        Shown(incident_message(closed(), cluster="prod", links=LINKS, now_unix_s=NOW_S + 60.0)),
        Shown(alert_message(group, links=LINKS)),
        Shown(storm_message(bad_night(37), cluster="prod", links=LINKS, now_unix_s=NOW_S)),
    ]


def shoot(html: str, png: Path, *, height: int, chromium: str) -> None:
    """The page as a picture."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(html, encoding="utf-8")
        command = [chromium, "--headless", "--no-sandbox", "--hide-scrollbars", f"--screenshot={png.resolve()}"]
        command += [f"--window-size=676,{height}", "--force-device-scale-factor=1.5", source.as_uri()]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--theme", choices=("dark", "light"), default="light")
    parser.add_argument("--all", action="store_true", help="also what is not in the documentation")
    asked = parser.parse_args()
    pages = [
        ("slack-incident", "# gpu-memory", incident_page(), 1445),
        ("slack-owner", "Tidegauge", owner_page(), 1215),
    ]
    if asked.all:
        pages.append(("slack-channel", "# gpu-memory", channel_page(), 1200))
    for name, title, shown, height in pages:
        html = page(title, shown, theme=asked.theme)
        shoot(html, asked.folder / f"{name}.png", height=height, chromium=asked.chromium)


if __name__ == "__main__":
    main()
