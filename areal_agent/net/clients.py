"""The one place where HTTP clients are opened.

Traffic inside a run goes through `InternalClient` and ignores proxy variables. Traffic to the
outside goes through httpx and honours them.
"""

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import httpx

from areal_agent.net.internal import InternalClient

_KEEPALIVE_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_LEAST_CONNECTIONS = 100
_CONNECTIONS_AN_EPISODE = 2
"""An episode may read a stream and ask for something meanwhile."""


def external_client(
    *, connect_timeout_seconds: float = _CONNECT_SECONDS, max_connections: int = _LEAST_CONNECTIONS
) -> httpx.AsyncClient:
    """Open a client for the outside; it limits only connecting in time.

    Waiting for one of its connections is no failure: it takes as long as it takes, within what
    bounds the call.
    """
    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=connect_timeout_seconds),
        limits=httpx.Limits(
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=_KEEPALIVE_SECONDS,
        ),
    )


def connections_for(episodes: int) -> int:
    """How many connections to the outside so many episodes share."""
    return max(_CONNECTIONS_AN_EPISODE * episodes, _LEAST_CONNECTIONS)


class HttpClients:
    """One pooled client inside the run and one for the outside, opened at first use.

    Owned by the run and bound to the event loop in which it was entered. It may be entered again
    once it was left, also in another loop. Both clients limit only connecting in time: the caller
    bounds the whole call. They are closed together; do not close them yourself.
    """

    def __init__(
        self, *, max_episodes: int = 1, connect_timeout_seconds: float = _CONNECT_SECONDS
    ) -> None:
        """Wire things up; nothing is opened.

        Args:
            max_episodes: most that are in flight: the outside's pool is as large as they need.
            connect_timeout_seconds: for one connection.
        """
        self._max_episodes = max_episodes
        self._connect_timeout = connect_timeout_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._internal: InternalClient | None = None
        self._external: httpx.AsyncClient | None = None

    def internal(self) -> InternalClient:
        """Return the client for the run's own servers.

        Raises:
            RuntimeError: outside of ``async with``, or in another event loop.
        """
        self._check_loop()
        if self._internal is None:
            self._internal = InternalClient(connect_timeout_seconds=self._connect_timeout)
        return self._internal

    def external(self) -> httpx.AsyncClient:
        """Return the client for what workflows ask of the outside.

        Raises:
            RuntimeError: outside of ``async with``, or in another event loop.
        """
        self._check_loop()
        if self._external is None:
            self._external = external_client(
                connect_timeout_seconds=self._connect_timeout,
                max_connections=connections_for(self._max_episodes),
            )
        return self._external

    def _check_loop(self) -> None:
        if self._loop is None:
            raise RuntimeError("HttpClients is not open: use it inside `async with HttpClients()`")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "these HTTP clients belong to another event loop: open HttpClients in the loop "
                "that uses them, one `async with` for each asyncio.run"
            )

    async def __aenter__(self) -> Self:
        """Bind to the running loop."""
        if self._loop is not None:
            raise RuntimeError("HttpClients is already open: enter it once, pass it on")
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close both clients."""
        clients = [client for client in (self._internal, self._external) if client is not None]
        self._internal = self._external = self._loop = None
        async with AsyncExitStack() as stack:
            for client in clients:
                stack.push_async_callback(client.aclose)
