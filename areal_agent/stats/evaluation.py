"""What an evaluation shows: a bar on a terminal, lines elsewhere, a table at the end."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from areal_agent.stats.summary import summary_text

_LINE_EVERY_SECONDS = 10.0


class EvaluationDisplay:
    """Shows an evaluation. A context manager: leaving it restores the terminal."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        """Choose: nothing when `quiet`, a bar on a terminal, plain lines elsewhere."""
        self._console = Console(quiet=quiet) if console is None else console
        self._bar = Progress(
            TextColumn("evaluation"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._bar.add_task("evaluation", total=None)
        self._told_at = time.monotonic()

    def progress(self, done: int, total: int) -> None:
        """So many episodes are over."""
        self._bar.update(self._task, completed=done, total=total)
        now = time.monotonic()
        if self._bar.disable and now - self._told_at >= _LINE_EVERY_SECONDS:
            self._told_at = now
            self._console.print(f"evaluation: {done} of {total} problems")

    def summary(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show the end."""
        self._bar.stop()
        width = max(len(name) + len(value) + 10 for name, value in rows)
        text = summary_text(rows, (), width=max(width, self._console.width))
        self._console.print(text.rstrip(), soft_wrap=True, markup=False, highlight=False)

    def __enter__(self) -> Self:
        """Take the terminal."""
        self._bar.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give it back."""
        self._bar.stop()
