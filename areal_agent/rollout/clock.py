"""The time that an episode may take, and time that is not counted."""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager

from areal_agent.rollout.live import current_episode


class EpisodeClock:
    """Runs from the start of an episode; its `limit` ends the episode."""

    def __init__(self, seconds: float) -> None:
        self.limit = asyncio.timeout(seconds)
        self._started = time.monotonic()
        self._uncounted = 0.0

    @property
    def seconds(self) -> float:
        """What the episode took so far, without what is not counted."""
        return time.monotonic() - self._started - self._uncounted

    @contextmanager
    def stopped(self) -> Generator[None]:
        """Do not count the body's time."""
        when, began = self.limit.when(), time.monotonic()
        if when is None or self.limit.expired():
            yield  # it stands, or the episode is ending
            return
        self.limit.reschedule(None)
        try:
            yield
        finally:
            waited = time.monotonic() - began
            self._uncounted += waited
            self.limit.reschedule(when + waited)


@contextmanager
def uncounted() -> Generator[None]:
    """Take the body's time for none of the running episode's, if one runs.

    One that has ended is current yet in a group of one, and in tasks that it left behind.
    """
    episode = current_episode()
    if episode is None or episode.clock is None or episode.task is None:
        yield
        return
    with episode.clock.stopped():
        yield
