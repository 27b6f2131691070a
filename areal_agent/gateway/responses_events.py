"""Answers of the responses dialect: items with ids of their own, whole or as events."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from areal_agent.gateway.pieces import reply_pieces
from areal_agent.gateway.reply import Reply
from areal_agent.gateway.writer import Emit, Writer

Send = Callable[..., Awaitable[None]]
"""Makes an event of its kind and its fields, and sends it."""

_PARTS: dict[str, dict[str, Any]] = {
    "reasoning": {"type": "reasoning_text", "text": ""},
    "message": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
}
"""What items hold before the calls, as it begins."""


Echo = Mapping[str, Any]
"""What answers repeat of their request."""


class ResponseWriter(Writer[Echo]):
    """Writes the answer to one call: reasoning, a message, then the calls of functions.

    A reply that is only calls or only reasoning has no message.
    """

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """The answer in one piece."""
        [reply] = replies
        was_cut = reply.finish_reason not in ("stop", "tool_calls")
        status = "incomplete" if was_cut else "completed"
        text, calls = reply.message["content"], reply.message.get("tool_calls", ())
        thought = reply.message.get("reasoning_content", "")
        is_over = bool(text or calls)
        thought_status = "completed" if is_over else status
        output = [self._item("reasoning", thought, thought_status)] if thought else []
        if text or not (thought or is_over):
            output.append(self._item("message", text, status))
        output += [self._call(k, call) for k, call in enumerate(calls)]
        prompt, sampled = self._exchange.n_tokens
        tokens = self._exchange.turns[0].response.output_tokens
        n_thought = self._session.chat.replies.n_reasoning_tokens(tokens) if thought else 0
        reason = "max_output_tokens" if reply.finish_reason == "length" else None
        return {
            **self._head(status),
            "incomplete_details": {"reason": reason} if was_cut else None,
            "output": output,
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": sampled,
                "output_tokens_details": {"reasoning_tokens": n_thought},
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
        texts: dict[str, str] = {}
        async for part, text in reply_pieces(self._session.chat, self._exchange):
            kind = "message" if part == "text" else part
            if kind not in texts:
                if texts:  # it is over, and the reply goes on: it was not cut
                    thought = self._item("reasoning", texts["reasoning"], "completed")
                    await self._close_item(send, 0, thought)
                await self._open_item(send, len(texts), kind)
            texts[kind] = texts.get(kind, "") + text
            await self._send_text(send, len(texts) - 1, kind, text)
        response = self.whole(await self._exchange.result())
        for k, item in enumerate(response["output"]):
            if item["type"] == "function_call":
                await self._send_call(send, k, item)
            elif k >= len(texts) - 1:
                if k >= len(texts):
                    await self._open_item(send, k, item["type"])
                await self._close_item(send, k, item)
        await send(response["status"], response=response)

    async def _open_item(self, send: Send, k: int, kind: str) -> None:
        item = {**self._item(kind, "", "in_progress"), "content": []}
        await send("output_item.added", output_index=k, item=item)
        await send("content_part.added", **_place(k, item), part=_PARTS[kind])

    async def _send_text(self, send: Send, k: int, kind: str, text: str) -> None:
        logprobs = {"logprobs": []} if kind == "message" else {}
        place = _place(k, self._item(kind, "", "in_progress"))
        await send(f"{_PARTS[kind]['type']}.delta", **place, delta=text, **logprobs)

    async def _close_item(self, send: Send, k: int, item: dict[str, Any]) -> None:
        [part] = item["content"]
        logprobs = {"logprobs": []} if item["type"] == "message" else {}
        place = _place(k, item)
        await send(f"{part['type']}.done", **place, text=part["text"], **logprobs)
        await send("content_part.done", **place, part=part)
        await send("output_item.done", output_index=k, item=item)

    async def _send_call(self, send: Send, k: int, item: dict[str, Any]) -> None:
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
            **self._style,
            "temperature": gconfig.effective_temperature,
            "top_p": gconfig.top_p,
            "max_output_tokens": gconfig.max_new_tokens,
            "output": [],
            "usage": None,
        }

    @property
    def _name(self) -> str:
        return self._exchange.id.rpartition("_")[2]

    def _item(self, kind: str, text: str, status: str) -> dict[str, Any]:
        content = [{**_PARTS[kind], "text": text}]
        if kind == "reasoning":
            name = f"rs_{self._name}"
            return {
                "type": kind,
                "id": name,
                "status": status,
                "summary": [],
                "content": content,
            }
        return {
            "type": kind,
            "id": f"msg_{self._name}",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _call(self, k: int, call: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": f"fc_{self._name}_{k}",
            "call_id": call["id"],
            "status": "completed",
            **call["function"],
        }


def _place(k: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"item_id": item["id"], "output_index": k, "content_index": 0}
