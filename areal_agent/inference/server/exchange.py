"""One request over one connection: wait or stream, and notice when the client leaves."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from areal_agent.aio import task_group
from areal_agent.errors import InferenceError
from areal_agent.inference.engine.request import Generation
from areal_agent.inference.engine.ticket import Ticket
from areal_agent.inference.server.errors import as_api_error

Emit = Callable[[Any], Awaitable[None]]


async def results(tickets: Sequence[Ticket], receive: Receive) -> list[Generation]:
    """Wait for all; a client that leaves cancels them.

    Raises:
        EngineFault: the engine broke.
    """
    try:
        async with task_group() as group:
            watcher = group.create_task(_cancel_on_disconnect(tickets, receive))
            found = [await ticket.result() for ticket in tickets]
            watcher.cancel()
    finally:
        _cancel(tickets)
    return found


class EventStream(Response):
    """Server-sent events, written by `produce`, which is given a function that sends one."""

    def __init__(
        self, tickets: Sequence[Ticket], produce: Callable[[Emit], Awaitable[None]]
    ) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._tickets = tickets
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, the events, and the end."""

        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async def emit(event: Any) -> None:
            await write(b"data: " + orjson.dumps(event) + b"\n\n")

        head: Message = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(head)
        try:
            async with task_group() as group:
                watcher = group.create_task(_cancel_on_disconnect(self._tickets, receive))
                await self._produce(emit)
                watcher.cancel()
            await write(b"data: [DONE]\n\n")
        except InferenceError as error:
            await emit(as_api_error(error).body)
        finally:
            _cancel(self._tickets)
        await write(b"", more=False)


async def _cancel_on_disconnect(tickets: Sequence[Ticket], receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    _cancel(tickets)


def _cancel(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        ticket.cancel()
