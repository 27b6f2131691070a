"""Notices that a run makes no progress, says what it waits for, and acts: in steps, up to its end.

It looks from time to time; an episode costs it nothing.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from areal_agent.config.supervisor import SupervisorConfig
from areal_agent.errors import StallError
from areal_agent.rollout.deadlines import Waits
from areal_agent.rollout.live import LiveEpisode, LiveEpisodes
from areal_agent.rollout.stall_report import (
    MAX_EPISODES,
    Describe,
    StallReport,
    described,
    episodes_now,
    waits_now,
    write_report,
)

logger = logging.getLogger(__name__)

LOOKS = 20
"""Looks in the time after which a stall is reported."""
MAX_LOOK_SECONDS = 5.0
SHOWN_IDS = 10

Facts = Mapping[str, object]
"""What changes when a run makes progress, by what it is then said to have done."""


class Supervisor:
    """Watches one run.

    What it knows: the episodes that run, the waits that go on, and facts that change with progress.
    """

    def __init__(
        self,
        config: SupervisorConfig,
        *,
        path: Path,
        episodes: LiveEpisodes,
        waits: Waits,
        facts: Callable[[], Facts] = dict,
        sampled: Callable[[], Awaitable[int | None]] | None = None,
    ) -> None:
        """Wire things up.

        Args:
            config: how long nothing may happen until what is done.
            path: where reports are written, each in the place of the one before.
            episodes: those that run.
            waits: those that go on; their clock is used.
            facts: see `Facts`.
            sampled: asks the servers how many tokens they have sampled so far; None: no answer.
        """
        self.config = config
        self.path = path
        self.episodes = episodes
        self.waits = waits
        self.parts: dict[str, Describe] = {}
        """Who is asked for a report, by name."""
        self.facts = facts
        self.sampled = sampled
        self._clock = waits.clock
        self._since = self._clock()
        self._last = "its start"
        self._seen: Facts = {}
        self._tokens_of: dict[LiveEpisode, int] = {}
        self._n_sampled: int | None = None
        self._n_reports = 0
        self._n_cancels = 0
        self._actions: list[str] = []
        self._looks_every = min(config.report_seconds / LOOKS, MAX_LOOK_SECONDS)
        waits.report = self._write

    @property
    def quiet_seconds(self) -> float:
        """Time since the last progress."""
        return self._clock() - self._since

    async def watch(self) -> None:
        """Look for ever.

        Raises:
            StallError: there was no progress for `end_seconds`.
        """
        while True:
            before = self._clock()
            await asyncio.sleep(self._looks_every)
            # What kept this from waking up kept everything else from going on.
            self._since += max(self._clock() - before - 2 * self._looks_every, 0.0)
            await self.look()

    async def look(self) -> None:
        """See whether there was progress, and act when there was none for too long.

        Raises:
            StallError: there was none for `end_seconds`.
        """
        config = self.config
        done = self._progress() or await self._tokens_sampled()
        done = done or self._excuse()
        if done:
            self._begin_again(done)
            return
        quiet, first = self.quiet_seconds, config.report_seconds
        if self.waits.n_with_deadline:
            first = config.cancel_seconds  # it may just be slow, and ends by itself
        else:
            if quiet >= config.end_seconds:
                raise self._end()
            if quiet >= config.cancel_seconds * (self._n_cancels + 1):
                self._n_cancels += 1
                self._cancel()
        if quiet >= first * 2**self._n_reports:
            self._n_reports += 1
            self.tell(f"the run makes no progress (rollout.supervisor, report {self._n_reports})")

    def report(
        self, why: str, *, loop: list[str] | None = None, blocked: float = 0.0
    ) -> StallReport:
        """Say what the run waits for. Waits for nothing itself, and may be called by any thread."""
        episodes = self.episodes.oldest_first()
        now = self._clock()
        return StallReport(
            why=why,
            at=time.time(),
            pid=os.getpid(),
            quiet_seconds=now - self._since,
            last_progress=self._last,
            waits=waits_now(self.waits),
            episodes=episodes_now(episodes[:MAX_EPISODES], now),
            n_episodes=len(episodes),
            parts=described(self.parts),
            loop=loop or [],
            loop_seconds=blocked,
            actions=list(self._actions),
        )

    def tell(self, why: str, *, loop: list[str] | None = None, blocked: float = 0.0) -> str:
        """Print a report and write it; returns where it is."""
        report = self.report(why, loop=loop, blocked=blocked)
        logger.warning("%s", "\n".join(report.lines()))
        try:
            write_report(report, self.path)
        except OSError as error:
            logger.warning("the report could not be written to %s: %s", self.path, error)
        return str(self.path)

    def _write(self, why: str) -> str:
        return self.tell(f"the run ends: {why}")

    def _begin_again(self, done: str) -> None:
        if self._n_reports:
            logger.warning("the run goes on after %.0f s: %s", self.quiet_seconds, done)
        self._since, self._last = self._clock(), done
        self._n_reports = self._n_cancels = 0
        self._actions.clear()

    def _progress(self) -> str:
        """Say what has happened since the last look; empty: nothing."""
        now = {
            "an episode ended": self.episodes.n_ended,
            "what was waited for came": self.waits.n_over,
            **self.facts(),
        }
        changed = [name for name, value in now.items() if value != self._seen.get(name, value)]
        self._seen = now
        before, self._tokens_of = self._tokens_of, self._tokens()
        if any(n > before.get(episode, 0) for episode, n in self._tokens_of.items()):
            changed.append("a model call was answered")
        return ", ".join(changed)

    def _tokens(self) -> dict[LiveEpisode, int]:
        return {
            episode: episode.limits.output_tokens
            for episode in self.episodes
            if episode.limits is not None and episode.limits.output_tokens
        }

    async def _tokens_sampled(self) -> str:
        """Ask the servers whether they sample; only when nothing else has happened for a while."""
        if self.sampled is None or self.quiet_seconds < self.config.report_seconds / 2:
            return ""
        before = self._n_sampled
        tokens = await self.sampled()
        if tokens is None:
            return ""
        self._n_sampled = tokens
        return "tokens were sampled" if before is not None and tokens != before else ""

    def _excuse(self) -> str:
        """Say why a run without progress does not stall; empty: it does."""
        if not self.waits.open:
            return "the run was not waited for"
        running = list(self.episodes)
        if running and all(episode.waits_outside for episode in running):
            return "agents from elsewhere were waited for, who need not hurry"
        return ""

    def _cancel(self) -> None:
        """Cancel the episodes that have been silent for as long; the second time for good."""
        give_up = self._n_cancels > 1
        silent = self._clock() - self.config.cancel_seconds
        stuck = [
            episode
            for episode in self.episodes.oldest_first()
            if episode.since <= silent and not episode.waits_outside
        ]
        if not stuck:
            return
        why = (
            f"the run made no progress for {self.quiet_seconds:.0f} s, and the episode gave no "
            f"sign of life for {self.config.cancel_seconds:g} s "
            "(rollout.supervisor.cancel_seconds)"
        )
        for episode in stuck:
            episode.stop(f"{why}: it waited for {episode.doing}", give_up=give_up)
        ids = ", ".join(episode.id for episode in stuck[:SHOWN_IDS])
        more = f" and {len(stuck) - SHOWN_IDS} more" if len(stuck) > SHOWN_IDS else ""
        what = (
            "given up: their groups go on without them, or are dropped"
            if give_up
            else "cancelled, to be run again"
        )
        self._actions.append(f"after {self.quiet_seconds:.0f} s {ids}{more} were {what}")
        self.tell("the run makes no progress: " + self._actions[-1])

    def _end(self) -> StallError:
        waits = waits_now(self.waits)
        for_what = f"{waits[-1]['owner']}, {waits[-1]['name']}" if waits else "nothing with a name"
        text = (
            f"the run made no progress for {self.quiet_seconds:.0f} s "
            f"(rollout.supervisor.end_seconds): it waited for {for_what}"
        )
        return StallError(f"{text}; the report is in {self._write(text)}", path=str(self.path))
