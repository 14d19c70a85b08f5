"""``tidegauge notify`` sends a test message to Slack, and tries the way by which clicks on buttons come."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tidegauge.cli.config import add_settings_arguments, load_settings
from tidegauge.cli.errors import BAD_NEWS, FINE, UsageError, need

if TYPE_CHECKING:
    from tidegauge.settings import Settings
    from tidegauge_exporter.notify.ports import Chat, Message
    from tidegauge_exporter.slack.client import SlackChat

HELP = "send a test message to Slack: to the channel, and with --user also to a user"

WORDS = "This is a test message from Tidegauge on cluster {cluster}. Nothing has happened."


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_settings_arguments(parser)
    parser.add_argument("--user", metavar="NAME", help="user of the cluster to send a direct message to")


def run(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    from tidegauge.cluster.incident_loops.notifying import SLACK_APP_TOKEN
    from tidegauge_exporter.notify.ports import Message

    if settings.slack_channel is None and args.user is None:
        raise UsageError("no recipient: set slack_channel, or name a user with --user")
    chat, message = _chat(settings), Message(WORDS.format(cluster=settings.cluster))
    told: list[bool] = []
    if settings.slack_channel is not None:
        channel = settings.slack_channel
        told.append(_say(f"channel {channel}", lambda: channel, chat, message))
    if args.user is not None:
        told.append(_say(f"user {args.user}", lambda: chat.direct(args.user), chat, message))
    app_token = _secret(settings.slack_app_token_file, SLACK_APP_TOKEN)
    if app_token is not None:
        told.append(_try_buttons(chat, app_token))
    return FINE if all(told) else BAD_NEWS


def _try_buttons(chat: SlackChat, app_token: str) -> bool:
    """Whether Slack accepts the app-level token; opens no connection, which would take clicks from the notifier."""
    from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError
    from tidegauge_exporter.slack.clicks import LABELS

    try:
        chat.socket_url(app_token)
        chat.team()
    except (RefusedError, RetryLaterError) as error:
        print(f"buttons: {error}")
        return False
    print(f"buttons: Slack accepts the app-level token; owners get {', '.join(LABELS.values())}")
    return True


def _say(whom: str, find: Callable[[], str | None], chat: Chat, message: Message) -> bool:
    from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

    try:
        where = find()
        if where is None:
            print(f"{whom}: no Slack account known for this user; see slack_users_file and slack_email_domain")
            return False
        chat.post(where, message)
    except (RefusedError, RetryLaterError) as error:
        print(f"{whom}: {error}")
        return False
    print(f"{whom}: message sent")
    return True


def _secret(path: Path | None, name: str) -> str | None:
    from tidegauge.secrets import SecretError, read_secret

    try:
        return read_secret(path, os.environ, name)
    except SecretError as error:
        raise UsageError(str(error)) from error


def _chat(settings: Settings) -> SlackChat:
    need("slack_sdk", extra="slack", what="talking to Slack")
    from tidegauge.cluster.incident_loops.notifying import SLACK_TOKEN
    from tidegauge_exporter.slack.client import SlackChat
    from tidegauge_exporter.slack.people import People

    token = _secret(settings.slack_token_file, SLACK_TOKEN)
    if token is None:
        raise UsageError(f"no Slack token: set slack_token_file, or {SLACK_TOKEN} in the environment (docs/slack.md)")
    try:
        people = People(settings.slack_users_file, settings.slack_email_domain)
        return SlackChat(token, api_url=settings.slack_api_url, people=people)
    except ValueError as error:
        raise UsageError(str(error)) from error
