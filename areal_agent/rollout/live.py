"""Where a running episode stands: what it does now, and since when. The supervisor reads it."""

import asyncio
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from areal_agent.rollout.stoppable import Stoppable

if TYPE_CHECKING:
    from areal_agent.rollout.clock import EpisodeClock
    from areal_agent.rollout.context import WorkflowContext
    from areal_agent.rollout.inputs import Inputs
    from areal_agent.rollout.limits import EpisodeLimits


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
    nested: "list[Stoppable[Any]]" = field(default_factory=list["Stoppable[Any]"])
    """The same, with users' code that it awaits."""
    context: "WorkflowContext | None" = None
    """What it may know of itself; this and the following are in use once it has begun."""
    inputs: "Inputs | None" = None
    limits: "EpisodeLimits | None" = None
    clock: "EpisodeClock | None" = None
    why_stopped: str = ""
    """Why it has to end with the outcome ``cancelled``."""
    is_given_up: bool = False
    """It is not to be run again."""
    waits_outside: bool = False
    """It waits for somebody who need not hurry, with a deadline of that wait's own."""
    among: "LiveEpisodes | None" = None
    """Where it is listed."""

    def stop(self, why: str, *, give_up: bool = False) -> None:
        """End it as ``cancelled``; it may then be run again, within the budget of retries.

        With `give_up` it is not.
        """
        if self.task is not None and not self.why_stopped:
            self.why_stopped = why
            self.is_given_up = give_up
            self.task.cancel()

    @property
    def must_end(self) -> bool:
        """Whether it is over but for its code: out of time, stopped, or cancelled with its task."""
        late = self.clock is not None and self.clock.limit.expired()
        return late or (self.task is not None and self.task.cancelling() > 0)

    def end(self) -> bool:
        """It has ended; returns whether its task was cancelled by somebody else."""
        task, self.task = self.task, None
        if self.among is not None:
            self.among.ended(self)
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


class LiveEpisodes:
    """The episodes of a run that have begun and not ended, of training and of evaluation."""

    def __init__(self) -> None:
        self._running: set[LiveEpisode] = set()
        self.n_ended = 0
        """Episodes that have ended by themselves; those that were stopped are not counted."""

    def add(self, episode: LiveEpisode) -> None:
        """It begins."""
        episode.among = self
        self._running.add(episode)

    def ended(self, episode: LiveEpisode) -> None:
        """It has ended."""
        self._running.discard(episode)
        self.n_ended += not episode.why_stopped

    def __iter__(self) -> Iterator[LiveEpisode]:
        """Go through those that run now, in no order."""
        return iter(list(self._running))

    def oldest_first(self) -> list[LiveEpisode]:
        """Return those that run, in the order in which they last gave a sign of life."""
        return sorted(self._running, key=lambda episode: episode.since)

    def run_by(self, task: "asyncio.Task[Any] | None") -> LiveEpisode | None:
        """Return the episode that a task runs, if it runs one."""
        if task is None:
            return None
        return next((one for one in self if one.task is task), None)


_current: ContextVar[LiveEpisode | None] = ContextVar("areal_agent.live", default=None)
_listed: ContextVar[LiveEpisodes | None] = ContextVar("areal_agent.live_episodes", default=None)


@contextmanager
def list_episodes(episodes: LiveEpisodes) -> Generator[None]:
    """List the episodes that begin in the body's context."""
    token = _listed.set(episodes)
    try:
        yield
    finally:
        with suppress(ValueError):  # left in another context than it was entered in
            _listed.reset(token)


def enter_episode(episode: LiveEpisode) -> None:
    """Make it the running episode of the current task and those it starts.

    It holds all that is known of an episode while it runs: to set one variable of the context is
    dear, and to set one for each thing is that several times over.
    """
    _current.set(episode)
    listed = _listed.get()
    if listed is not None:
        listed.add(episode)


def current_episode() -> LiveEpisode | None:
    """Return the episode that the current task runs, or None."""
    return _current.get()


@contextmanager
def doing(what: str, *, outside: bool = False) -> Generator[None]:
    """Note that the running episode, if there is one, waits for `what` while the body runs.

    With `outside`, for somebody who need not hurry: that it takes long is no sign of a fault.
    """
    episode = _current.get()
    if episode is None:
        yield
        return
    before, patient = episode.doing, episode.waits_outside
    episode.begins(what)
    episode.waits_outside = outside
    try:
        yield
    finally:
        episode.begins(before)
        episode.waits_outside = patient
