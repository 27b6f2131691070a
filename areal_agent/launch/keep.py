"""Keep servers running: what ends by itself is started again, within a budget."""

import asyncio
import logging
from typing import Protocol

from areal_agent.aio import collect
from areal_agent.errors import InferenceError, LaunchError
from areal_agent.launch.local import ServerGroup

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 30.0


class ServerListener(Protocol):
    """Hears of servers that go and come back; they are known by their index."""

    def gone(self, index: int, why: Exception, *, returns: bool) -> None:
        """Its process has ended; with `returns` another one is being started."""
        ...

    async def back(self, index: int, url: str, instance_id: str) -> None:
        """Another process answers in its place.

        Raises:
            InferenceError: it is of no use and is to be replaced, too.
        """
        ...


async def keep_running(group: ServerGroup, listener: ServerListener, *, max_restarts: int) -> None:
    """Watch over servers, and start each again up to `max_restarts` times.

    Returns once all were stopped by us. While one is left, the others may be lost.

    Raises:
        LaunchError: none is left; names the last one and how it ended.
    """
    keeper = _Keeper(group, listener, max_restarts)
    await collect(keeper.keep(index) for index in range(len(group.servers)))


class _Keeper:
    def __init__(self, group: ServerGroup, listener: ServerListener, max_restarts: int) -> None:
        self._group = group
        self._listener = listener
        self._max_restarts = max_restarts
        self._left = len(group.servers)

    async def keep(self, index: int) -> None:
        """Look after one server until it is stopped by us, or lost."""
        restarts = 0
        while True:
            try:
                await self._group.servers[index].wait_died()
                return
            except LaunchError as error:
                died: Exception = error
            while restarts < self._max_restarts:
                restarts += 1
                self._listener.gone(index, died, returns=True)
                logger.warning(
                    "%s\nstarting it again (%d of %d)", died, restarts, self._max_restarts
                )
                try:
                    await self._replace(index, pause=_FIRST_PAUSE_SECONDS * 4 ** (restarts - 1))
                except (LaunchError, InferenceError) as error:
                    died = error
                else:
                    break
            else:
                await self._lose(index, died)
                return

    async def _replace(self, index: int, *, pause: float) -> None:
        await self._group.stop(index)
        await asyncio.sleep(min(pause, _LONGEST_PAUSE_SECONDS))
        endpoint = await self._group.restart(index)
        await self._listener.back(index, endpoint.url, endpoint.instance_id)

    async def _lose(self, index: int, died: Exception) -> None:
        self._listener.gone(index, died, returns=False)
        await self._group.stop(index)
        self._left -= 1
        if self._left:
            logger.error("%s\nit is left out; %d servers go on", died, self._left)
            return
        n = len(self._group.servers)
        if n == 1 and not self._max_restarts:
            raise died
        times = f", each started again {self._max_restarts} times" if self._max_restarts else ""
        raise LaunchError(
            f"none of {n} inference servers is left{times} (rollout.server.max_restarts); the last "
            f"one: {died}"
        ) from died
