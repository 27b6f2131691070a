"""What chat completions tell of each token of a reply, as JSON.

An answer has one entry a token; all but the logprob is the same wherever a token's text is.
"""

from collections.abc import Sequence
from functools import lru_cache

import orjson

from areal_agent.data.chat import ChatFormat


def token_logprobs(
    chat: ChatFormat, ids: Sequence[int], logprobs: Sequence[float]
) -> orjson.Fragment:
    """Return the list of entries.

    Args:
        chat: knows the text of each token.
        ids: tokens.
        logprobs: of each.
    """
    if not ids:
        return orjson.Fragment(b"[]")
    text = chat.token_text
    numbers = orjson.dumps(list(logprobs))[1:-1].split(b",")
    entries = [_entry(text(i)) + number for i, number in zip(ids, numbers, strict=True)]
    return orjson.Fragment(b"[" + b"},".join(entries) + b"}]")


@lru_cache(maxsize=1 << 14)
def _entry(text: str) -> bytes:
    """An entry up to its logprob, without what closes it.

    There are no bytes of a part of a character: its text stands for others as well.
    """
    piece = None if "\ufffd" in text else list(text.encode())
    entry = {"token": text, "bytes": piece, "top_logprobs": [], "logprob": 0}
    return orjson.dumps(entry).removesuffix(b"0}")
