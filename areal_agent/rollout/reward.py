"""Reward functions off the event loop: time limits, crashes and odd values become one policy."""

import asyncio
import inspect
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, cast

from areal_agent.aio import is_cancelled
from areal_agent.config.reward import Policy, RewardConfig
from areal_agent.errors import (
    ConfigError,
    DataError,
    LaunchError,
    RewardCrashError,
    RewardError,
    RewardTimeoutError,
)
from areal_agent.launch.described import describe
from areal_agent.launch.reward_process import RewardProcess
from areal_agent.launch.shipping import Shipped, called, packed, ship
from areal_agent.rewarding import as_reward, is_inline
from areal_agent.rollout.clock import uncounted
from areal_agent.rollout.limits import stoppable
from areal_agent.rollout.live import doing
from areal_agent.rollout.reward_workers import OwnWorkers, run_pool

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1
_DEFAULTS = RewardConfig()


class AsyncRewardWrapper:
    """Calls a reward function without holding up the event loop; returns a float or raises.

    A plain function runs in a worker process, which is killed when it takes too long; an async one
    is awaited here; one marked with `inline_reward` is called here. The workers are the run's.
    Outside of a run a wrapper has workers of its own, which end with the event loop or with it.

    A worker imports the function by its name, so it must be at the top level of a module or file.
    Partials, bound methods and objects are copied as they are when the wrapper is made.
    """

    def __init__(
        self,
        reward_fn: Callable[..., Any],
        timeout_seconds: float | None = None,
        max_workers: int | None = None,
        max_retries: int = 3,
        *,
        on_timeout: Policy | None = None,
        on_error: Policy | None = None,
    ) -> None:
        """Check that the function can be called.

        Args:
            reward_fn: returns a number; plain or async.
            timeout_seconds: most that a call may take, without the wait for a worker. None takes
                `rollout.reward.timeout_seconds`, and its default outside of a run.
            max_workers: most calls of this function at a time. None leaves it to the workers.
            max_retries: how often a worker that could not be started, or died before the function
                began, is replaced. What the function does is no reason to.
            on_timeout: `reject` raises, a number is the score. None takes the run's setting.
            on_error: the same for a function that fails, crashes, or returns no number.

        Raises:
            ConfigError: a worker could not import a plain function, or a number is out of range.
        """
        if not callable(reward_fn):
            raise ConfigError(f"expected a reward function, got {reward_fn!r:.120}")
        if not (
            _is_number(max_retries, at_least=0, whole=True)
            and (max_workers is None or _is_number(max_workers, at_least=1, whole=True))
            and (timeout_seconds is None or _is_number(timeout_seconds, above=0))
        ):
            raise ConfigError(
                "expected max_retries of 0 or more, max_workers of 1 or more and timeout_seconds "
                f"above 0, got {max_retries!r}, {max_workers!r} and {timeout_seconds!r}"
            )
        self.__wrapped__ = reward_fn
        self.name = called(reward_fn)
        stays = is_async(reward_fn) or is_inline(reward_fn)
        self._shipped: Shipped | None = None if stays else ship(reward_fn)
        self._timeout_seconds = timeout_seconds
        self._max_retries = max_retries
        self._on_timeout: Policy | None = _policy(on_timeout, "on_timeout")
        self._on_error: Policy | None = _policy(on_error, "on_error")
        self._own = OwnWorkers(max_workers)
        self.counts: defaultdict[str, float] = defaultdict(float)
        """What became of its calls: ``calls``, ``timeouts``, ``errors``, ``crashes`` ..."""

    async def __call__(self, *args: Any, **kwargs: Any) -> float:
        """Call the function.

        Raises:
            RewardError: it failed, took too long, or returned no finite number, and the policy is
                to reject.
            DataError: the function raised it: the data are wrong, which no policy scores.
        """
        value = await self._settled(args, kwargs, none_allowed=False)
        assert value is not None
        return value

    async def optional(self, *args: Any, **kwargs: Any) -> float | None:
        """Call a function that may return None for "does not apply"; raises as `__call__` does."""
        return await self._settled(args, kwargs, none_allowed=True)

    async def _settled(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, none_allowed: bool
    ) -> float | None:
        self._count("calls")
        try:
            async with self._own.turn():
                call = self._here if self._shipped is None else self._in_worker
                value = await call(args, kwargs)
            return None if value is None and none_allowed else as_reward(value)
        except DataError:
            self._count("errors")
            raise
        except RewardTimeoutError as error:
            self._count("timeouts")
            return self._score(self._on_timeout, self._config.on_timeout, error)
        except RewardError as error:
            self._count("crashes" if isinstance(error, RewardCrashError) else "errors")
            return self._score(self._on_error, self._config.on_error, error)

    def _score(self, own: Policy | None, default: Policy, error: RewardError) -> float:
        policy = default if own is None else own
        if policy == "reject":
            raise error
        self._count("scored")
        logger.log(
            logging.WARNING if self.counts["scored"] == 1 else logging.DEBUG,
            "%s: scored %g (more of this function are counted, not told)",
            error,
            policy,
            exc_info=error,
        )
        return policy

    async def _here(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        """Call the function on this loop."""
        began = time.perf_counter()
        limit = asyncio.timeout(self._seconds)
        try:
            with doing(f"the reward {self.name}"):
                async with limit:
                    value = self.__wrapped__(*args, **kwargs)
                    if inspect.isawaitable(value):
                        value = await stoppable(_waited_for(value))
            if limit.expired():  # it was told to end, and returned something all the same
                raise self._too_slow()
            return value
        except BaseException as error:
            # Whatever a reward function raises becomes data, also what is no Exception.
            if isinstance(error, KeyboardInterrupt | GeneratorExit) or is_cancelled():
                raise
            if limit.expired() and not isinstance(error, RewardTimeoutError):
                raise self._too_slow() from error
            if isinstance(error, RewardError | DataError):
                raise
            what = describe(error)
            raise RewardError(
                f"the reward function {self.name} failed: {what['type']}: {what['message']}"
            ) from error
        finally:
            self._count("seconds", time.perf_counter() - began)

    async def _in_worker(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float | None:
        """Call the function in a worker.

        A worker that dies under a call may have died of what it ran before: then the call is
        repeated, once, in a worker that has run nothing.
        """
        call = packed(args, kwargs, name=self.name)
        async with AsyncExitStack() as stack:
            worker = await self._lent(stack, call, fresh=False)
            is_culprit = not worker.has_served or self._max_retries == 0
            try:
                return await self._called(worker, call)
            except RewardCrashError:
                if is_culprit:
                    raise
        self._count("reruns")
        async with AsyncExitStack() as stack:
            worker = await self._lent(stack, call, fresh=True)
            return await self._called(worker, call)

    async def _lent(self, stack: AsyncExitStack, call: bytes, *, fresh: bool) -> RewardProcess:
        """Wait for a worker, which is ours until `stack` is closed."""
        assert self._shipped is not None
        began = time.perf_counter()
        try:
            with uncounted(), doing(f"a worker for the reward {self.name}"):
                for left in reversed(range(self._max_retries + 1)):
                    try:
                        pool = await self._own.pool()
                        return await stack.enter_async_context(
                            pool.lend(self._shipped, call, fresh=fresh)
                        )
                    except LaunchError as error:
                        if not left:
                            raise RewardError(f"no worker can run {self.name}: {error}") from error
                    self._count("retries")
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._count("wait_seconds", time.perf_counter() - began)
        raise AssertionError  # the last turn returns or raises

    async def _called(self, worker: RewardProcess, call: bytes) -> float | None:
        assert self._shipped is not None
        limit = asyncio.timeout(self._seconds)
        try:
            with doing(f"the reward {self.name}"):
                async with limit:
                    value = await worker.call(self._shipped, call)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._too_slow() from error
        self._count("seconds", worker.last_seconds)
        return value

    def _too_slow(self) -> RewardTimeoutError:
        return RewardTimeoutError(
            f"the reward function {self.name} took longer than {self._seconds:g} s "
            "(timeout_seconds, rollout.reward.timeout_seconds)"
        )

    @property
    def _config(self) -> RewardConfig:
        pool = run_pool()
        return _DEFAULTS if pool is None else pool.config

    @property
    def _seconds(self) -> float:
        seconds = self._timeout_seconds
        return self._config.timeout_seconds if seconds is None else seconds

    def _count(self, what: str, by: float = 1) -> None:
        self.counts[what] += by
        pool = run_pool()
        if pool is not None:
            pool.counts[what] += by


async def _waited_for(value: Awaitable[Any]) -> Any:
    return await value


def _policy(value: object, name: str) -> Policy | None:
    """Check a policy, and make a float of a score."""
    if value is None or value == "reject":
        return cast("Policy | None", value)
    if not _is_number(value):
        raise ConfigError(f"expected 'reject' or a finite score as {name}, got {value!r:.80}")
    return float(cast("float", value))


def _is_number(
    value: object, *, at_least: float = -math.inf, above: float = -math.inf, whole: bool = False
) -> bool:
    kind = int if whole else int | float
    if not isinstance(value, kind) or isinstance(value, bool):
        return False
    return math.isfinite(value) and value >= at_least and value > above


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether calling `function` gives an awaitable; it may be an object, or a partial."""
    while isinstance(function, partial):
        function = function.func
    call = getattr(type(function), "__call__", None)  # noqa: B004 - it is looked at, not tested
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
