"""A reply as it grows: reasoning and text, before it is known whether calls come after them."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Literal

from areal_agent.data.chat import ChatFormat
from areal_agent.data.parsers.splitter import Piece
from areal_agent.gateway.exchange import Exchange
from areal_agent.gateway.reply import Reply, ReplyText


class ReplyPieces:
    """Turns tokens into what became certain of the message that the client will have been given."""

    def __init__(self, chat: ChatFormat, exchange: Exchange) -> None:
        call = exchange.call
        self._text = ReplyText(chat, call.gconfig)
        self._splitter = chat.replies.splitter(
            opened=chat.opens_reasoning(exchange.plan.prompt_ids), may_call=call.tools is not None
        )

    def push(self, ids: Sequence[int]) -> Piece:
        """Add tokens."""
        return self._splitter.push(self._text.push(ids))

    def rest(self, reply: Reply) -> Piece:
        """Return what is left of the whole reply's reasoning and text."""
        message = reply.message
        return self._splitter.rest(message.get("reasoning_content", ""), message["content"])


async def reply_pieces(
    chat: ChatFormat, exchange: Exchange
) -> AsyncGenerator[tuple[Literal["reasoning", "text"], str]]:
    """Yield the only reply to a call as it comes, no empty piece; afterwards the reply is there."""
    pieces = ReplyPieces(chat, exchange)
    async for ids, _, _ in exchange.tapes[0].parts():
        for found in _told(pieces.push(ids)):
            yield found
    [reply] = await exchange.result()
    for found in _told(pieces.rest(reply)):
        yield found


def _told(piece: Piece) -> Iterator[tuple[Literal["reasoning", "text"], str]]:
    if piece.reasoning:
        yield "reasoning", piece.reasoning
    if piece.content:
        yield "text", piece.content
