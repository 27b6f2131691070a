"""The chat completions dialect: requests to calls, replies to answers, plain and streamed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from areal_agent.aio import collect
from areal_agent.data.parsers.splitter import Piece
from areal_agent.gateway.dialect import Asked, Dialect
from areal_agent.gateway.exchange import Exchange
from areal_agent.gateway.messages import read_messages, read_tools
from areal_agent.gateway.pieces import ReplyPieces
from areal_agent.gateway.reply import Reply
from areal_agent.gateway.requests import wants_tools
from areal_agent.gateway.sampling import MAX_CHOICES
from areal_agent.gateway.session import Session
from areal_agent.gateway.token_logprobs import token_logprobs
from areal_agent.net.body import Body, include_usage

Emit = Callable[[Any], Awaitable[None]]
"""Sends one server-sent event."""


@dataclass(frozen=True, slots=True)
class ChunkStyle:
    """How an answer is written, by dialects whose events are chunks of it."""

    include_usage: bool
    logprobs: bool


def read_chat(body: Body, session: Session) -> Asked[ChunkStyle]:
    """Read what only this dialect has.

    Raises:
        ApiError: 400, naming the parameter that cannot be honoured.
    """
    tools = read_tools(body.take("tools"))
    may_call = wants_tools(body.take("tool_choice", "auto"))
    style = ChunkStyle(include_usage(body), body.boolean("logprobs"))
    body.integer("top_logprobs", 0, 0, 0)
    messages = read_messages(body.take("messages"))
    return Asked(style, messages, tools if may_call else None)


def usage(exchange: Exchange) -> dict[str, int]:
    """Counts of tokens, as OpenAI reports them."""
    prompt, sampled = exchange.n_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


class ChatAnswer:
    """Writes the answer to one call."""

    def __init__(self, session: Session, exchange: Exchange, model: str, style: ChunkStyle) -> None:
        self._session = session
        self._exchange = exchange
        self._model = model
        self._style = style

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """The answer in one piece."""
        choices: list[dict[str, Any]] = []
        for i, (turn, reply) in enumerate(zip(self._exchange.turns, replies, strict=True)):
            message = {"refusal": None, **_shown(reply)}
            tokens = (turn.response.output_tokens, turn.response.output_logprobs)
            choices.append({**self._choice(i, reply.finish_reason, *tokens), "message": message})
        return {**self._head("chat.completion"), "choices": choices, "usage": usage(self._exchange)}

    async def stream(self, emit: Emit) -> None:
        """The answer as events, the choices interleaved as their tokens come.

        With tools, text that may be the beginning of a call is held back until the reply is there:
        only then it is known what of it is one.
        """
        choices = [self._stream_choice(i, emit) for i in range(len(self._exchange.tapes))]
        await collect(choices)
        if self._style.include_usage:
            await emit({**self._head(_CHUNK), "choices": [], "usage": usage(self._exchange)})

    async def _stream_choice(self, i: int, emit: Emit) -> None:
        async def send(
            delta: dict[str, Any],
            reason: str | None = None,
            ids: Sequence[int] = (),
            logprobs: Sequence[float] = (),
        ) -> None:
            choice = {**self._choice(i, reason, ids, logprobs), "delta": delta}
            await emit({**self._head(_CHUNK), "choices": [choice]})

        await send({"role": "assistant", "content": ""})
        pieces = ReplyPieces(self._session.chat, self._exchange)
        async for ids, logprobs, _ in self._exchange.tapes[i].parts():
            piece = pieces.push(ids)
            if any(piece) or self._style.logprobs:
                await send(_delta(piece), None, ids, logprobs)
        reply = (await self._exchange.result())[i]
        delta = _delta(pieces.rest(reply))
        calls = reply.message.get("tool_calls", ())
        if calls:
            delta["tool_calls"] = [{"index": k, **c} for k, c in enumerate(calls)]
            await send(delta)
            delta = {}
        await send(delta, reply.finish_reason)

    def _head(self, kind: str) -> dict[str, Any]:
        exchange = self._exchange
        return {
            "id": exchange.id,
            "object": kind,
            "created": exchange.created,
            "model": self._model,
        }

    def _choice(
        self, index: int, reason: str | None, ids: Sequence[int], logprobs: Sequence[float]
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": None}
        if self._style.logprobs:
            entries = token_logprobs(self._session.chat, ids, logprobs)
            choice["logprobs"] = {"content": entries, "refusal": None}
        return choice


CHAT = Dialect(
    "chatcmpl-",
    read_chat,
    ChatAnswer,
    max_tokens=("max_tokens", "max_completion_tokens"),
    max_choices=MAX_CHOICES,
)

_CHUNK = "chat.completion.chunk"


def _shown(reply: Reply) -> dict[str, Any]:
    """The message as OpenAI writes it: no text beside calls is null."""
    message = dict(reply.message)
    if "tool_calls" in message:
        message["content"] = message["content"] or None
    return message


def _delta(piece: Piece) -> dict[str, Any]:
    names = {"reasoning_content": piece.reasoning, "content": piece.content}
    return {name: text for name, text in names.items() if text}
