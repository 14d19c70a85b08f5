"""The pages to log in and to log out. They need no script."""

from __future__ import annotations

from collections.abc import Collection
from html import escape
from typing import Final

from tidegauge.http.access import LoginMethod, Viewer
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.messages.untrusted import MAX_REMARK_CHARS
from tidegauge_exporter.reports.html_page import asset, inline, page

_PASTED: Final = {
    LoginMethod.TOKEN: "an API token: the text that begins with `tg_`, which an admin of this service gave you",
    LoginMethod.MUNGE: "a MUNGE credential: what `munge -n` prints on a machine of this cluster. It counts once, "
    "within 5 minutes",
    LoginMethod.KUBERNETES: "a Kubernetes token: what `kubectl create token ACCOUNT` prints",
}  # fmt: skip
"""What may be pasted, in the order in which it is told."""
_TITLE: Final = "Log in to Tidegauge"


def render_login(
    methods: Collection[LoginMethod], *, next_path: str, viewer: Viewer | None, problem: str | None, goes_on: str | None
) -> str:
    """The page, with a form for each of ``methods``; with ``goes_on`` one that the browser leaves at once."""
    if goes_on is not None:
        link = f'<p>Going on to <a href="{escape(goes_on)}">the page to log in</a>.</p>'
        head = f'<meta http-equiv="refresh" content="0;url={escape(goes_on)}">\n'
        return page(_TITLE, ["<h1>Tidegauge</h1>", link], head=head, style=asset("login.css"))
    if viewer is not None:
        return page(_TITLE, ["<h1>Tidegauge</h1>", _standing(viewer)], style=asset("login.css"))
    pasted = [words for method, words in _PASTED.items() if method in methods]
    forms = [_paste_form(pasted, next_path)] if pasted else []
    forms += [_password_form(next_path)] if LoginMethod.PASSWORD in methods else []
    if not forms:
        forms = [f'<div class="card"><p>{inline(_elsewhere(methods))}</p></div>']
    told = f'<div class="card problem" role="alert"><p>{escape(problem)}</p></div>' if problem else ""
    purpose = '<p class="muted">GPU memory of your jobs: to show you yours, this service asks who you are.</p>'
    return page(_TITLE, [f"<h1>{_TITLE}</h1>", purpose, told, *forms], style=asset("login.css"))


def render_logout(viewer: Viewer | None) -> str:
    """The page that asks whether to log out."""
    if viewer is None:
        body = '<div class="card"><p>You are not logged in. <a href="login">Log in</a></p></div>'
    else:
        body = _standing(viewer)
    return page("Log out of Tidegauge", ["<h1>Log out</h1>", body], style=asset("login.css"))


def _standing(viewer: Viewer) -> str:
    """As whom somebody is seen, and how to end that."""
    if viewer.name is None:
        return (
            '<div class="card"><p>This service asks nobody for a name: there is nothing to log in to, and everybody '
            "who reaches it sees all jobs.</p></div>"
        )
    own = "your own jobs" if viewer.rights is None else "the jobs that Kubernetes lets you read"
    sees = "all jobs" if viewer.sees_all else own
    who = f"<p>You are <b>{escape(tidy(viewer.name, MAX_REMARK_CHARS))}</b> and see {sees}.</p>"
    if viewer.by_session:
        return f'<form method="post" action="logout">{who}<button>Log out</button></form>'
    other = "You are known by your browser's stored password, by a proxy or by this machine: that is where to log out."
    return f'<div class="card">{who}<p class="muted">{other}</p></div>'


def _paste_form(pasted: list[str], next_path: str) -> str:
    items = "".join(f"<li>{inline(words)}</li>" for words in pasted)
    return f"""<form method="post" action="login">
<h2>With a token or credential</h2>
<div class="muted" id="pasted">Paste <ul>{items}</ul></div>
<label for="token">Token or credential</label>
<input id="token" name="token" type="password" required autocomplete="off" spellcheck="false" aria-describedby="pasted">
{_hidden(next_path)}<button>Log in</button>
</form>"""


def _password_form(next_path: str) -> str:
    return f"""<form method="post" action="login">
<h2>With name and password</h2>
<label for="name">Name</label>
<input id="name" name="name" required autocomplete="username" autocapitalize="none" spellcheck="false">
<label for="password">Password</label>
<input id="password" name="password" type="password" required autocomplete="current-password">
{_hidden(next_path)}<button>Log in</button>
</form>"""


def _hidden(next_path: str) -> str:
    return f'<input type="hidden" name="next" value="{escape(next_path)}">\n' if next_path else ""


def _elsewhere(methods: Collection[LoginMethod]) -> str:
    if LoginMethod.PROXY in methods:
        return "Here one logs in at the proxy in front of this service: open the service at its public address."
    return "This service offers no way to log in."
