"""The completions dialect: a prompt as text or ids, continued."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from areal_agent.aio import collect
from areal_agent.gateway.chat import ChunkStyle, usage
from areal_agent.gateway.dialect import Asked, Dialect
from areal_agent.gateway.exchange import Exchange
from areal_agent.gateway.reply import Reply, ReplyText
from areal_agent.gateway.sampling import MAX_CHOICES
from areal_agent.gateway.session import Session
from areal_agent.net.api_error import ApiError
from areal_agent.net.body import Body, check_ids, include_usage


def read_completion(body: Body, session: Session) -> Asked[ChunkStyle]:
    """Read what only this dialect has.

    Raises:
        ApiError: 400, naming the parameter that cannot be honoured.
    """
    style = ChunkStyle(
        include_usage(body),
        body.integer("logprobs", -1, 0 if body.has("logprobs") else -1, 1) >= 0,
    )
    prompt = _prompt(body.take("prompt"), len(session.chat.tokenizer))
    return Asked(style, prompt=prompt)


def _prompt(value: object, vocab_size: int) -> str | list[int]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value:
        return check_ids("prompt", value, vocab_size)
    raise ApiError(
        f"prompt: expected text or a list of token ids, not empty, got {value!r:.80}",
        param="prompt",
    )


class CompletionAnswer:
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
            tokens = (turn.response.output_tokens, turn.response.output_logprobs)
            choices.append(self._choice(i, reply.message["content"], reply.finish_reason, *tokens))
        return {**self._head(), "choices": choices, "usage": usage(self._exchange)}

    async def stream(self, emit: Callable[[Any], Awaitable[None]]) -> None:
        """The answer as events, the choices interleaved as their tokens come."""
        await collect(self._stream_choice(i, emit) for i in range(len(self._exchange.tapes)))
        if self._style.include_usage:
            await emit({**self._head(), "choices": [], "usage": usage(self._exchange)})

    async def _stream_choice(self, i: int, emit: Callable[[Any], Awaitable[None]]) -> None:
        text = ReplyText(self._session.chat, self._exchange.call.gconfig)
        async for ids, logprobs, _ in self._exchange.tapes[i].parts():
            piece = text.push(ids)
            if piece or self._style.logprobs:
                choice = self._choice(i, piece, None, ids, logprobs)
                await emit({**self._head(), "choices": [choice]})
        reply = (await self._exchange.result())[i]
        choice = self._choice(i, text.rest(), reply.finish_reason, (), ())
        await emit({**self._head(), "choices": [choice]})

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._exchange.id,
            "object": "text_completion",
            "created": self._exchange.created,
            "model": self._model,
        }

    def _choice(
        self,
        index: int,
        text: str,
        reason: str | None,
        ids: Sequence[int],
        logprobs: Sequence[float],
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "finish_reason": reason,
            "logprobs": None,
        }
        if self._style.logprobs:
            texts = [self._session.chat.token_text(token) for token in ids]
            choice["logprobs"] = {"tokens": texts, "token_logprobs": list(logprobs)}
        return choice


COMPLETIONS = Dialect(
    "cmpl-", read_completion, CompletionAnswer, param="prompt", max_choices=MAX_CHOICES
)
