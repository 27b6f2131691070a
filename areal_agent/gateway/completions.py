"""The completions dialect: a prompt as text or ids, continued."""

from collections.abc import Sequence
from typing import Any

from areal_agent.gateway.chunks import ChunkStyle, ChunkWriter, Growing
from areal_agent.gateway.dialect import Asked, Dialect
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


class CompletionWriter(ChunkWriter):
    """Writes the answer to one call: a text for each choice."""

    kinds = ("text_completion", "text_completion")
    names = ("text", "text")

    def shown(self, reply: Reply) -> str:
        """The text."""
        return reply.message["content"]

    def growing(self) -> Growing:
        """The text as it comes."""
        return _Texts(ReplyText(self._session.chat, self._exchange.call.gconfig))

    def logprobs(self, ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
        """Texts of the tokens, and their logprobs."""
        texts = [self._session.chat.token_text(token) for token in ids]
        return {"tokens": texts, "token_logprobs": list(logprobs)}


class _Texts:
    """What chunks add to a text."""

    def __init__(self, text: ReplyText) -> None:
        self._text = text

    def begin(self) -> Sequence[Any]:
        return ()

    def push(self, ids: Sequence[int]) -> str:
        return self._text.push(ids)

    def rest(self, reply: Reply) -> Sequence[Any]:
        return [self._text.rest()]


COMPLETIONS = Dialect(
    "cmpl-", read_completion, CompletionWriter, param="prompt", max_choices=MAX_CHOICES
)
