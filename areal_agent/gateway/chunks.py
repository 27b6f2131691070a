"""Answers of choices, whole or in chunks, each a bit of one choice: OpenAI's completions."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from areal_agent.aio import collect
from areal_agent.gateway.reply import Reply
from areal_agent.gateway.writer import Emit, Writer


@dataclass(frozen=True, slots=True)
class ChunkStyle:
    """What a request wants to be told."""

    include_usage: bool
    logprobs: bool


class Growing(Protocol):
    """A choice as it grows. What is empty is told only where its tokens have logprobs to tell."""

    def begin(self) -> Sequence[Any]:
        """What is told before any token."""
        ...

    def push(self, ids: Sequence[int]) -> Any:
        """What became certain with these tokens."""
        ...

    def rest(self, reply: Reply) -> Sequence[Any]:
        """What is left of the whole reply, at least one piece: the last one ends the choice."""
        ...


class ChunkWriter(Writer[ChunkStyle]):
    """Writes choices; a dialect says what is in one."""

    kinds: ClassVar[tuple[str, str]]
    """Of answers and of chunks."""
    names: ClassVar[tuple[str, str]]
    """Under which a choice, and a chunk's choice, holds the reply."""

    @abstractmethod
    def shown(self, reply: Reply) -> Any:
        """A whole reply."""

    @abstractmethod
    def growing(self) -> Growing:
        """A reply that is to come."""

    @abstractmethod
    def logprobs(self, ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
        """What is told of tokens."""

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """The answer in one piece."""
        choices: list[dict[str, Any]] = []
        for i, (turn, reply) in enumerate(zip(self._exchange.turns, replies, strict=True)):
            tokens = (turn.response.output_tokens, turn.response.output_logprobs)
            shown = {self.names[0]: self.shown(reply)}
            choices.append(self._choice(i, shown, reply.finish_reason, *tokens))
        return {**self._head(self.kinds[0]), "choices": choices, "usage": self._usage()}

    async def stream(self, emit: Emit) -> None:
        """The answer as events, the choices interleaved as their tokens come."""
        await collect(self._stream_choice(i, emit) for i in range(len(self._exchange.tapes)))
        if self._style.include_usage:
            await emit({**self._head(self.kinds[1]), "choices": [], "usage": self._usage()})

    async def _stream_choice(self, i: int, emit: Emit) -> None:
        async def send(
            piece: Any,
            reason: str | None = None,
            ids: Sequence[int] = (),
            logprobs: Sequence[float] = (),
        ) -> None:
            choice = self._choice(i, {self.names[1]: piece}, reason, ids, logprobs)
            await emit({**self._head(self.kinds[1]), "choices": [choice]})

        growing = self.growing()
        for piece in growing.begin():
            await send(piece)
        async for ids, logprobs, _ in self._exchange.tapes[i].parts():
            piece = growing.push(ids)
            if piece or self._style.logprobs:
                await send(piece, None, ids, logprobs)
        reply = (await self._exchange.result())[i]
        *pieces, last = growing.rest(reply)
        for piece in pieces:
            await send(piece)
        await send(last, reply.finish_reason)

    def _head(self, kind: str) -> dict[str, Any]:
        exchange = self._exchange
        return {
            "id": exchange.id,
            "object": kind,
            "created": exchange.created,
            "model": self._model,
        }

    def _usage(self) -> dict[str, int]:
        prompt, sampled = self._exchange.n_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
        }

    def _choice(
        self,
        index: int,
        shown: dict[str, Any],
        reason: str | None,
        ids: Sequence[int],
        logprobs: Sequence[float],
    ) -> dict[str, Any]:
        told = self.logprobs(ids, logprobs) if self._style.logprobs else None
        return {"index": index, **shown, "finish_reason": reason, "logprobs": told}
