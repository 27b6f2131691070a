"""What a run shows while it works: live on a terminal, plain lines elsewhere, or nothing."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from areal_agent.stats.summary import SampleDialogue, plain, render_summary, summary_text

_SAME_WAIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StepProgress:
    """What one step came to."""

    step: int
    """Steps done, this one included."""
    reward: float
    """Mean reward of the batch."""
    accuracy: float | None = None
    """Held-out accuracy when it was measured after this step; None keeps showing the last one."""
    staleness: float = 0.0
    """Largest age of the batch's tokens, in versions."""
    server_tokens_per_second: float = 0.0
    trainer_tokens_per_second: float = 0.0
    seconds: float = 0.0
    """Wall time of the step."""
    outcomes: Sequence[str] = ()
    """What became of the episodes since the step before; see `outcome_facts`."""


class Display(Protocol):
    """Shows a run. A context manager: leaving it restores the terminal."""

    def start(self, total_steps: int) -> None:
        """Training begins."""
        ...

    def update(self, progress: StepProgress) -> None:
        """A step has ended."""
        ...

    def waiting(self, text: str) -> None:
        """Say what the run waits for now, without "waiting for"; empty: nothing."""
        ...

    def note(self, text: str) -> None:
        """Say something that stays visible."""
        ...

    def summary(
        self, rows: Sequence[tuple[str, str]], dialogues: Sequence[SampleDialogue] = ()
    ) -> None:
        """Show the end: see `render_summary`."""
        ...

    def __enter__(self) -> Self:
        """Take the terminal."""
        ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give it back."""
        ...


def make_display(*, quiet: bool = False, console: Console | None = None) -> Display:
    """Choose: nothing when `quiet`, live on a terminal, plain lines elsewhere."""
    console = Console() if console is None else console
    if quiet:
        return QuietDisplay()
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


class QuietDisplay:
    """Shows nothing."""

    def start(self, total_steps: int) -> None:
        """See `Display`."""

    def update(self, progress: StepProgress) -> None:
        """See `Display`."""

    def waiting(self, text: str) -> None:
        """See `Display`."""

    def note(self, text: str) -> None:
        """See `Display`."""

    def summary(
        self, rows: Sequence[tuple[str, str]], dialogues: Sequence[SampleDialogue] = ()
    ) -> None:
        """See `Display`."""

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing."""


class PlainDisplay(QuietDisplay):
    """One line a step. Before the first, what is waited for; later only when a wait is long."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._total = 0
        self._kind = ""
        self._told_at = clock()

    def start(self, total_steps: int) -> None:
        """See `Display`."""
        self._total = total_steps
        self._print(f"training for {total_steps} steps")

    def update(self, progress: StepProgress) -> None:
        """See `Display`."""
        facts = [f"step {progress.step}/{self._total}", *_facts(progress)]
        self._print(", ".join([*facts, f"{progress.seconds:.1f} s"]))

    def waiting(self, text: str) -> None:
        """See `Display`. Texts that differ in numbers only are of one kind."""
        kind = re.sub(r"\d+", "#", text)
        quiet = self._clock() - self._told_at
        if text and (quiet >= _SAME_WAIT_SECONDS or (kind != self._kind and not self._total)):
            self._print(f"waiting for {text}")
            self._kind = kind

    def note(self, text: str) -> None:
        """See `Display`."""
        self._print(text)

    def summary(
        self, rows: Sequence[tuple[str, str]], dialogues: Sequence[SampleDialogue] = ()
    ) -> None:
        """See `Display`."""
        longest = max((len(value) for _, value in rows), default=0)
        names = max((len(name) for name, _ in rows), default=0)
        width = max(self._console.width, names + longest + 10)  # paths stay in one piece
        self._print(summary_text(rows, dialogues, width=width).rstrip())

    def _print(self, line: str) -> None:
        self._told_at = self._clock()
        self._console.print(plain(line), soft_wrap=True)


class LiveDisplay(QuietDisplay):
    """A few lines at the bottom of the terminal, redrawn four times a second."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._total = 0
        self._started = self._wait_started = clock()
        self._progress: StepProgress | None = None
        self._waiting = ""
        self._live = Live(get_renderable=self.render, console=console, refresh_per_second=4)

    def start(self, total_steps: int) -> None:
        """See `Display`."""
        self._total = total_steps
        self._started = self._clock()

    def update(self, progress: StepProgress) -> None:
        """See `Display`."""
        if progress.accuracy is None and self._progress is not None:
            progress = replace(progress, accuracy=self._progress.accuracy)
        self._progress = progress

    def waiting(self, text: str) -> None:
        """See `Display`."""
        if text != self._waiting:
            self._waiting, self._wait_started = text, self._clock()

    def note(self, text: str) -> None:
        """See `Display`."""
        self._console.print(plain(text))

    def summary(
        self, rows: Sequence[tuple[str, str]], dialogues: Sequence[SampleDialogue] = ()
    ) -> None:
        """See `Display`."""
        self._waiting = ""
        self._console.print(render_summary(rows, dialogues))

    def render(self) -> RenderableType:
        """Draw the present state."""
        lines: list[RenderableType] = []
        progress = self._progress
        if self._total:
            done = 0 if progress is None else progress.step
            bar = Table.grid(padding=(0, 1))
            bar.add_row(
                Text(f"step {done}/{self._total}", style="bold"),
                ProgressBar(total=self._total, completed=done, width=40),
                Text(f"{self._clock() - self._started:.0f} s"),
            )
            lines.append(bar)
        if progress is not None:
            lines.append(Text("   ".join(_facts(progress))))
        if self._waiting:
            seconds = self._clock() - self._wait_started
            lines.append(plain(f"waiting for {self._waiting} ({seconds:.0f} s)", style="dim"))
        return Group(*lines)

    def __enter__(self) -> Self:
        """See `Display`."""
        self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See `Display`."""
        self._waiting = ""
        self._live.stop()


def _facts(progress: StepProgress) -> list[str]:
    facts = [f"reward {progress.reward:.3f}"]
    if progress.accuracy is not None:
        facts.append(f"held-out accuracy {progress.accuracy:.3f}")
    return [
        *facts,
        f"staleness {progress.staleness:g}",
        f"server {progress.server_tokens_per_second:,.0f} tokens/s",
        f"trainer {progress.trainer_tokens_per_second:,.0f} tokens/s",
        *progress.outcomes,
    ]
