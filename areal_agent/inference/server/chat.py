"""`POST /v1/chat/completions`: messages in, a message out, tool calls parsed."""

import asyncio
import time
import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from areal_agent.aio import task_group
from areal_agent.data.chat import ChatFormat
from areal_agent.data.messages import Tools, clean_tools
from areal_agent.data.parsers.splitter import Piece
from areal_agent.inference.engine.request import Generation
from areal_agent.inference.engine.sampler import LOGPROBS_CONVENTION
from areal_agent.inference.engine.ticket import Part, Ticket
from areal_agent.inference.server.exchange import Emit, EventStream, results
from areal_agent.inference.server.options import Options, check_prompt, read_options
from areal_agent.inference.server.reply import StreamedText, usage
from areal_agent.inference.server.state import ServerState
from areal_agent.net.api_error import ApiError, json_response
from areal_agent.net.body import LONG_TEXT_BYTES, Body

_NO_TOKENS: Part = ([], [], [])


async def chat_completions(request: Request) -> Response:
    """Answer one request."""
    state: ServerState = request.app.state.server
    if state.chat is None:
        raise ApiError(
            f"the model {state.model!r} has no chat template: use /v1/completions, or put "
            "chat_template.jinja into its folder"
        )
    body = await Body.read(request)
    tools = clean_tools(_tools(body))
    if tools and state.chat.replies.parser is None:
        raise ApiError(f"tools: {state.chat.replies.advice}", param="tools")
    prompt = check_prompt(await _prompt(body, state.chat, tools), state, param="messages")
    wants_logprobs = body.boolean("logprobs")
    body.integer("top_logprobs", 0, 0, 0)
    name = f"chatcmpl-{uuid.uuid4().hex}"
    room = state.engine.max_model_len - len(prompt)
    options = read_options(body, state, new_id=name, max_tokens=_max_tokens(body, room))
    body.finish()
    answer = ChatAnswer(state, state.chat, options, prompt, wants_logprobs, tools, name)
    tickets = options.submit(prompt, state.engine)
    if options.stream:
        return EventStream(tickets, lambda emit: answer.stream(tickets, emit))
    return json_response(answer.whole(await results(tickets, request.receive)))


async def _prompt(body: Body, chat: ChatFormat, tools: Tools) -> list[int]:
    messages = body.take("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(
            f"messages: expected a list of at least one message, got {messages!r:.80}",
            param="messages",
        )
    if body.n_bytes <= LONG_TEXT_BYTES:
        return chat.prompt_ids(messages, tools)
    return await asyncio.to_thread(chat.prompt_ids, messages, tools)


def _tools(body: Body) -> Any:
    """Take the tools, unless the client forbids their use."""
    tools = body.take("tools")
    choice = body.take("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise ApiError(
            f"tool_choice: expected 'auto' or 'none', got {choice!r}: this server cannot force a "
            "call",
            param="tool_choice",
            code="invalid_value",
        )
    return tools if choice == "auto" else None


def _max_tokens(body: Body, room: int) -> int:
    if body.has("max_tokens") and body.has("max_completion_tokens"):
        raise ApiError(
            "max_tokens: expected either max_tokens or max_completion_tokens, got both",
            param="max_tokens",
        )
    name = "max_tokens" if body.has("max_tokens") else "max_completion_tokens"
    return body.integer(name, room, 1)


