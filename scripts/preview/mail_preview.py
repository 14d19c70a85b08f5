"""Draw the mail to an owner: that of a made-up incident, as a browser shows it, in docs/img by Chromium. Run it from
the repository's root:

    PYTHONPATH=tests .venv/bin/python scripts/preview/mail_preview.py docs/img
"""

from __future__ import annotations

import argparse
import base64
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from sample_views import NOW_S
from slack_stories import explained, notify_decision
from tidegauge_exporter.links import Links
from tidegauge_exporter.mail.html_parts import PLOT
from tidegauge_exporter.mail.mail_text import owner_letter
from tidegauge_exporter.slack.plot import forecast_png

LINKS = Links("https://grafana.example", "https://tidegauge.example")
NEXT = (
    "If the growth continues, Tidegauge will checkpoint this job, then requeue it: not before 08:10 UTC, and only once "
    "OOM may be 30 min or less away (it waits up to 10 min for the checkpoint)."
)


def mail_html() -> str:
    """The HTML of a mail, with its picture in it."""
    story = explained()
    story = replace(story, incident=replace(story.incident, scheduler="slurm"))
    png = forecast_png(story, now_unix_s=NOW_S)
    assert png is not None, "a leak has a plot"
    said = owner_letter(
        notify_decision(story, NEXT), story, cluster="prod", links=LINKS, now_unix_s=NOW_S, has_plot=True
    )
    return said.html.replace(f"cid:{PLOT}", f"data:image/png;base64,{base64.b64encode(png).decode()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chromium", default="chromium")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "mail.html"
        page.write_text(mail_html(), encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=712,990"]
        shot = f"--screenshot={(asked.folder / 'mail-owner.png').resolve()}"
        subprocess.run([asked.chromium, *options, shot, page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
