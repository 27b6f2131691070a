"""Opens a session for each episode, and hands out the clients that reach it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self, cast

import httpx
from openai import AsyncOpenAI

from areal_agent.aio import run_shielded, task_group
from areal_agent.data.chat import ChatFormat
from areal_agent.gateway.app import make_app
from areal_agent.gateway.session import ABANDONED_SECONDS, Session
from areal_agent.gateway.sessions import Sessions
from areal_agent.gateway.transport import ASGIStreamTransport
from areal_agent.inference.base import InferenceEngine
from areal_agent.net.serve import ServerHandle, base_url, bind, serve
from areal_agent.types import GenerationHyperparameters

_INSIDE = "http://gateway.inside"
"""A name that no socket is opened for."""


class Gateway:
    """Answers agents that speak OpenAI's protocol, in this process and over HTTP.

    Lifetime: an async context manager. Entered means that it answers clients of this process, and
    others as soon as it was asked for a URL; left means that every session is sealed.
    """

    def __init__(
        self,
        chat: ChatFormat,
        *,
        model: str,
        host: str = "127.0.0.1",
        port: int = 0,
        abandoned_seconds: float = ABANDONED_SECONDS,
    ) -> None:
        """Wire things up; nothing listens before it is entered.

        Args:
            chat: writes the policy's dialogues.
            model: the policy's name.
            host: to listen on.
            port: to listen on, from the start; 0 lets the system choose, when a URL is asked for.
            abandoned_seconds: how long a reply is sampled on after its client has left.
        """
        self.sessions = Sessions()
        self.app = make_app(self.sessions, model=model)
        self.model = model
        self._chat = chat
        self._host = host
        self._port = port
        self._abandoned_seconds = abandoned_seconds
        self._stack: AsyncExitStack | None = None
        self._group: asyncio.TaskGroup | None = None
        self._url = ""
        self._server: asyncio.Future[ServerHandle] | None = None
        self._http_client: httpx.AsyncClient | None = None

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

    @asynccontextmanager
    async def session(
        self, engine: InferenceEngine, gconfig: GenerationHyperparameters, *, trained: bool
    ) -> AsyncGenerator[Session]:
        """Open a session; leaving seals it and forgets its key."""
        assert self._group is not None, "the gateway is not open"
        session = Session(
            engine,
            self._chat,
            gconfig,
            self._group,
            trained=trained,
            abandoned_seconds=self._abandoned_seconds,
        )
        self.sessions.add(session)
        try:
            yield session
        finally:
            try:
                await run_shielded(session.seal())
            finally:
                self.sessions.remove(session)

    def client(self, session: Session) -> AsyncOpenAI:
        """Return an OpenAI client of this process for one session."""
        inside = cast("Any", self.http_client)  # openai 3 names httpx2 in its types, takes both
        return AsyncOpenAI(api_key=session.key, base_url=f"{_INSIDE}/v1", http_client=inside)

    def base_url(self, session: Session) -> str:
        """Return the URL for clients of one session that can set no key."""
        return f"{self.url}/s/{session.path_name}/v1"

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
            transport = ASGIStreamTransport(self.app, group)
            self._http_client = await stack.enter_async_context(
                httpx.AsyncClient(transport=transport, timeout=None, trust_env=False)
            )
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
