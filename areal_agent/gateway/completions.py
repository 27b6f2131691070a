"""The completions dialect: a prompt as text or ids, continued."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from areal_agent.aio import collect
from areal_agent.gateway.chat import include_usage, usage
from areal_agent.gateway.exchange import Call, Exchange
from areal_agent.gateway.reply import Reply, ReplyText
from areal_agent.gateway.requests import digest, take_notes
from areal_agent.gateway.sampling import MAX_CHOICES, read_sampling
from areal_agent.gateway.session import Session
from areal_agent.net.api_error import ApiError
from areal_agent.net.body import Body, check_ids

PREFIX = "cmpl-"


@dataclass(frozen=True, slots=True)
class CompletionOptions:
    """How an answer is written."""

    model: str
    include_usage: bool
    logprobs: bool


def read_completion(
    body: Body, session: Session, model: str, is_retry: bool
) -> tuple[Call, CompletionOptions]:
    """Read a request.

    Raises:
        ApiError: 400, naming the parameter that cannot be honoured.
    """
    key = digest(body, PREFIX)
    take_notes(body)
    stream = body.boolean("stream")
    options = CompletionOptions(
        model=model,
        include_usage=include_usage(body, stream),
        logprobs=body.integer("logprobs", -1, 0 if body.has("logprobs") else -1, 1) >= 0,
    )
    prompt = _prompt(body.take("prompt"), len(session.chat.tokenizer))
    call = Call(
        messages=(),
        tools=None,
        prompt=prompt,
        param="prompt",
        gconfig=read_sampling(
            body,
            session.gconfig,
            trained=session.trained,
            max_tokens=("max_tokens",),
            max_choices=MAX_CHOICES,
        ),
        digest=key,
        stream=stream,
        is_retry=is_retry,
    )
    body.finish()
    return call, options


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

    def __init__(self, session: Session, exchange: Exchange, options: CompletionOptions) -> None:
        self._session = session
        self._exchange = exchange
        self._options = options

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
        if self._options.include_usage:
            await emit({**self._head(), "choices": [], "usage": usage(self._exchange)})

    async def _stream_choice(self, i: int, emit: Callable[[Any], Awaitable[None]]) -> None:
        text = ReplyText(self._session.chat, self._exchange.call.gconfig)
        async for ids, logprobs, _ in self._exchange.tapes[i].parts():
            piece = text.push(ids)
            if piece or self._options.logprobs:
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
            "model": self._options.model,
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
        if self._options.logprobs:
            texts = [self._session.chat.token_text(token) for token in ids]
            choice["logprobs"] = {"tokens": texts, "token_logprobs": list(logprobs)}
        return choice
