"""Clients in this process reach an ASGI app without a socket, and answers stream.

httpx has an ASGI transport of its own, but it holds a body back until it is whole.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
from starlette.types import ASGIApp, Message


class ASGIStreamTransport(httpx.AsyncBaseTransport):
    """Sends requests to `app`, each in a task of `group`; closing a response ends its request."""

    def __init__(self, app: ASGIApp, group: asyncio.TaskGroup) -> None:
        self._app = app
        self._group = group

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return once the head of the answer is there."""
        body = await request.aread()
        exchange = _Exchange(self._app, _scope(request), body)
        exchange.task = self._group.create_task(exchange.run())
        try:
            status, headers = await exchange.head()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx.Response(status, headers=headers, stream=_Stream(exchange))


def _scope(request: httpx.Request) -> dict[str, Any]:
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
    }


class _Exchange:
    """One request inside the app."""

    def __init__(self, app: ASGIApp, scope: dict[str, Any], body: bytes) -> None:
        self._app = app
        self._scope = scope
        self._body: bytes | None = body
        self._sent: asyncio.Queue[Message | Exception | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Let the app answer; what it raises is handed to the client."""
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - the client gets it, as over a socket
            self._sent.put_nowait(error)
        else:
            self._sent.put_nowait(None)

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Return status and headers.

        Raises:
            httpx.RemoteProtocolError: the app ended or failed before it sent any.
        """
        message = await self._sent.get()
        if not isinstance(message, dict) or message["type"] != "http.response.start":
            raise httpx.RemoteProtocolError(f"the app sent no answer: {message!r}")
        return message["status"], list(message.get("headers", []))

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body as it is sent.

        Raises:
            httpx.RemoteProtocolError: the app failed midway.
        """
        while True:
            message = await self._sent.get()
            if not isinstance(message, dict):
                raise httpx.RemoteProtocolError(f"the app broke off: {message!r}")
            if message["type"] == "http.response.body":
                if message.get("body"):
                    yield message["body"]
                if not message.get("more_body", False):
                    return

    async def aclose(self) -> None:
        """Tell the app that the client has gone, and wait until it has ended."""
        self._gone.set()
        if self.task is not None:
            await asyncio.wait([self.task])

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self._sent.put_nowait(message)
        if message.get("more_body"):
            await asyncio.sleep(0)  # the reader keeps up, as a socket would make the writer wait


class _Stream(httpx.AsyncByteStream):
    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._exchange.chunks()

    async def aclose(self) -> None:
        await self._exchange.aclose()
