"""Which replica gets a request: the one that has its cache, else the one with the least to do."""

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from areal_agent.aio import Flag
from areal_agent.errors import EngineFault, InferenceError, ServerError

_MAX_IDLE_ROUTES = 8192
"""Finished conversations whose replica is remembered, in case they go on."""


@dataclass(slots=True, eq=False)
class Replica:
    """One server."""

    url: str
    instance_id: str | None = None
    """What its health check must say it is; None before it was asked."""
    running: int = 0
    """Requests in flight."""
    refused_since: float | None = None
    """Loop time of the first connection refused in a row."""
    down: InferenceError | None = None
    """Why it gets no more requests."""
    expected: bool = False
    """Somebody brings it back when it is down."""
    calls: set[asyncio.Timeout] = field(default_factory=set[asyncio.Timeout])
    """Deadlines of the requests in flight; they pass when it goes down."""


@dataclass(slots=True)
class _Route:
    replica: Replica | None = None
    live: int = 0


class ReplicaPool:
    """The replicas and the conversations that stick to them."""

    def __init__(self, urls: Sequence[str]) -> None:
        if not urls:
            raise ValueError("expected at least one server URL, got none")
        self.replicas = [Replica(url.rstrip("/")) for url in urls]
        self._routes: OrderedDict[str, _Route] = OrderedDict()
        self._turn = itertools.count()
        self._last_down: InferenceError | None = None
        self._changed = Flag()

    @property
    def up(self) -> list[Replica]:
        """Those that get requests."""
        return [replica for replica in self.replicas if replica.down is None]

    @property
    def expected(self) -> list[Replica]:
        """Those that somebody brings back when they are down."""
        return [replica for replica in self.replicas if replica.expected]

    def mark_down(self, replica: Replica, why: InferenceError) -> None:
        """Send `replica` no more requests; those in flight there move to another one."""
        if replica.down is None:
            replica.down = why
            self._last_down = why
            for limit in replica.calls:
                if not limit.expired():
                    limit.reschedule(0.0)

    def mark_up(self, replica: Replica) -> None:
        """Send `replica` requests again."""
        replica.down = None
        replica.refused_since = None
        self._changed.set()

    def give_up(self, replica: Replica) -> None:
        """Nobody brings `replica` back any more."""
        replica.expected = False
        self._changed.set()

    async def wait_for_one(self) -> None:
        """Wait until a replica gets requests, while one that is down is expected back.

        Raises:
            ServerError: none is (EngineFault when that is how the last one ended).
        """
        while not self.up:
            if not self.expected:
                raise self._none_left()
            self._changed.clear()
            await self._changed.wait()

    def choose(self, rid: str | None = None, *, avoid: Replica | None = None) -> Replica:
        """Return the replica for conversation `rid`, another one than `avoid` if there is one.

        Raises:
            ServerError: no replica is left (EngineFault when that is how the last one ended).
        """
        up = self.up
        if not up:
            raise self._none_left()
        route = self._routes.get(rid) if rid is not None else None
        known = None if route is None else route.replica
        if known is not None and known.down is None and known is not avoid:
            return known
        others = [replica for replica in up if replica is not avoid] or up
        start = next(self._turn) % len(others)
        chosen = min(others[start:] + others[:start], key=lambda replica: replica.running)
        if route is not None:
            route.replica = chosen
        return chosen

    def _none_left(self) -> InferenceError:
        last = self._last_down
        text = f"no replica of {len(self.replicas)} is left; the last one: {last}"
        return EngineFault(text) if isinstance(last, EngineFault) else ServerError(text)

    @contextmanager
    def conversation(self, rid: str) -> Generator[None]:
        """Keep `rid` on one replica while the body runs, and for a while afterwards."""
        route = self._routes.pop(rid, None) or _Route()
        self._routes[rid] = route
        route.live += 1
        try:
            yield
        finally:
            route.live -= 1
            if len(self._routes) > _MAX_IDLE_ROUTES:
                self._evict()

    def _evict(self) -> None:
        """Forget the oldest conversation without a request in flight."""
        idle = next((rid for rid, route in self._routes.items() if not route.live), None)
        if idle is not None:
            del self._routes[idle]
