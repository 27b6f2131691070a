"""The one place where HTTP clients are opened.

Traffic inside a run goes through httpx over aiohttp, which costs a fifth of plain httpx's CPU
time per call at 64 calls in flight (``tests/benchmarks/bench_http.py``), and ignores proxy
variables. Traffic to the outside goes through plain httpx and honours them.
"""

import asyncio
import ssl
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Literal, Self

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

Purpose = Literal["generate", "control", "workflow"]
"""``generate``: model calls. ``control``: the servers' control routes. ``workflow``: what workflows
ask of the outside."""

_KEEPALIVE_SECONDS = 60.0
"""Idle sockets are closed after this; our servers keep theirs open for longer."""


class HttpClients:
    """One pooled client a purpose, opened at first use and closed together.

    Owned by the run and bound to the event loop in which it was entered. It may be entered again
    once it was left, also in another loop.
    """

    def __init__(self, *, connect_timeout_seconds: float = 10.0) -> None:
        self._connect_timeout = connect_timeout_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: dict[Purpose, httpx.AsyncClient] = {}

    def get(self, purpose: Purpose) -> httpx.AsyncClient:
        """Return the client for `purpose`; do not close it.

        Only connecting is limited in time: the caller bounds the whole call.

        Raises:
            RuntimeError: outside of ``async with``, or in another event loop.
        """
        if self._loop is None:
            raise RuntimeError("HttpClients is not open: use it inside `async with HttpClients()`")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "these HTTP clients belong to another event loop: open HttpClients in the loop "
                "that uses them, one `async with` for each asyncio.run"
            )
        if purpose not in self._clients:
            self._clients[purpose] = self._open(purpose)
        return self._clients[purpose]

    def _open(self, purpose: Purpose) -> httpx.AsyncClient:
        timeout = httpx.Timeout(None, connect=self._connect_timeout)
        if purpose == "workflow":
            limits = httpx.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_SECONDS)
            return httpx.AsyncClient(timeout=timeout, limits=limits)
        # The session verifies by itself; without a context given, the transport would spend tens
        # of milliseconds on loading certificates into one that is never used.
        unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return httpx.AsyncClient(
            transport=AiohttpTransport(client=_session, verify=unused, trust_env=False),
            timeout=timeout,
            trust_env=False,
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
        """Close every client."""
        clients, self._clients, self._loop = list(self._clients.values()), {}, None
        async with AsyncExitStack() as stack:
            for client in clients:
                stack.push_async_callback(client.aclose)


def _session() -> aiohttp.ClientSession:
    """Open a pool without a limit of its own: the callers bound how much is in flight."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )
