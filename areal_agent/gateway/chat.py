"""The chat completions dialect: requests to calls, replies to answers, plain and streamed."""

from collections.abc import Sequence
from typing import Any

from areal_agent.data.parsers.splitter import Piece
from areal_agent.gateway.chunks import ChunkStyle, ChunkWriter, Growing
from areal_agent.gateway.dialect import Asked, Dialect
from areal_agent.gateway.messages import read_messages, read_tools
from areal_agent.gateway.pieces import ReplyPieces
from areal_agent.gateway.reply import Reply
from areal_agent.gateway.requests import wants_tools
from areal_agent.gateway.sampling import MAX_CHOICES
from areal_agent.gateway.session import Session
from areal_agent.gateway.token_logprobs import token_logprobs
from areal_agent.net.body import Body, include_usage


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


class ChatWriter(ChunkWriter):
    """Writes the answer to one call: a message for each choice."""

    kinds = ("chat.completion", "chat.completion.chunk")
    names = ("message", "delta")

    def shown(self, reply: Reply) -> dict[str, Any]:
        """The message as OpenAI writes it: no text beside calls is null."""
        message = {"refusal": None, **reply.message}
        if "tool_calls" in message:
            message["content"] = message["content"] or None
        return message

    def growing(self) -> Growing:
        """The message as it comes.

        With tools, text that may be the beginning of a call is held back until the reply is there:
        only then it is known what of it is one.
        """
        return _Deltas(ReplyPieces(self._session.chat, self._exchange))

    def logprobs(self, ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
        """An entry for each token."""
        entries = token_logprobs(self._session.chat, ids, logprobs)
        return {"content": entries, "refusal": None}


class _Deltas:
    """What chunks add to a message."""

    def __init__(self, pieces: ReplyPieces) -> None:
        self._pieces = pieces

    def begin(self) -> Sequence[Any]:
        return [{"role": "assistant", "content": ""}]

    def push(self, ids: Sequence[int]) -> dict[str, Any]:
        return _delta(self._pieces.push(ids))

    def rest(self, reply: Reply) -> Sequence[Any]:
        delta = _delta(self._pieces.rest(reply))
        calls = reply.message.get("tool_calls", ())
        if not calls:
            return [delta]
        return [{**delta, "tool_calls": [{"index": k, **c} for k, c in enumerate(calls)]}, {}]


def _delta(piece: Piece) -> dict[str, Any]:
    names = {"reasoning_content": piece.reasoning, "content": piece.content}
    return {name: text for name, text in names.items() if text}


CHAT = Dialect(
    "chatcmpl-",
    read_chat,
    ChatWriter,
    max_tokens=("max_tokens", "max_completion_tokens"),
    max_choices=MAX_CHOICES,
)
