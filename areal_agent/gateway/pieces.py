"""The text of a call's only reply, for dialects that show calls beside the text."""

from collections.abc import AsyncGenerator

from areal_agent.data.chat import ChatFormat
from areal_agent.gateway.exchange import Exchange
from areal_agent.gateway.reply import ReplyText


async def text_pieces(chat: ChatFormat, exchange: Exchange) -> AsyncGenerator[str]:
    """Yield text as it comes, no empty piece; afterwards the reply is there.

    With tools it comes in one piece at the end: only then it is known what of it is a call.
    """
    call = exchange.call
    text = ReplyText(chat, call.gconfig)
    async for ids, _, _ in exchange.tapes[0].parts():
        if call.tools is None and (piece := text.push(ids)):
            yield piece
    [reply] = await exchange.result()
    rest = text.rest() if call.tools is None else reply.message["content"]
    if rest:
        yield rest
