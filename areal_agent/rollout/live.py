"""Where a running episode stands: what it does now, and since when. The supervisor reads it."""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from areal_agent.rollout.stoppable import Stoppable


@dataclass(slots=True, eq=False)
class LiveEpisode:
    """One episode while it runs."""

    id: str
    prompt_id: str
    doing: str = "its own code"
    """What it waits for, in words that go on from "it waits for": ``model call 2``."""
    since: float = field(default_factory=time.monotonic)
    """``time.monotonic()`` when that began: its last sign of life."""
    started: float = field(default_factory=time.monotonic)
    task: "asyncio.Task[object] | None" = None
    """Runs the workflow, until it has ended."""
    code: "Stoppable[object] | None" = None
    """The workflow's own: the stack of `code.coroutine` says where it is."""
    why_stopped: str = ""
    """Why it has to end with the outcome ``cancelled``."""

    def stop(self, why: str) -> None:
        """End it as ``cancelled``; it may then be run again, within the budget of retries."""
        if self.task is not None and not self.why_stopped:
            self.why_stopped = why
            self.task.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Whether it has to end, by `stop` or because its task was cancelled."""
        return self.task is not None and self.task.cancelling() > 0

    def end(self) -> bool:
        """It has ended; returns whether its task was cancelled by somebody else."""
        task, self.task = self.task, None
        if task is None:
            return False
        if self.why_stopped:
            task.uncancel()
        if task.cancelling():
            self.why_stopped = self.why_stopped or "its task was cancelled: the run goes no further"
            return True
        return False

    def begins(self, what: str) -> None:
        """Note that it now waits for `what`."""
        self.doing = what
        self.since = time.monotonic()


_current: ContextVar[LiveEpisode | None] = ContextVar("areal_agent.live", default=None)


def enter_episode(episode: LiveEpisode) -> None:
    """Let `doing` note things on `episode` in the current task and those it starts."""
    _current.set(episode)


def current_episode() -> LiveEpisode | None:
    """Return the episode that the current task runs, or None."""
    return _current.get()


@contextmanager
def doing(what: str) -> Generator[None]:
    """Note that the running episode, if there is one, waits for `what` while the body runs."""
    episode = _current.get()
    if episode is None:
        yield
        return
    before = episode.doing
    episode.begins(what)
    try:
        yield
    finally:
        episode.begins(before)
