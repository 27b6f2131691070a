"""Clients in this process reach an ASGI app without a socket, and answers stream.

httpx has an ASGI transport of its own, but it holds a body back until it is whole. SDKs are built
on httpx or on httpx2, which differ in their names only.
"""

import asyncio
import importlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Literal

from starlette.types import ASGIApp, Message

from areal_agent.aio import Flag, collect

CANCELS = "areal_agent.cancels"
"""An ASGI extension of this transport: who leaves has its request cancelled, so that the app need
not listen for it, in a task of its own, as over a socket."""


Library = Literal["httpx", "httpx2"]
"""What a client is of."""


def streaming_client(app: ASGIApp, group: asyncio.TaskGroup, library: Library) -> Any:
    """Make an ``AsyncClient`` of `library` whose requests, whatever their host, go to `app`.

    Each is answered in a task of `group`. The library is imported here.
    """
    module: Any = importlib.import_module(library)
    stream = type("_Stream", (_Stream, module.AsyncByteStream), {"closed": module.StreamClosed})
    transport = type("_Transport", (ASGIStreamTransport, module.AsyncBaseTransport), {})(
        app, group, module=module, stream=stream
    )
    return module.AsyncClient(transport=transport, timeout=None, trust_env=False)


class ASGIStreamTransport:
    """Sends requests to `app`, each in a task of `group`; closing a response ends its request."""

    def __init__(
        self, app: ASGIApp, group: asyncio.TaskGroup, *, module: Any, stream: "type[_Stream]"
    ) -> None:
        self._app = app
        self._group = group
        self._module = module
        self._stream = stream
        self._open: set[_Exchange] = set()

    async def handle_async_request(self, request: Any) -> Any:
        """Return once the head of the answer is there.

        Raises:
            ReadTimeout: it took longer than the request's read timeout.
        """
        body = await request.aread()
        seconds = request.extensions.get("timeout", {}).get("read")
        exchange = _Exchange(self._app, _scope(request), body, seconds, self._module)
        exchange.start(self._group, self._open)
        try:
            status, headers = await exchange.head()
        except BaseException:
            await exchange.aclose()
            raise
        return self._module.Response(status, headers=headers, stream=self._stream(exchange))

    async def aclose(self) -> None:
        """End what clients have left open."""
        await collect(exchange.aclose() for exchange in list(self._open))


def _scope(request: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.split(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
        "extensions": {CANCELS: {}},
    }


class _Exchange:
    """One request inside the app.

    The app goes on when the client has taken what it sent: what an early close leaves behind was
    not received.
    """

    def __init__(
        self,
        app: ASGIApp,
        scope: dict[str, Any],
        body: bytes,
        read_seconds: float | None,
        module: Any,
    ) -> None:
        self._app = app
        self._module = module
        self._scope = scope
        self._body: bytes | None = body
        self._sent: list[Message | Exception | None] = []
        """What the client has not taken yet."""
        self._arrived = Flag()
        self._read_seconds = read_seconds
        self._taken = Flag()
        self._gone = Flag()
        self._ended = Flag()
        self._is_whole = False
        """The client has all of the answer."""
        self._task: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup, running: "set[_Exchange]") -> None:
        """Let the app answer in a task; it is one of `running` until it ends."""

        def end(_: asyncio.Task[None]) -> None:
            running.discard(self)
            self._put(None)
            self._ended.set()

        running.add(self)
        self._task = group.create_task(self._run())
        self._task.add_done_callback(end)

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - the client gets it, as over a socket
            self._put(error)

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Return status and headers.

        Raises:
            RemoteProtocolError: the app ended or failed before it sent any.
            ReadTimeout: it took too long.
        """
        message = await self._next()
        if not isinstance(message, dict) or message["type"] != "http.response.start":
            raise self._module.RemoteProtocolError(f"the app sent no answer: {message!r}")
        return message["status"], list(message.get("headers", []))

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body as it is sent.

        Raises:
            RemoteProtocolError: the app failed midway.
            ReadTimeout: a part took too long.
        """
        while True:
            message = await self._next()
            if not isinstance(message, dict):
                raise self._module.RemoteProtocolError(f"the app broke off: {message!r}")
            if message["type"] == "http.response.body":
                self._is_whole = not message.get("more_body", False)
                if message.get("body"):
                    yield message["body"]
                if self._is_whole:
                    return

    async def _next(self) -> Message | Exception | None:
        if not self._sent:
            self._arrived.clear()
            try:
                async with asyncio.timeout(self._read_seconds):
                    await self._arrived.wait()
            except TimeoutError as error:
                text = f"no answer in {self._read_seconds} s"
                raise self._module.ReadTimeout(text) from error
        self._taken.set()
        return self._sent.pop(0)

    def _put(self, message: Message | Exception | None) -> None:
        self._sent.append(message)
        self._arrived.set()

    def leave(self) -> None:
        """The client goes; an app that has not yet told all is cancelled.

        Not before it has heard what was taken.
        """
        self._gone.set()
        if self._task is not None and not self._task.done() and not self._is_whole:
            self._task.get_loop().call_soon(self._task.cancel)

    async def aclose(self) -> None:
        """The client goes; wait until the app has ended."""
        self.leave()
        await self._ended.wait()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set():
            raise OSError("the client has gone")
        self._put(message)
        while message.get("body") and self._sent:
            self._taken.clear()
            await self._taken.wait()


class _Stream:
    """The body of an answer; made one of the library's own streams by `streaming_client`.

    httpx leaves answers in cycles; one that was closed keeps no request alive until these are
    collected.
    """

    closed: type[Exception]
    """What reading it raises afterwards."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange: _Exchange | None = exchange

    def __aiter__(self) -> AsyncIterator[bytes]:
        if self._exchange is None:
            raise self.closed
        return self._exchange.chunks()

    async def aclose(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.aclose()

    def __del__(self) -> None:
        if self._exchange is not None:
            self._exchange.leave()  # nobody can read it any more
