"""Answers of the messages dialect: text and tool uses as blocks, whole or as events."""

import json
from collections.abc import Sequence
from typing import Any

import orjson

from areal_agent.gateway.pieces import reply_pieces
from areal_agent.gateway.reply import Reply
from areal_agent.gateway.writer import Emit, Writer

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use"}
"""Every other end is a cut."""

_EMPTY: dict[str, dict[str, Any]] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}
"""Blocks of a reply before its calls, as they begin."""


class MessageWriter(Writer[None]):
    """Writes the answer to one call: a block of reasoning and one of text, where there is any,
    and one for each call.
    """

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """The answer in one piece."""
        [reply] = replies
        message = reply.message
        told = [("thinking", message.get("reasoning_content")), ("text", message["content"])]
        content = [{**_EMPTY[kind], kind: text} for kind, text in told if text]
        content += [
            # As it stands: orjson knows no integers of more than 64 bits.
            {**_use(call), "input": orjson.Fragment(_input(call))}
            for call in reply.message.get("tool_calls", ())
        ]
        return {**self._head(), "content": content, **_end(reply)}

    async def stream(self, emit: Emit) -> None:
        """The answer as events; they tell the same as the answer in one piece."""
        head = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None}
        await emit({"type": "message_start", "message": head})
        await emit({"type": "ping"})
        index, current = 0, None
        async for part, text in reply_pieces(self._session.chat, self._exchange):
            kind = "thinking" if part == "reasoning" else part
            if current != kind:
                if current is not None:
                    await emit(_stop(index))
                    index += 1
                await emit(_start(index, _EMPTY[kind]))
                current = kind
            await emit(_delta(index, {"type": f"{kind}_delta", kind: text}))
        if current is not None:
            await emit(_stop(index))
            index += 1
        [reply] = await self._exchange.result()
        for call in reply.message.get("tool_calls", ()):
            await emit(_start(index, {**_use(call), "input": {}}))
            delta = {"type": "input_json_delta", "partial_json": _input(call)}
            await emit(_delta(index, delta))
            await emit(_stop(index))
            index += 1
        await emit({"type": "message_delta", "delta": _end(reply), **self._usage()})
        await emit({"type": "message_stop"})

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._exchange.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            **self._usage(),
        }

    def _usage(self) -> dict[str, Any]:
        prompt, sampled = self._exchange.n_tokens
        return {"usage": {"input_tokens": prompt, "output_tokens": sampled}}


def _end(reply: Reply) -> dict[str, Any]:
    reason = _STOP_REASONS.get(reply.finish_reason, "max_tokens")
    if reply.stop_string is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": reply.stop_string}


def _use(call: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}


def _input(call: dict[str, Any]) -> str:
    """Arguments as JSON; what Python reads beyond JSON (NaN, Infinity) becomes text."""
    return json.dumps(json.loads(call["function"]["arguments"], parse_constant=str))


def _start(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}
