"""The question of ``tidegauge top`` before anything is done; Escape does nothing."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from tidegauge.cli.top.acts import Choice, Question
from tidegauge.core.text import one_line


class Answered(NamedTuple):
    """The choice that somebody made, and the reason that they typed."""

    choice: Choice
    reason: str


class QuestionScreen(ModalScreen[Answered | None]):
    """A question over the screen; ``None``: nothing is to be done."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", show=False)]

    def __init__(self, question: Question) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        asked = self._question
        text = Text(one_line(asked.title, None), style="bold")
        for sentence in asked.sentences:
            text.append(f"\n\n{one_line(sentence, None)}", style="not bold")
        with Vertical(id="question"):
            yield Static(text, id="question-text")
            if asked.asks_reason:
                yield Input(id="reason", placeholder="reason (may be left empty)")
            yield Static(Text(f"\n{_keys(asked)}", style="bold"), id="question-keys")

    def on_mount(self) -> None:
        if self._question.asks_reason:
            self.query_one("#reason", Input).focus()

    def on_key(self, event: events.Key) -> None:
        if self._question.asks_reason:
            return
        for choice in self._question.choices:
            if event.key == choice.key:
                event.stop()
                self.dismiss(Answered(choice, ""))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(Answered(self._question.choices[0], event.value.strip()))

    def action_cancel(self) -> None:
        self.dismiss(None)


def _keys(asked: Question) -> str:
    choices = [
        f"{choice.key.capitalize() if len(choice.key) > 1 else choice.key} {choice.label}" for choice in asked.choices
    ]
    return "   ".join([*choices, "Esc cancel" if asked.choices else "Esc back"])
