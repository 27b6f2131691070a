"""One answer over one connection: written when it is there, and noted when it was received."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from areal_agent.aio import task_group
from areal_agent.errors import EngineFault, InferenceError, RequestError
from areal_agent.gateway.exchange import Exchange
from areal_agent.gateway.reply import Reply
from areal_agent.gateway.session import Session
from areal_agent.net.api_error import ApiError, error_response


class Writer(Protocol):
    """Turns replies into what a protocol's clients read."""

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """The answer in one piece."""
        ...

    async def stream(self, emit: Callable[[Any], Awaitable[None]]) -> None:
        """The answer as events."""
        ...


class ClientGone(Exception):
    """The client closed the connection before it had all of the answer."""


class Answer(Response):
    """Waits for an exchange and writes it; the exchange is delivered when all was sent."""

    def __init__(
        self, session: Session, exchange: Exchange, writer: Writer, *, stream: bool
    ) -> None:
        super().__init__()
        self._session = session
        self._exchange = exchange
        self._writer = writer
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client leaves first."""
        try:
            async with self._exchange.reading(), task_group() as group:
                watcher = group.create_task(_until_gone(receive))
                if self._stream:
                    await self._write_events(scope, receive, send)
                else:
                    await self._write_whole(scope, receive, send)
                watcher.cancel()
        except ClientGone:
            self._session.left(self._exchange)

    async def _write_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = orjson.dumps(self._writer.whole(await self._exchange.result()))
        except (ApiError, InferenceError) as error:
            await error_response(told(error))(scope, receive, send)
            return
        await Response(body, media_type="application/json")(scope, receive, send)
        self._exchange.deliver()

    async def _write_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async def emit(event: Any) -> None:
            await write(b"data: " + orjson.dumps(event) + b"\n\n")

        try:
            await self._exchange.started()
        except (ApiError, InferenceError) as error:
            await error_response(told(error))(scope, receive, send)
            return
        await send(_EVENTS_START)
        try:
            await self._writer.stream(emit)
        except (ApiError, InferenceError) as error:
            await emit(told(error).body)
            await write(b"", more=False)
            return
        await write(b"data: [DONE]\n\n")
        await write(b"", more=False)
        self._exchange.deliver()


_EVENTS_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ],
}


def told(error: ApiError | InferenceError) -> ApiError:
    """What a client is told of an error: what may pass is one that SDKs try again."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(str(error))
    code = "engine_fault" if isinstance(error, EngineFault) else "engine_unavailable"
    return ApiError(str(error), status=503, type="server_error", code=code)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone
