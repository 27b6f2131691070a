"""Which replicas may serve: those that are well and have the current weights."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from areal_agent.aio import collect
from areal_agent.errors import InferenceError, ServerError
from areal_agent.inference.control import ControlPlane
from areal_agent.inference.pool import Replica, ReplicaPool

logger = logging.getLogger(__name__)

Weights = tuple[Path | None, int]
"""Folder, if it is known, and version."""


class Fleet:
    """Takes replicas out of service and puts them back, never with other than current weights.

    Whoever starts the servers says `gone` and `back`; `look` finds out the rest.
    """

    def __init__(
        self,
        pool: ReplicaPool,
        control: ControlPlane,
        *,
        current: Callable[[], Weights],
        is_paused: Callable[[], bool],
    ) -> None:
        """Wire things up.

        Args:
            pool: the replicas.
            control: speaks to them.
            current: the weights that every replica is to serve.
            is_paused: whether new requests are being held.
        """
        self._pool = pool
        self._control = control
        self._current = current
        self._is_paused = is_paused
        self._silent_since: dict[Replica, float] = {}
        self._heard: dict[Replica, tuple[float, dict[str, Any]]] = {}
        self._gone: set[Replica] = set()
        self.restarts = 0
        """Replicas that came back, so far."""
        self.changing = asyncio.Lock()
        """Held while weights are loaded, so that a replica never gets those of before."""

    @property
    def n_up(self) -> int:
        """Replicas that get requests."""
        return len(self._pool.up)

    def waits_for(self) -> str:
        """Say what calls wait for when no replica is up; empty when one is."""
        if self._pool.up or not self._pool.expected:
            return ""
        n = len(self._pool.replicas)
        return f"an inference server to come back: none of {n} is up"

    def describe(self) -> list[str]:
        """Say of each replica how it is, as far as is known."""
        version = self._current()[1]
        return [f"version {version} is served", *map(self._described, self._pool.replicas)]

    def _described(self, replica: Replica) -> str:
        state = "up" if replica.down is None else f"down: {replica.down}"
        if replica in self._gone:
            state = f"its process has ended: {replica.down}"
        at, health = self._heard.get(replica, (0.0, {}))
        heard = (
            f"answered {time.monotonic() - at:.0f} s ago: {health.get('status')}, "
            f"version {health.get('version')}"
            if health
            else "was not asked how it is"
        )
        return f"{replica.url}: {state}; {replica.running} requests run there; {heard}"

    def expect_back(self) -> None:
        """From now on somebody brings back what goes down: calls wait for it."""
        for replica in self._pool.replicas:
            replica.expected = True

    def gone(self, index: int, why: Exception, *, returns: bool) -> None:
        """The process of a replica has ended; its requests move to others, or wait."""
        replica = self._pool.replicas[index]
        self._gone.add(replica)
        self._pool.mark_down(replica, ServerError(str(why)))
        if not returns:
            self._pool.give_up(replica)

    async def back(self, index: int, url: str, instance_id: str) -> None:
        """A new process answers in a replica's place: give it the current weights, then requests.

        Raises:
            InferenceError: it cannot serve them, and gets no requests.
        """
        replica = self._pool.replicas[index]
        replica.url, replica.instance_id = url, instance_id
        await self._bring_up(replica)
        self._gone.discard(replica)
        self.restarts += 1

    async def look(self, *, silence_seconds: float = 0.0) -> dict[int, InferenceError]:
        """Check every replica whose process runs; returns what is wrong with which.

        One that is well but has other weights than the current ones is given these first. One that
        has only just begun not to answer is not named before `silence_seconds`.
        """
        n = len(self._pool.replicas)
        found = await collect(self.look_at(i, silence_seconds=silence_seconds) for i in range(n))
        return {i: error for i, error in enumerate(found) if error is not None}

    async def look_at(self, index: int, *, silence_seconds: float = 0.0) -> InferenceError | None:
        """Check one replica as `look` does; the others need not be waited for."""
        replica = self._pool.replicas[index]
        instance = replica.instance_id
        error = await self._check(replica, silence_seconds)
        is_same = replica not in self._gone and replica.instance_id == instance
        return error if is_same else None

    async def _check(self, replica: Replica, silence_seconds: float) -> InferenceError | None:
        if replica in self._gone:
            return None
        instance = replica.instance_id
        try:
            health = await self._control.health(replica)
            self._silent_since.pop(replica, None)
            self._heard[replica] = (time.monotonic(), health)
            if replica.down is not None or health.get("version") != self._current()[1]:
                await self._bring_up(replica)
        except ServerError as error:
            now = asyncio.get_running_loop().time()
            if replica in self._gone or replica.instance_id != instance:
                return None  # it is another one by now
            if now - self._silent_since.setdefault(replica, now) < silence_seconds:
                return None
            return self._unfit(replica, error)
        except InferenceError as error:
            return self._unfit(replica, error)
        return None

    def _unfit(self, replica: Replica, error: InferenceError) -> InferenceError:
        self._silent_since.pop(replica, None)
        self._pool.mark_down(replica, error)
        return error

    async def _bring_up(self, replica: Replica) -> None:
        """Have a replica serve the current weights, then send it requests.

        Raises:
            InferenceError: it cannot.
        """
        async with self.changing:
            path, version = self._current()
            served = (await self._control.health(replica)).get("version")
            if served != version:
                why = ServerError(f"{replica.url} serves version {served}, not {version}")
                self._pool.mark_down(replica, why)
                if path is None:
                    raise why
                error = await self._control.load_weights(replica, path, version, back=True)
                if error is not None:
                    raise error
            if self._is_paused():
                await self._control.pause("keep", [replica])
            if replica.down is not None:
                logger.info("%s serves version %d and gets requests again", replica.url, version)
                self._pool.mark_up(replica)
