"""What is printed at the end of a run: a table, and dialogues before and after training.

Replies are shown as they are: nothing in them is taken for markup or for commands to a terminal.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SampleDialogue:
    """One held-out problem as the model handled it before and after training."""

    before: Sequence[Message]
    """Chat messages; empty when there was no such dialogue."""
    after: Sequence[Message]
    reward_before: float | None = None
    reward_after: float | None = None


def render_summary(
    rows: Sequence[tuple[str, str]], dialogues: Sequence[SampleDialogue]
) -> RenderableType:
    """Return a table of `rows` (name, value), then each dialogue, its two versions side by side."""
    table = Table(show_header=False, title="Summary", title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(plain(name), plain(value))
    parts: list[RenderableType] = [table]
    for number, dialogue in enumerate(dialogues, start=1):
        pair = Table(
            title=f"Held-out problem {number}", title_justify="left", expand=True, show_lines=True
        )
        pair.add_column(_heading("Before", dialogue.reward_before), ratio=1, overflow="fold")
        pair.add_column(_heading("After", dialogue.reward_after), ratio=1, overflow="fold")
        pair.add_row(_dialogue(dialogue.before), _dialogue(dialogue.after))
        parts.append(pair)
    return Group(*parts)


def summary_text(
    rows: Sequence[tuple[str, str]], dialogues: Sequence[SampleDialogue], *, width: int = 100
) -> str:
    """Return `render_summary` as plain text."""
    out = StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(
        render_summary(rows, dialogues)
    )
    return out.getvalue()


def plain(text: str, style: str = "") -> Text:
    """Return text that is shown as it is; control characters become visible escapes."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
    return Text(shown, style=style)


def _heading(title: str, reward: float | None) -> Text:
    return Text(title if reward is None else f"{title} (reward {reward:g})")


def _dialogue(messages: Sequence[Message]) -> Text:
    text = Text()
    for i, message in enumerate(messages):
        if i:
            text.append("\n")
        text.append(f"{message.get('role', '?')}: ", style="bold")
        text.append_text(plain(_content(message)))
    return text if messages else Text("(none)")


def _content(message: Message) -> str:
    content = message.get("content")
    parts = (
        [] if content is None else [content if isinstance(content, str) else json.dumps(content)]
    )
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        parts.append(f"→ {function.get('name')}({function.get('arguments')})")
    return "\n".join(part for part in parts if part)
