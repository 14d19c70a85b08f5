"""The table of Slack's errors: those worth another try, and those that a person has to resolve."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError, retry_after_s

SOON_S: Final = 15.0
"""Wait after a failure of Slack."""
UNKNOWN_S: Final = 300.0
"""Wait after an unknown error, which may resolve itself."""

_RETRIED: Final = frozenset(
    {
        "accesslimited",
        "fatal_error",
        "internal_error",
        "rate_limited",
        "ratelimited",
        "request_timeout",
        "service_unavailable",
        "team_added_to_org",
    }
)
_TOKEN: Final = (
    "Slack rejects the token. Put the bot token of the installed app (xoxb-...) into slack_token_file or "
    "TIDEGAUGE_SLACK_TOKEN, and restart (docs/slack.md)"
)
_DEFECT: Final = "Slack rejects the format of this message: a Tidegauge bug, please report it"
_CHANNEL: Final = (
    "the Slack app does not see this channel: check the setting slack_channel, and invite the app there (/invite)"
)
_MENDED_BY: Final[Mapping[str, str]] = {
    "account_inactive": _TOKEN,
    "invalid_auth": _TOKEN,
    "not_authed": _TOKEN,
    "token_expired": _TOKEN,
    "token_revoked": _TOKEN,
    "not_allowed_token_type": _TOKEN,
    "access_denied": "Slack denies the app access: ask the workspace administrators",
    "ekm_access_denied": "Slack's admins have suspended access to messages: ask the workspace administrators",
    "org_login_required": "the workspace is being moved: the app has to be installed again",
    "team_access_not_granted": "the app is not installed in this workspace: install it there",
    "two_factor_setup_required": "the account of the app needs a second factor: ask the workspace administrators",
    "no_permission": "the app may not do this: install it again with the scopes of docs/slack.md",
    "channel_not_found": _CHANNEL,
    "not_in_channel": "the app is not in the channel: invite it there (/invite)",
    "is_archived": "the channel is archived: bring it back, or set slack_channel to another one",
    "restricted_action": "the workspace does not let the app post there: ask its administrators",
    "restricted_action_read_only_channel": "posting in this channel is restricted: ask the workspace administrators",
    "restricted_action_thread_only_channel": "only replies are allowed in this channel: set slack_channel to another",
    "invalid_arguments": _DEFECT,
    "invalid_blocks": _DEFECT,
    "invalid_blocks_format": _DEFECT,
    "msg_blocks_too_long": _DEFECT,
    "msg_too_long": _DEFECT,
    "no_text": _DEFECT,
    "cannot_reply_to_message": "the thread takes no replies",
    "thread_not_found": "the thread no longer exists",
    "restricted_action_thread_locked": "somebody has locked the thread",
    "restricted_action_non_threadable_channel": "the channel takes no replies: set slack_channel to another one",
    "messages_tab_disabled": "the app takes no direct messages: switch its Messages tab on, under App Home",
    "message_limit_exceeded": "the workspace reached its message limit: ask its administrators",
    "storage_limit_reached": "the workspace is out of file storage: ask its administrators",
    "file_uploads_disabled": "file uploads are disabled in the workspace: ask its administrators",
}
UNCHANGEABLE: Final = frozenset({"message_not_found", "edit_window_closed", "cant_update_message", "is_inactive"})
"""Errors about a message that was deleted, or that the workspace's rules or its author protect."""
UNKNOWN_PERSON: Final = frozenset(
    {
        "users_not_found",
        "user_not_found",
        "user_disabled",
        "user_not_visible",
        "cannot_dm_bot",
        "invalid_user_combination",
    }
)
"""Errors about a user who cannot get messages."""


def refusal(
    method: str, error: str, *, status: int = 200, retry_after: str | None = None, needed: str = ""
) -> RetryLaterError | RefusedError:
    """The exception for Slack's ``error`` to a call of ``method``. ``needed``: the scopes that Slack named."""
    name = error if re.fullmatch(r"[a-z0-9_]{1,60}", error) else "an answer that is not Slack's"
    if status == 429 or name in ("ratelimited", "rate_limited"):
        return RetryLaterError(f"Slack rate-limits {method}", after_s=retry_after_s(retry_after))
    if name == "missing_scope":
        scopes = ", ".join(re.findall(r"[a-z.:_-]{1,40}", needed)[:5]) or "a scope"
        return RefusedError(
            f"the Slack app lacks {scopes} ({method}): add it under OAuth & Permissions and install the app again"
        )
    if name in _MENDED_BY:
        return RefusedError(f"{_MENDED_BY[name]} ({method}: {name})")
    if status >= 500:
        return RetryLaterError(f"Slack answers {method} with HTTP {status}", after_s=SOON_S)
    if name in _RETRIED:
        return RetryLaterError(f"Slack answers {method} with {name}", after_s=SOON_S)
    told = name if status == 200 else f"HTTP {status}, {name}"
    return RetryLaterError(f"Slack answers {method} with {told}", after_s=UNKNOWN_S)
