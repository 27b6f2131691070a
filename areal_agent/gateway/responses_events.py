"""Answers of the responses dialect: items with ids of their own, whole or as events."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from areal_agent.gateway.exchange import Exchange
from areal_agent.gateway.pieces import text_pieces
from areal_agent.gateway.reply import Reply
from areal_agent.gateway.session import Session

Emit = Callable[[Any], Awaitable[None]]
"""Sends one server-sent event."""


Echo = Mapping[str, Any]
"""What answers repeat of their request."""


class ResponseAnswer:
    """Writes the answer to one call: a message, then the calls of functions.

    A reply that is only calls has no message.
    """

    def __init__(self, session: Session, exchange: Exchange, model: str, echo: Echo) -> None:
        self._session = session
        self._exchange = exchange
        self._model = model
        self._echo = echo
        self._name = exchange.id.rpartition("_")[2]

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """The answer in one piece."""
        [reply] = replies
        was_cut = reply.finish_reason not in ("stop", "tool_calls")
        status = "incomplete" if was_cut else "completed"
        text, calls = reply.message["content"], reply.message.get("tool_calls", ())
        output = [self._message(text, status)] if text or not calls else []
        output += [self._call(k, call) for k, call in enumerate(calls)]
        prompt, sampled = self._exchange.n_tokens
        reason = "max_output_tokens" if reply.finish_reason == "length" else None
        return {
            **self._head(status),
            "incomplete_details": {"reason": reason} if was_cut else None,
            "output": output,
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": sampled,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + sampled,
            },
        }

    async def stream(self, emit: Emit) -> None:
        """The answer as events; they tell the same as the answer in one piece."""
        n_sent = 0

        async def send(kind: str, **fields: Any) -> None:
            nonlocal n_sent
            event = {"type": f"response.{kind}", "sequence_number": n_sent, **fields}
            n_sent += 1
            await emit(event)

        begun = self._head("in_progress")
        await send("created", response=begun)
        await send("in_progress", response=begun)
        where = {"item_id": f"msg_{self._name}", "output_index": 0, "content_index": 0}
        is_open = False
        async for piece in text_pieces(self._session.chat, self._exchange):
            if not is_open:
                await self._open_message(send, where)
                is_open = True
            await send("output_text.delta", **where, delta=piece, logprobs=[])
        response = self.whole(await self._exchange.result())
        for k, item in enumerate(response["output"]):
            if item["type"] == "function_call":
                await self._send_call(send, k, item)
                continue
            if not is_open:
                await self._open_message(send, where)
            part = item["content"][0]
            await send("output_text.done", **where, text=part["text"], logprobs=[])
            await send("content_part.done", **where, part=part)
            await send("output_item.done", output_index=k, item=item)
        await send(response["status"], response=response)

    async def _open_message(self, send: Callable[..., Awaitable[None]], where: Any) -> None:
        item = {**self._message("", "in_progress"), "content": []}
        await send("output_item.added", output_index=0, item=item)
        await send("content_part.added", **where, part=_part(""))

    async def _send_call(
        self, send: Callable[..., Awaitable[None]], k: int, item: dict[str, Any]
    ) -> None:
        begun = {**item, "arguments": "", "status": "in_progress"}
        where = {"item_id": item["id"], "output_index": k}
        await send("output_item.added", output_index=k, item=begun)
        await send("function_call_arguments.delta", **where, delta=item["arguments"])
        arguments = item["arguments"]
        await send("function_call_arguments.done", **where, name=item["name"], arguments=arguments)
        await send("output_item.done", output_index=k, item=item)

    def _head(self, status: str) -> dict[str, Any]:
        gconfig = self._exchange.call.gconfig
        return {
            "id": self._exchange.id,
            "object": "response",
            "created_at": self._exchange.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            **self._echo,
            "temperature": gconfig.effective_temperature,
            "top_p": gconfig.top_p,
            "max_output_tokens": gconfig.max_new_tokens,
            "output": [],
            "usage": None,
        }

    def _message(self, text: str, status: str) -> dict[str, Any]:
        return {
            "type": "message",
            "id": f"msg_{self._name}",
            "role": "assistant",
            "status": status,
            "content": [_part(text)],
        }

    def _call(self, k: int, call: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": f"fc_{self._name}_{k}",
            "call_id": call["id"],
            "status": "completed",
            **call["function"],
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
