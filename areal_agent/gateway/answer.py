"""One answer over one connection: written when it is there, and noted when it was received."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from areal_agent.aio import task_group
from areal_agent.errors import EngineFault, InferenceError, LimitReached, RequestError
from areal_agent.gateway.exchange import Exchange
from areal_agent.gateway.session import Session
from areal_agent.gateway.transport import CANCELS
from areal_agent.gateway.writer import Writer
from areal_agent.net.api_error import ApiError, error_response


@dataclass(frozen=True, slots=True)
class Wire:
    """How a protocol puts errors and events on the wire."""

    error: Callable[[ApiError], dict[str, Any]]
    """The body of an error."""
    events_are_named: bool
    """Events have a ``type``, which is sent before them as well; an error is an event too."""
    done: bytes
    """Sent after the last event."""

    def event(self, event: Any) -> bytes:
        """One server-sent event."""
        name = b"event: " + event["type"].encode() + b"\n" if self.events_are_named else b""
        return name + b"data: " + orjson.dumps(event) + b"\n\n"

    def failed(self, error: ApiError) -> bytes:
        """The event that ends a stream which cannot go on."""
        body = self.error(error)
        return self.event({"type": "error", **body} if self.events_are_named else body)


CHUNKS = Wire(lambda error: error.body, events_are_named=False, done=b"data: [DONE]\n\n")
"""OpenAI's completions."""

EVENTS = Wire(lambda error: error.body, events_are_named=True, done=b"")
"""OpenAI's responses."""


class ClientGone(Exception):
    """The client closed the connection before it had all of the answer."""


class Answer(Response):
    """Waits for an exchange and writes it; the exchange is delivered when all was sent."""

    def __init__(
        self,
        session: Session,
        exchange: Exchange,
        writer: Writer[Any],
        *,
        stream: bool,
        wire: Wire = CHUNKS,
    ) -> None:
        super().__init__()
        self._wire = wire
        self._session = session
        self._exchange = exchange
        self._writer = writer
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client leaves first."""
        try:
            with self._session.in_use(), self._exchange.reading():
                if CANCELS in scope.get("extensions", ()):
                    await self._write(scope, receive, send)
                else:
                    async with task_group() as group:
                        watcher = group.create_task(until_gone(receive))
                        await self._write(scope, receive, send)
                        watcher.cancel()
        except (ClientGone, OSError):
            pass  # there is nobody to tell
        finally:
            self._session.left(self._exchange)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._stream:
            await self._write_events(scope, receive, send)
        else:
            await self._write_whole(scope, receive, send)

    async def _write_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = orjson.dumps(self._writer.whole(await self._exchange.result()))
        except (ApiError, InferenceError) as error:
            await self._error(error)(scope, receive, send)
            return
        length = (b"content-length", str(len(body)).encode())
        await send(_start(length, (b"content-type", b"application/json")))
        await send({"type": "http.response.body", "body": body})
        self._session.deliver(self._exchange)

    async def _write_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async def emit(event: Any) -> None:
            await write(self._wire.event(event))

        try:
            await self._exchange.started()
        except (ApiError, InferenceError) as error:
            await self._error(error)(scope, receive, send)
            return
        await send(_EVENTS_START)
        try:
            await self._writer.stream(emit)
        except (ApiError, InferenceError) as error:
            await write(self._wire.failed(told(error)))
            await write(b"", more=False)
            return
        self._session.deliver(self._exchange)  # some clients read no further
        await write(self._wire.done)
        await write(b"", more=False)

    def _error(self, error: ApiError | InferenceError) -> Response:
        known = told(error)
        return error_response(known, self._wire.error(known))


def _start(*headers: tuple[bytes, bytes]) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": list(headers)}


_EVENTS_START = _start(
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def told(error: ApiError | InferenceError) -> ApiError:
    """What a client is told of an error: what may pass is one that SDKs try again."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        limit = isinstance(error, LimitReached)
        return ApiError(str(error), code="episode_limit_reached" if limit else None)
    code = "engine_fault" if isinstance(error, EngineFault) else "engine_unavailable"
    return ApiError(str(error), status=503, type="server_error", code=code)


async def until_gone(receive: Receive) -> None:
    """Wait for the client to leave.

    Raises:
        ClientGone: it did.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone
