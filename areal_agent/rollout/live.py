"""Where a running episode stands: what it does now, and since when. The supervisor reads it."""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


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
    """Runs the workflow; its stack says where it is."""

    def begins(self, what: str) -> None:
        """Note that it now waits for `what`."""
        self.doing = what
        self.since = time.monotonic()


_current: ContextVar[LiveEpisode | None] = ContextVar("areal_agent.live", default=None)


def enter_episode(episode: LiveEpisode) -> None:
    """Let `doing` note things on `episode` in the current task and those it starts."""
    _current.set(episode)


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
