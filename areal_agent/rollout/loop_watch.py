"""Watches the event loop from a thread: how late it is, and who blocks it.

The thread goes on while the loop stands still, so it also answers those who ask for a report then.
"""

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from areal_agent.aio import run_shielded
from areal_agent.config.supervisor import SupervisorConfig
from areal_agent.errors import StallError
from areal_agent.rollout.live import LiveEpisodes
from areal_agent.rollout.stacks import Place, is_importing, thread_places, users_place, within_loop

logger = logging.getLogger(__name__)

BEAT_SECONDS = 0.02
"""The loop gives a sign of life so often."""
LOOKS = 4
"""Looks of the thread in the time after which a block is named."""
_STEPS = 10
"""Of lag, a millisecond."""


class Asked(Protocol):
    """Somebody who wants answers while the thread waits."""

    def wait(self, seconds: float) -> None:
        """Let this time pass; answer who asks meanwhile."""
        ...


class Lag:
    """How late the loop is: a distribution over time.

    What has to wait is late by as long as the loop stays blocked from then on, so a block counts
    for each moment in it, and not as one late beat.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._taken: Counter[int] = Counter()
        self._max = 0.0

    def forget(self) -> None:
        """Count from here."""
        self._counts, self._taken, self._max = Counter(), Counter(), 0.0

    def late(self, seconds: float) -> None:
        """A beat came so late."""
        self._max = max(self._max, seconds)
        self._counts[round(max(seconds, 0.0) * 1000 * _STEPS)] += 1
        while (seconds := seconds - BEAT_SECONDS) > 0:
            self._counts[round(seconds * 1000 * _STEPS)] += 1

    def take(self) -> tuple[float, float]:
        """Return the 99th percentile and the maximum since the last call, in milliseconds."""
        counts, self._counts = self._counts, Counter()
        largest, self._max = self._max, 0.0
        self._taken += counts
        return _p99(counts), largest * 1000

    @property
    def p99(self) -> float:
        """The 99th percentile of all that was taken, in milliseconds."""
        return _p99(self._taken)


def _p99(counts: Counter[int]) -> float:
    left = counts.total() // 100
    for late in sorted(counts, reverse=True):
        left -= counts[late]
        if left < 0:
            return late / _STEPS
    return 0.0


class LoopWatch:
    """Entered in a loop, it watches that loop.

    ``loop/lag_p99_ms`` and ``loop/lag_max_ms`` come from a timer in the loop; the thread sees that
    the timer stops, and takes the stack of the loop's thread.
    """

    def __init__(
        self,
        config: SupervisorConfig,
        *,
        episodes: LiveEpisodes,
        asked: Asked | None = None,
        tell: Callable[[str, list[str], float], object] | None = None,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        """Wire things up.

        Args:
            config: when a block is named, reported, and ends the run.
            episodes: those that run.
            asked: is given the thread's time between two looks.
            tell: writes a report: why, the stack, for how long.
            end: ends the process with a code when the loop stays blocked.
        """
        self._config = config
        self._episodes = episodes
        self._asked = asked
        self._tell = tell
        self._end = end
        self._lag = Lag()
        self._over = threading.Event()
        # Not the loop's own pool: its threads may all be in use, and are waited for at the end.
        self._thread = threading.Thread(  # noqa: TID251 - see above
            target=self._watch, name="areal-agent loop watch", daemon=True
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._beat = 0.0
        self._seen: tuple[float, asyncio.Task[Any] | None] = (0.0, None)
        self._named: float | None = None
        self._was_told = False
        self._n_reports = 0
        self._times: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        """Start to watch the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._beat = time.monotonic()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beats)
        self._thread.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self._over.set()
        assert self._timer is not None
        self._timer.cancel()
        await run_shielded(asyncio.to_thread(self._thread.join))

    def begin(self) -> None:
        """Count from here how late the loop is: training begins."""
        self._lag.forget()

    @property
    def lag_p99_ms(self) -> float:
        """The 99th percentile since training began."""
        return self._lag.p99

    def take_metrics(self) -> dict[str, float]:
        """Return how late the loop was since the last call."""
        p99, largest = self._lag.take()
        return {"loop/lag_p99_ms": p99, "loop/lag_max_ms": largest}

    def blocked(self) -> tuple[list[str], float]:
        """Return the stack of what blocks the loop, outermost first, and for how long it has.

        Nothing and 0 when it is not blocked.
        """
        seconds = time.monotonic() - self._beat
        if seconds <= self._config.block_seconds:
            return [], 0.0
        return [str(one) for one in within_loop(thread_places(self._loop_thread))], seconds

    def _beats(self) -> None:
        assert self._loop is not None
        now = time.monotonic()
        self._lag.late(now - self._beat - BEAT_SECONDS)
        self._beat = now
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beats)

    def _watch(self) -> None:
        pause = self._config.block_seconds / LOOKS
        while not self._over.is_set():
            try:
                self._wait_and_look(pause)
            except Exception:
                logger.exception("the watch of the event loop failed; it goes on")
                self._over.wait(pause)

    def _wait_and_look(self, pause: float) -> None:
        before, cpu = time.monotonic(), time.process_time()
        if self._asked is None:
            self._over.wait(pause)
        else:
            self._asked.wait(pause)
        slept = time.monotonic() - before
        if slept > self._config.block_seconds and time.process_time() - cpu < slept / 2:
            self._beat += slept  # the process was stopped, and the loop with it
        elif not self._over.is_set():
            self._look()

    def _look(self) -> None:
        assert self._loop is not None
        beat = self._beat
        seconds = time.monotonic() - beat
        # A single task, and not many that all had something to do: it was there at the last look.
        seen, self._seen = self._seen, (beat, asyncio.current_task(self._loop))
        if seconds <= self._config.block_seconds:
            if self._named is not None and self._was_told:
                logger.warning("the event loop goes on after %.1f s", beat - self._named)
            self._named, self._n_reports, self._was_told = None, 0, False
            return
        places = within_loop(thread_places(self._loop_thread))
        if self._beat != beat or not places:
            return  # it has just gone on, or had no turn on the processor
        if self._named != beat and self._seen == seen:
            self._named = beat
            self._name(places, seconds)
        self._act(places, seconds)

    def _name(self, places: Sequence[Place], seconds: float) -> None:
        if is_importing(places):
            logger.info("the event loop has been blocked for %.1f s by an import", seconds)
            return
        text = str(users_place(places) or places[-1])
        self._times[text] += 1
        times = self._times[text]
        if times & (times - 1):
            return  # told the 1st, 2nd, 4th, 8th… time
        self._was_told = True
        assert self._loop is not None
        episode = self._episodes.run_by(asyncio.current_task(self._loop))
        of = "" if episode is None else f", in episode {episode.id}"
        again = "" if times == 1 else f" (it is the {times}th time)"
        logger.warning(
            "the event loop has been blocked for %.1f s by %s%s%s: nothing else goes on meanwhile. "
            "Await it, or hand it to a thread or a process: asyncio.to_thread, AsyncRewardWrapper, "
            "gateway.hosting subprocess",
            seconds,
            text,
            of,
            again,
        )

    def _act(self, places: Sequence[Place], seconds: float) -> None:
        if self._tell is None or any(one.file.endswith(("/bdb.py", "/pdb.py")) for one in places):
            return  # somebody looks at it in a debugger
        stack = [str(one) for one in places]
        if seconds >= self._config.end_seconds:
            why = f"the run ends: the event loop has been blocked for {seconds:.0f} s"
            self._tell(f"{why} (rollout.supervisor.end_seconds)", stack, seconds)
            # Nothing can be cleaned up in a loop that stands; our processes end with us.
            self._end(StallError.exit_code)
        elif seconds >= self._config.report_seconds * 2**self._n_reports:
            self._n_reports += 1
            self._tell("the event loop is blocked", stack, seconds)
