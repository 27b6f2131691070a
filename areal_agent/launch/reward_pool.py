"""The worker processes that a run's plain reward functions share."""

import asyncio
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from areal_agent.config.reward import RewardConfig
from areal_agent.errors import ConfigError, LaunchError, RewardError
from areal_agent.launch.reward_process import RewardProcess
from areal_agent.launch.reward_worker import WORKER_ENV
from areal_agent.launch.shipping import Shipped

_MOST_BY_DEFAULT = 32
_METRICS = (
    "calls",
    "timeouts",
    "errors",
    "crashes",
    "scored",
    "reruns",
    "retries",
    "seconds",
    "wait_seconds",
)
_PRIVATE = "AREAL_AGENT_"
"""Variables that begin so are the run's own, keys among them."""


class RewardPool:
    """Lends worker processes, each to one call at a time. They start as they are needed.

    Lifetime: constructed, it counts; entered, it lends; left, no process is left. It belongs to
    the event loop in which it was entered.
    """

    def __init__(self, config: RewardConfig, *, log_dir: Path | None = None) -> None:
        """Take settings.

        Args:
            config: bounds of the workers, and the policies of wrappers that have none.
            log_dir: where functions' output goes, as ``reward-<i>.log``. None takes a folder that
                is deleted at the end.
        """
        self.config = config
        self.counts: defaultdict[str, float] = defaultdict(float)
        """What happened since the start: calls, those that took too long (``timeouts``), failed
        (``errors``) or ended their process (``crashes``), those among them that got a score all
        the same (``scored``), those repeated for another's sake (``reruns``), and workers that
        had to be started anew (``retries``)."""
        self._taken: defaultdict[str, float] = defaultdict(float)
        self.n_workers = config.workers or min(_MOST_BY_DEFAULT, (os.cpu_count() or 1) + 4)
        self.log_dir = log_dir
        """Where functions' output goes; None until it is made."""
        self._slots = asyncio.Semaphore(self.n_workers)
        self._idle: list[RewardProcess] = []
        self._free = list(range(self.n_workers))
        """Numbers that no worker has: they name its log, which is gone on with."""
        self._lent: dict[RewardProcess, tuple[str, int, str, float]] = {}
        self._stack: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        """Allow it to start workers.

        Raises:
            ConfigError: this is a worker itself.
        """
        self.refuse_in_workers()
        self._stack = AsyncExitStack()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill every worker."""
        stack, self._stack = self._stack, None
        idle, self._idle = self._idle, []
        assert stack is not None
        async with stack:
            for worker in idle:
                stack.push_async_callback(worker.end)

    def refuse_in_workers(self) -> None:
        """Keep workers from starting workers of their own, and so on.

        Raises:
            ConfigError: this is a worker itself.
        """
        if WORKER_ENV in os.environ:
            raise ConfigError(
                "a worker process of reward functions imported this script and ran it: put what "
                'starts the run below `if __name__ == "__main__":`, or move the reward function '
                "to a file of its own"
            )

    def describe(self) -> list[str]:
        """Say what the workers do."""
        now = time.monotonic()
        lines = [
            f"{name} (process {pid}): {what}, for {now - since:.0f} s"
            for name, pid, what, since in list(self._lent.values())
        ]
        return [f"{len(lines)} of at most {self.n_workers} workers are in use", *lines]

    def take_metrics(self) -> dict[str, float]:
        """Return what happened since the last call, for the log; seconds are means of a call."""
        new = {name: self.counts[name] - self._taken[name] for name in _METRICS}
        self._taken |= {name: self.counts[name] for name in _METRICS}
        for name in ("seconds", "wait_seconds"):
            new[name] /= max(new["calls"], 1.0)
        return {f"reward/{name}": value for name, value in new.items()}

    @asynccontextmanager
    async def lend(
        self, function: Shipped, call: bytes, *, fresh: bool = False
    ) -> AsyncGenerator[RewardProcess]:
        """Wait for a worker that has loaded `function`, and keep it in the body.

        Left busy, it is killed.

        Args:
            function: what it shall run.
            call: its arguments, which decide what the worker imports beforehand.
            fresh: only a worker that has run nothing will do.

        Raises:
            LaunchError: it could not be started, or died before the body.
            RewardError: it cannot import the function, or not in time.
        """
        async with self._slots:
            worker = await self._take(function, fresh=fresh)
            self._lent[worker] = (worker.name, worker.pid, function.name, time.monotonic())
            try:
                if not worker.has(function):
                    await self._load(worker, function, call)
                yield worker
            finally:
                del self._lent[worker]
                if worker.is_ready and self._stack is not None:
                    self._idle.append(worker)
                else:
                    await self._end(worker)

    async def _take(self, function: Shipped, *, fresh: bool) -> RewardProcess:
        """Return a worker that has the function, or any; last used first, so that few are used."""
        while self._idle:
            known = [i for i, worker in enumerate(self._idle) if worker.has(function)]
            worker = self._idle.pop(known[-1] if known else -1)
            if worker.is_ready and not (fresh and worker.has_served):
                return worker
            await self._end(worker)
        return await self._start()

    async def _end(self, worker: RewardProcess) -> None:
        try:
            await worker.end()
        finally:
            self._free.append(worker.number)

    async def _start(self) -> RewardProcess:
        if self._stack is None:
            raise LaunchError("the run of these reward workers is over")
        if self.log_dir is None:
            self.log_dir = Path(tempfile.mkdtemp(prefix="areal-agent-rewards-"))
            self._stack.callback(shutil.rmtree, self.log_dir, ignore_errors=True)
        number = min(self._free)
        self._free.remove(number)
        self.counts["workers_started"] += 1
        try:
            return await RewardProcess.start(
                number,
                log=self.log_dir / f"reward-{number}.log",
                env=_environment(),
                memory_bytes=(self.config.memory_mb or 0) << 20,
                cpu_seconds=self.config.cpu_seconds or 0.0,
            )
        except BaseException:
            self._free.append(number)
            raise

    async def _load(self, worker: RewardProcess, function: Shipped, call: bytes) -> None:
        seconds = self.config.startup_timeout_seconds
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await worker.load(function, call)
        except TimeoutError:
            if not limit.expired():
                raise
            raise RewardError(
                f"the reward function {function.name} was not imported within {seconds:g} s "
                "(rollout.reward.startup_timeout_seconds)"
            ) from None


def _environment() -> dict[str, str]:
    """Our own, without what is the run's; libraries compute on one thread unless told otherwise."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(_PRIVATE)}
    return {"OMP_NUM_THREADS": "1", **ours, "PYTHONUNBUFFERED": "1", WORKER_ENV: "1"}