class ChatAnswer:
    """Builds the answer to one chat request."""

    def __init__(
        self,
        state: ServerState,
        chat: ChatFormat,
        options: Options,
        prompt: list[int],
        logprobs: bool,
        tools: Tools,
        name: str,
    ) -> None:
        self._state = state
        self._chat = chat
        self._options = options
        self._prompt = prompt
        self._logprobs = logprobs
        self._tools = tools
        self._opened = chat.opens_reasoning(prompt)
        self._head = {
            "id": name,
            "created": int(time.time()),
            "model": state.model,
            "logprobs_convention": LOGPROBS_CONVENTION,
        }

    def whole(self, found: list[Generation]) -> dict[str, Any]:
        """The answer in one piece."""
        choices: list[dict[str, Any]] = []
        for i, g in enumerate(found):
            message, reason = self._message(g)
            part = (g.token_ids, g.logprobs, g.versions)
            choices.append({**self._choice(i, part, reason, first=True), "message": message})
        return {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(self._prompt, found),
        }

    async def stream(self, tickets: list[Ticket], emit: Emit) -> None:
        """The answer as events, the choices interleaved as their tokens come.

        With tools, text that may be the beginning of a call is held back until the end: only then
        it is known what of it is one. Token ids and logprobs still come one by one.
        """
        async with task_group() as group:
            for i, ticket in enumerate(tickets):
                group.create_task(self._stream_choice(i, ticket, emit))
        if self._options.include_usage:
            found = [await ticket.result() for ticket in tickets]
            await emit(self._chunk(choices=[], usage=usage(self._prompt, found)))

    async def _stream_choice(self, index: int, ticket: Ticket, emit: Emit) -> None:
        async def send(delta: dict[str, Any], part: Part, reason: str | None, first: bool) -> None:
            choice = {**self._choice(index, part, reason, first=first), "delta": delta}
            await emit(self._chunk(choices=[choice]))

        await send({"role": "assistant", "content": ""}, _NO_TOKENS, None, True)
        text = StreamedText(self._chat.replies.visible, self._options.params)
        splitter = self._chat.replies.splitter(
            opened=self._opened, may_call=self._tools is not None
        )
        async for part in ticket.parts():
            piece = splitter.push(text.push(part[0]))
            if any(piece) or self._asks_for_tokens:
                await send(_delta(piece), part, None, False)
        message, reason = self._message(await ticket.result())
        rest = splitter.rest(message.get("reasoning_content", ""), message["content"] or "")
        delta = _delta(rest)
        if "tool_calls" in message:
            delta["tool_calls"] = [{"index": i, **c} for i, c in enumerate(message["tool_calls"])]
            await send(delta, _NO_TOKENS, None, False)
            delta = {}
        await send(delta, _NO_TOKENS, reason, False)

    def _message(self, generation: Generation) -> tuple[dict[str, Any], str]:
        """The assistant's message, and why it ends."""
        ids, visible = generation.token_ids, self._chat.replies.visible
        ended = generation.stop_string is None and generation.finish_reason == "stop"
        if generation.stop_string is None:
            whole = visible(ids[:-1] if ended else ids)
        else:
            text = StreamedText(visible, self._options.params)
            whole = text.push(ids) + text.rest()
        may_call = self._tools is not None and ended
        parsed = self._chat.replies.read(whole, self._tools, opened=self._opened, may_call=may_call)
        if parsed.is_malformed:
            self._chat.note_malformed(whole)
        message = self._chat.message_of(parsed)
        if not parsed.calls:
            return message, generation.finish_reason
        return {**message, "content": message["content"] or None}, "tool_calls"

    @property
    def _asks_for_tokens(self) -> bool:
        o = self._options
        return self._logprobs or o.return_token_ids or o.return_weight_versions

    def _chunk(self, **fields: Any) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", **fields}

    def _choice(
        self, index: int, part: Part, finish_reason: str | None, *, first: bool
    ) -> dict[str, Any]:
        ids, logprobs, versions = part
        choice: dict[str, Any] = {
            "index": index,
            "finish_reason": finish_reason,
            "logprobs": None,
        }
        if self._logprobs:
            texts = self._state.texts(ids)
            choice["logprobs"] = {
                "content": [
                    {"token": t, "logprob": p, "bytes": list(t.encode()), "top_logprobs": []}
                    for t, p in zip(texts, logprobs, strict=True)
                ]
            }
        if self._options.return_token_ids:
            choice["token_ids"] = ids
            if first:
                choice["prompt_token_ids"] = self._prompt
        if self._options.return_weight_versions:
            choice["weight_versions"] = versions
        return choice


def _delta(piece: Piece) -> dict[str, Any]:
    names = {"reasoning_content": piece.reasoning, "content": piece.content}
    return {name: text for name, text in names.items() if text}
