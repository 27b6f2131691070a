"""An app that clients of this process reach without a socket, and others at a URL."""

import asyncio
import importlib.util
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import httpx
from starlette.types import ASGIApp

from areal_agent.aio import task_group
from areal_agent.errors import ConfigError
from areal_agent.gateway.transport import streaming_client
from areal_agent.net.serve import ServerHandle, base_url, bind, serve

if TYPE_CHECKING:  # most of a second to import
    from openai import AsyncOpenAI

_INSIDE = "http://gateway.inside"
"""A name that no socket is opened for."""


class Reachable:
    """Where a gateway answers.

    Lifetime: an async context manager. Entered means that it answers clients of this process, and
    others as soon as it was asked for a URL.
    """

    def __init__(self, app: ASGIApp, *, host: str, port: int) -> None:
        """Wire things up; nothing listens before it is entered.

        Args:
            app: what answers.
            host: to listen on.
            port: to listen on, from the start; 0 lets the system choose, when a URL is asked for.
        """
        self.app = app
        self._host = host
        self._port = port
        self._stack: AsyncExitStack | None = None
        self._group: asyncio.TaskGroup | None = None
        self._url = ""
        self._server: asyncio.Future[ServerHandle] | None = None
        self._http_client: httpx.AsyncClient | None = None
        self._httpx2_client: Any = None

    @property
    def url(self) -> str:
        """Where it listens, without ``/v1``. It listens once it was asked.

        Raises:
            RuntimeError: the gateway is not entered.
            LaunchError: the host is none of this machine.
        """
        if self._group is None:
            raise RuntimeError("the gateway is not open: use it inside `async with gateway`")
        return self._url or self._listen(self._group)

    @property
    def http_client(self) -> httpx.AsyncClient:
        """A client whose requests, whatever their host, go to the gateway without a socket.

        Raises:
            RuntimeError: the gateway is not entered.
        """
        if self._http_client is None:
            raise RuntimeError("the gateway is not open: use it inside `async with gateway`")
        return self._http_client

    @property
    def httpx2_client(self) -> Any:
        """Return the like for SDKs built on httpx2: an ``httpx2.AsyncClient``, made when asked for.

        Raises:
            ConfigError: httpx2 is not installed.
            RuntimeError: the gateway is not entered.
        """
        if self._group is None:
            raise RuntimeError("the gateway is not open: use it inside `async with gateway`")
        if self._httpx2_client is None:
            if importlib.util.find_spec("httpx2") is None:
                raise ConfigError(
                    "httpx2 is not installed, and nothing here needs it but SDKs that bring it "
                    "along: name `http_client` instead, an httpx.AsyncClient"
                )
            self._httpx2_client = streaming_client(self.app, self._group, "httpx2")
        return self._httpx2_client

    def client_with(self, key: str) -> "AsyncOpenAI":
        """Return an OpenAI client of this process that has a key."""
        from openai import AsyncOpenAI

        inside = cast("Any", self.http_client)  # openai 3 names httpx2 in its types, takes both
        return AsyncOpenAI(api_key=key, base_url=f"{_INSIDE}/v1", http_client=inside)

    async def __aenter__(self) -> Self:
        """Open it, and listen where a port is set.

        Raises:
            LaunchError: the port is taken.
        """
        if self._stack is not None:
            raise RuntimeError("the gateway is open already")
        async with AsyncExitStack() as stack:
            self._group = group = await stack.enter_async_context(task_group())
            stack.push_async_callback(self._stop_listening)
            self._http_client = await stack.enter_async_context(
                streaming_client(self.app, group, "httpx")
            )
            stack.push_async_callback(self._close_httpx2)
            if self._port:
                self._listen(group)
            self._stack = stack.pop_all()
        return self

    def _listen(self, group: asyncio.TaskGroup) -> str:
        """Start to listen; who connects before the server runs waits for it."""
        sock = bind(self._host, self._port)
        self._url = base_url(self._host, sock.getsockname()[1])
        self._server = server = asyncio.Future[ServerHandle]()
        group.create_task(serve(self.app, sock, on_ready=server.set_result, signals=False))
        return self._url

    async def _stop_listening(self) -> None:
        server, self._server, self._url = self._server, None, ""
        if server is not None:
            (await server).stop()

    async def _close_httpx2(self) -> None:
        client, self._httpx2_client = self._httpx2_client, None
        if client is not None:
            await client.aclose()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop listening, and wait until every request has ended."""
        stack, self._stack = self._stack, None
        assert stack is not None
        self._http_client = self._group = None
        await stack.__aexit__(exc_type, exc, traceback)
