"""Whose worker processes a reward function runs in: the run's, or those of the event loop."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from areal_agent.config.reward import RewardConfig
from areal_agent.launch.reward_pool import RewardPool
from areal_agent.rollout.clock import uncounted
from areal_agent.rollout.live import doing

_pool: ContextVar[RewardPool | None] = ContextVar("areal_agent.rewards", default=None)


@contextmanager
def use_rewards(pool: RewardPool) -> Generator[None]:
    """Lend the run's workers to the wrappers that are called in the body."""
    token = _pool.set(pool)
    try:
        yield
    finally:
        _pool.reset(token)


def run_pool() -> RewardPool | None:
    """Return the workers of the run around the caller, if there is one."""
    return _pool.get()


@dataclass(slots=True)
class _OfLoop:
    turns: asyncio.Semaphore
    pool: RewardPool | None = None
    is_open: asyncio.Event = field(default_factory=asyncio.Event)


class OwnWorkers:
    """What one wrapper has in each loop: a bound on its calls, and workers outside of runs."""

    def __init__(self, max_workers: int | None) -> None:
        self._max_workers = max_workers
        self._loops: dict[asyncio.AbstractEventLoop, _OfLoop] = {}

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Let so many at a time into the body."""
        if self._max_workers is None:
            yield
            return
        turns = self._here().turns
        with uncounted(), doing("a turn of its reward"):
            await turns.acquire()
        try:
            yield
        finally:
            turns.release()

    async def pool(self) -> RewardPool:
        """Return the run's workers, or our own in this loop.

        Raises:
            ConfigError: this is a worker itself.
        """
        pool = run_pool()
        if pool is not None:
            return pool
        own = self._here()
        if own.pool is None:
            pool = RewardPool(RewardConfig(workers=self._max_workers))
            pool.refuse_in_workers()
            own.pool = pool
            self._keep_open(pool, own.is_open)
        await own.is_open.wait()
        return own.pool

    def _keep_open(self, pool: RewardPool, is_open: asyncio.Event) -> None:
        """Let a task close the pool: when its loop ends, or soon after this object has.

        No caller outlives it for certain, so no group of tasks can own it; the finalizer does.
        """
        loop = asyncio.get_running_loop()
        task = loop.create_task(_held_open(pool, is_open), name="reward workers")
        weakref.finalize(self, _cancel_soon, loop, task).atexit = False

    def _here(self) -> _OfLoop:
        loop = asyncio.get_running_loop()
        own = self._loops.get(loop)
        if own is None:
            for old in [old for old in self._loops if old.is_closed()]:
                del self._loops[old]
            own = self._loops[loop] = _OfLoop(asyncio.Semaphore(self._max_workers or 1))
        return own


async def _held_open(pool: RewardPool, is_open: asyncio.Event) -> None:
    async with pool:
        is_open.set()
        await asyncio.Event().wait()


def _cancel_soon(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]") -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)
